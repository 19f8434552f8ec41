"""A Ray cluster that this process has joined, or a Ray that it has started on this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

import ray

from raysearch.cluster.join import join
from raysearch.cluster.watch import DeathWatch

T = TypeVar("T")


class RayCluster:
    """The connection of this process to a Ray cluster; a context manager that leaves the cluster at its end.

    The cluster is joined in a thread, so that the caller can import libraries and read weights in the meantime. If this
    process is in a cluster already, it stays in that one, and `close` does not leave it.

    Args:
        address: The address of the cluster; None to start Ray on this machine.
        cpus: How many CPUs a Ray on this machine has; it starts a process for each.
    """

    def __init__(self, address: str | None, cpus: float) -> None:
        self._address = address
        self._cpus = cpus
        self._is_ours = not ray.is_initialized()
        self._is_closed = False
        self._thread = _CallThread("ray")
        self._watch: Future[DeathWatch | None] = self._thread.submit(self._join)

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def spans_machines(self) -> bool:
        """Whether it may have other machines than this one."""
        return self._address is not None or not self._is_ours

    @property
    def is_remote(self) -> bool:
        """Whether it was joined by an address."""
        return self._address is not None

    @property
    def has_died(self) -> bool:
        """Whether Ray is known to have died."""
        watch = self._finished_watch()
        return watch is not None and watch.died is not None

    def wait(self) -> None:
        """Wait until the cluster is joined.

        Raises:
            UserError: No cluster answers at the address, or none can be started on this machine.
        """
        self._watch.result()

    def when_joined(self, function: Callable[[], T]) -> Future[T]:
        """Call a function as soon as the cluster is joined.

        Args:
            function: The function. It is called in the thread that joins the cluster.

        Returns:
            The result of the function, which also raises the errors of `wait`.
        """
        return self._thread.submit(partial(self._call_joined, function))

    def resources(self) -> Mapping[str, float]:
        """Return the resources of the whole cluster, by kind: ``CPU``, ``GPU``, and ``memory`` in bytes."""
        self.wait()
        return ray.cluster_resources()

    def check(self) -> None:
        """Raise an `EvaluationError` if Ray has died; before the cluster is joined, do nothing."""
        watch = self._finished_watch()
        if watch is not None:
            watch.check()

    def close(self) -> None:
        """Leave the cluster, if this process joined it. Closing twice is harmless."""
        if self._is_closed:
            return
        has_joined = self._watch.exception() is None  # waits; the error was raised before
        watch = self._finished_watch()
        if watch is not None:
            watch.stop()
        if has_joined and self._is_ours:
            ray.shutdown()
        self._thread.stop()
        self._is_closed = True

    def _call_joined(self, function: Callable[[], T]) -> T:
        self.wait()
        return function()

    def _join(self) -> DeathWatch | None:
        return join(self._address, self._cpus) if self._is_ours else None

    def _finished_watch(self) -> DeathWatch | None:
        """Return the watch; None if the cluster is not joined yet, or has none."""
        if not self._watch.done() or self._watch.exception() is not None:
            return None
        return self._watch.result()


class _CallThread:
    """A thread that calls functions one after another.

    Linux kills Ray's processes when the thread that started them ends. So this thread lives until `stop`, or else until
    the end of the process, which the thread of an executor does not.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Call a function after all others, and return its future result."""
        future: Future[T] = Future()
        self._calls.put((future, function))
        return future

    def stop(self) -> None:
        """End the thread after all calls."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)


def this_node() -> str:
    """Return the name of a resource that only this node has; a task that needs some of it runs on this node."""
    node_id = ray.get_runtime_context().get_node_id()
    (resources,) = [node["Resources"] for node in ray.nodes() if node["NodeID"] == node_id]
    return next(name for name in resources if name.startswith("node:") and "internal" not in name)
