"""Runs a function in several processes connected by PyTorch, with Ray Train: one for each GPU, or on CPUs."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
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
from raysearch.evaluation.replica import is_out_of_memory
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

    Raises:
        UserError: The cluster has too few CPUs or GPUs, or the function raises a `UserError`.
        EvaluationError: A process has died, or the function raises an `EvaluationError`.
        RuntimeError: Memory was short, see `is_out_of_memory`.
    """
    needs = {"CPU": float(cluster.cpus_per_replica)}
    if on_gpu:
        needs["GPU"] = 1.0
    scratch = Path(tempfile.mkdtemp(prefix="raysearch-workers-"))
    failures: list[BaseException] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        ray_cluster = stack.enter_context(cluster.ray_cluster(n * needs["CPU"]))
        stack.enter_context(interrupted_by_death(ray_cluster.check, warn))
        resources = ray_cluster.resources()
        for kind, per_process in needs.items():  # otherwise Ray Train would wait forever
            available = resources.get(kind, 0)
            if available < n * per_process:
                raise UserError(
                    f"recovery.workers={n} need {n * per_process:g} {kind}s, and the cluster has {available:g}; use "
                    "fewer"
                )
        messages = Queue(actor_options={"num_cpus": 0})
        listeners = {"progress": on_progress, "warning": warn, "failure": failures.append}
        listener = threading.Thread(target=_listen, args=(messages, listeners), daemon=True)
        listener.start()
        trainer = TorchTrainer(
            _work,
            train_loop_config={"work": ray.put(work), "messages": messages},
            scaling_config=ScalingConfig(num_workers=n, use_gpu=on_gpu, resources_per_worker=needs),
            run_config=RunConfig(storage_path=str(scratch)),
        )
        try:
            fitted: Any = trainer.fit()
        except (TrainingFailedError, RayError) as error:  # a RayError if an actor of Ray Train dies
            with suppress(RayError):  # the queue may have died with it
                messages.put(None)
            listener.join()
            for failure in failures:
                if isinstance(failure, UserError | EvaluationError) or is_out_of_memory(failure):
                    raise failure from error
            # other workers may report it first: connection reset by peer
            raise EvaluationError(
                f"a worker of recovery.workers={n} has died ({last_line(failures[0] if failures else error)}); "
                "the same command resumes from the last checkpoint"
            ) from error
        messages.put(None)
        listener.join()
        result: T = fitted.return_value
        return result


def _work(config: dict[str, Any]) -> Any:
    """Run the function in one of the processes, and report its failure."""
    messages: Queue = config["messages"]
    is_first = ray.train.get_context().get_world_rank() == 0

    def reporter(kind: str) -> Report:
        return lambda line: messages.put((kind, line)) if is_first else None

    try:
        return ray.get(config["work"])(reporter("progress"), reporter("warning"))
    except Exception as error:
        messages.put(("failure", error))
        raise


def _listen(messages: Queue, listeners: dict[str, Callable[[Any], None]]) -> None:
    with suppress(RayError):  # the death of Ray is reported elsewhere
        while (message := messages.get()) is not None:
            kind, value = message
            listeners[kind](value)
