"""Runs a function in several processes that PyTorch joins, by Ray Train: one for each GPU, or on CPUs."""

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

from raysearch.cluster.connection import join_ray, raising, room
from raysearch.cluster.options import ClusterOptions
from raysearch.errors import EvaluationError, UserError, last_line
from raysearch.evaluation.replica import is_out_of_memory

T = TypeVar("T")

Tell = Callable[[str], None]


def on_workers(
    work: Callable[[Tell, Tell], T], n: int, cluster: ClusterOptions, *, on_gpu: bool, on_progress: Tell, warn: Tell
) -> T:
    """Run a function in each of several processes, and return what the first one returns.

    Within it ``torch.distributed`` is set up, as by ``torchrun``. It is handed where it tells progress and warnings,
    those of the first process alone. Each process has the CPUs of a replica, and a GPU if GPUs are used.

    Raises:
        UserError: The cluster has too few CPUs or GPUs, or the function raises one.
        EvaluationError: A process has died, or the function raises one.
        RuntimeError: Memory was short, as `is_out_of_memory` tells.
    """
    needs = {"CPU": float(cluster.cpus_per_replica), **({"GPU": 1.0} if on_gpu else {})}
    leave, scratch = join_ray(cluster.address, n * needs["CPU"]), Path(tempfile.mkdtemp(prefix="raysearch-workers-"))
    failures: list[BaseException] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        stack.callback(leave)
        stack.enter_context(raising(leave.check, warn))
        for kind, each in needs.items():  # Ray Train would wait for ever
            if (there := room().get(kind, 0)) < n * each:
                raise UserError(
                    f"recovery.workers={n} need {n * each:g} {kind}s, and the cluster has {there:g}; use fewer"
                )
        told = Queue(actor_options={"num_cpus": 0})
        listeners = {"progress": on_progress, "warning": warn, "failure": failures.append}
        listener = threading.Thread(target=_listen, args=(told, listeners), daemon=True)
        listener.start()
        trainer = TorchTrainer(
            _work,
            train_loop_config={"work": ray.put(work), "told": told},
            scaling_config=ScalingConfig(num_workers=n, use_gpu=on_gpu, resources_per_worker=needs),
            run_config=RunConfig(storage_path=str(scratch)),
        )
        try:
            fitted: Any = trainer.fit()
        except (TrainingFailedError, RayError) as error:  # the latter when an actor of Ray Train's dies
            with suppress(RayError):  # the queue may have been on it too
                told.put(None)
            listener.join()
            for failure in failures:
                if isinstance(failure, UserError | EvaluationError) or is_out_of_memory(failure):
                    raise failure from error
            raise EvaluationError(  # of which the others may tell first: connection reset by peer
                f"a worker of recovery.workers={n} has died ({last_line(failures[0] if failures else error)}); "
                "the same command goes on from the last checkpoint"
            ) from error
        told.put(None)
        listener.join()
        found: T = fitted.return_value
        return found


def _work(config: dict[str, Any]) -> Any:
    """Run the function in one of the processes, and tell how it fails."""
    told: Queue = config["told"]
    is_first = ray.train.get_context().get_world_rank() == 0

    def tell(kind: str) -> Tell:
        return lambda line: told.put((kind, line)) if is_first else None

    try:
        return ray.get(config["work"])(tell("progress"), tell("warning"))
    except Exception as error:
        told.put(("failure", error))
        raise


def _listen(told: Queue, listeners: dict[str, Callable[[Any], None]]) -> None:
    with suppress(RayError):  # Ray has died, which is said elsewhere
        while (message := told.get()) is not None:
            kind, value = message
            listeners[kind](value)
