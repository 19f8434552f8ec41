"""Runs a function in several processes connected by PyTorch, with Ray Train: one for each GPU, or on CPUs."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import ray
import ray.train
from ray.exceptions import RayError
from ray.train import RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchTrainer
from ray.util.queue import Queue

from raysearch.cluster.interrupt import interrupted_by_death
from raysearch.cluster.options import ClusterOptions
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.memory import is_out_of_memory
from raysearch.text.sentences import last_line

T = TypeVar("T")

Report = Callable[[str], None]  # receives a line


def on_workers(
    work: Callable[[Report, Report], T],
    n: int,
    cluster: ClusterOptions,
    *,
    on_gpu: bool,
    on_progress: Report,
    warn: Report,
) -> T:
    """Run a function in each of several processes, and return the result of the first process.

    In the processes ``torch.distributed`` is set up, as by ``torchrun``.

    Args:
        work: The function. It receives two functions that report progress and warnings; only those of the first process
            are passed on.
        n: The number of processes.
        cluster: The cluster; each process has the CPUs of a replica.
        on_gpu: Whether each process has a GPU.
        on_progress: Receives the progress.
        warn: Receives the warnings.

    Returns:
        The return value of `work` in the first process.

    Raises:
        UserError: The cluster has too few CPUs or GPUs, or the function raises a `UserError`.
        EvaluationError: A process has died, or the function raises an `EvaluationError`.
        RuntimeError: Memory was short, see `is_out_of_memory`.
    """
    needs = {"CPU": float(cluster.cpus_per_replica)}
    if on_gpu:
        needs["GPU"] = 1.0
    scratch = Path(tempfile.mkdtemp(prefix="raysearch-workers-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        ray_cluster = stack.enter_context(cluster.ray_cluster(n * needs["CPU"]))
        stack.enter_context(interrupted_by_death(ray_cluster.check, warn))
        _check_resources(n, needs, ray_cluster.resources())
        receiver = _Receiver(on_progress, warn)
        trainer = TorchTrainer(
            _work,
            train_loop_config={"work": ray.put(work), "messages": receiver.messages},
            scaling_config=ScalingConfig(num_workers=n, use_gpu=on_gpu, resources_per_worker=needs),
            run_config=RunConfig(storage_path=str(scratch)),
        )
        try:
            fitted: Any = trainer.fit()
        except (TrainingFailedError, RayError) as error:  # a RayError if an actor of Ray Train dies
            receiver.stop()
            for failure in receiver.failures:
                if isinstance(failure, UserError | EvaluationError) or is_out_of_memory(failure):
                    raise failure from error
            # other workers may report it first: connection reset by peer
            cause = receiver.failures[0] if receiver.failures else error
            raise EvaluationError(
                f"a worker of recovery.workers={n} has died ({last_line(cause)}); "
                "the same command resumes from the last checkpoint"
            ) from error
        receiver.stop()
        result: T = fitted.return_value
        return result


def _check_resources(n: int, needs: Mapping[str, float], resources: Mapping[str, float]) -> None:
    """Refuse more processes than the cluster has room for; Ray Train would wait forever."""
    for kind, per_process in needs.items():
        available = resources.get(kind, 0)
        if available < n * per_process:
            raise UserError(
                f"recovery.workers={n} need {n * per_process:g} {kind}s, and the cluster has {available:g}; use fewer"
            )


class _Sender:
    """Sends messages of a process to the process that trains: all failures, but progress and warnings of the first.

    Args:
        messages: The queue of a `_Receiver`.
        is_first: Whether it is the first process.
    """

    def __init__(self, messages: Queue, is_first: bool) -> None:
        self._messages = messages
        self._is_first = is_first

    def report_progress(self, line: str) -> None:
        if self._is_first:
            self._messages.put(("progress", line))

    def warn(self, line: str) -> None:
        if self._is_first:
            self._messages.put(("warning", line))

    def report_failure(self, error: Exception) -> None:
        self._messages.put(("failure", error))


class _Receiver:
    """Receives the messages of all processes in a thread.

    Args:
        on_progress: Receives the progress.
        warn: Receives the warnings.

    Attributes:
        messages: The queue.
        failures: The failures so far.
    """

    def __init__(self, on_progress: Report, warn: Report) -> None:
        self.messages = Queue(actor_options={"num_cpus": 0})
        self.failures: list[Exception] = []
        self._on_progress = on_progress
        self._warn = warn
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the last message."""
        with suppress(RayError):  # the queue may have died with a process
            self.messages.put(None)
        self._thread.join()

    def _receive(self) -> None:
        with suppress(RayError):  # the death of Ray is reported elsewhere
            while (message := self.messages.get()) is not None:
                match message:
                    case "progress", line:
                        self._on_progress(line)
                    case "warning", line:
                        self._warn(line)
                    case "failure", error:
                        self.failures.append(error)


def _work(config: dict[str, Any]) -> Any:
    """Run the function in one of the processes, and report its failure."""
    sender = _Sender(config["messages"], ray.train.get_context().get_world_rank() == 0)
    try:
        return ray.get(config["work"])(sender.report_progress, sender.warn)
    except Exception as error:
        sender.report_failure(error)
        raise
