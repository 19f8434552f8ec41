"""Notices that Ray has died.

If Ray dies, the next call of Ray hangs, and then ends this process with a dump.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import ray
from typing_extensions import override

from raysearch.errors import EvaluationError

_POLL_S = 1.0  # poll interval of the thread of a watch
_UNREACHABLE_S = 40.0  # how long a cluster's head may be unreachable; after 60 s Ray ends this process
_LOOK_S = 0.05  # the shortest time between two looks at a local Ray


@dataclass(frozen=True)
class Endpoint:
    """The address at which a process of Ray listens.

    Args:
        name: The name of the process, for messages.
        host: The name or IP address of its machine.
        port: The port.
    """

    name: str
    host: str
    port: int

    def connect(self) -> None:
        """Connect, and close the connection.

        Raises:
            ConnectionRefusedError: No process listens.
            OSError: The machine does not answer.
        """
        socket.create_connection((self.host, self.port), _POLL_S).close()


class RayProcesses(Protocol):
    """The processes without which Ray is dead."""

    checked_at_once: bool  #: whether a check looks at them at once, which takes less than a millisecond

    def find_dead(self) -> str | None:
        """Return the name of a process that has died; None if all live."""
        ...


class LocalRay(RayProcesses):
    """A Ray on this machine. A process that refuses a connection has died.

    Args:
        endpoints: Its processes.
    """

    checked_at_once = True

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints

    @classmethod
    def joined(cls) -> LocalRay:
        """Return the Ray that this process has started."""
        context = ray.get_runtime_context()
        (node,) = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
        gcs_host, gcs_port = _host_and_port(context.gcs_address)
        return cls(
            [
                Endpoint("Ray's raylet on this machine", node["NodeManagerAddress"], node["NodeManagerPort"]),
                Endpoint("Ray's GCS on this machine", gcs_host, gcs_port),
            ]
        )

    @override
    def find_dead(self) -> str | None:
        for endpoint in self._endpoints:
            try:
                endpoint.connect()
            except ConnectionRefusedError:
                return endpoint.name
            except OSError:
                continue  # such as a timeout on a busy machine
        return None


class ClusterHead(RayProcesses):
    """The head of a running cluster. It has died if it was unreachable for a while.

    Args:
        endpoint: Its GCS.
    """

    checked_at_once = False

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._last_answer_s = time.monotonic()

    @classmethod
    def joined(cls) -> ClusterHead:
        """Return the head of the cluster that this process has joined."""
        address = ray.get_runtime_context().gcs_address
        host, port = _host_and_port(address)
        return cls(Endpoint(f"the head of the Ray cluster at {address}", host, port))

    @override
    def find_dead(self) -> str | None:
        with contextlib.suppress(OSError):
            self._endpoint.connect()
            self._last_answer_s = time.monotonic()
        is_dead = time.monotonic() - self._last_answer_s > _UNREACHABLE_S
        return self._endpoint.name if is_dead else None


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class DeathWatch:
    """Polls the processes of Ray in a thread.

    Args:
        processes: The processes.

    Attributes:
        died: The name of the process that has died; None if none has.
    """

    def __init__(self, processes: RayProcesses) -> None:
        self.died: str | None = None
        self._processes = processes
        self._looked_at_s = time.monotonic()
        self._is_stopped = threading.Event()
        threading.Thread(target=self._poll, name="ray-watch", daemon=True).start()

    def check(self) -> None:
        """Raise an `EvaluationError` if Ray has died."""
        # Each look takes a port for a minute, so looks must not be too frequent.
        if self._processes.checked_at_once and time.monotonic() - self._looked_at_s >= _LOOK_S:
            self._look()
        if self.died is not None:
            raise EvaluationError(
                f"{self.died} has died, and the replicas with it; what they had evaluated is in the ledger, and the "
                "same command goes on from there"
            )

    def stop(self) -> None:
        """Stop polling."""
        self._is_stopped.set()

    def _look(self) -> None:
        self._looked_at_s = time.monotonic()
        self.died = self.died or self._processes.find_dead()

    def _poll(self) -> None:
        while self.died is None and not self._is_stopped.wait(_POLL_S):
            self._look()
