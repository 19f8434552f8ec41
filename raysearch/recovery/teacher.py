"""The dense model's next-token distributions, reduced to their likeliest tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from raysearch.calibration.batch import Batch
from raysearch.core.mask import Mask
from raysearch.core.paths import atomic_file
from raysearch.evaluation.pool import Pool
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job
from raysearch.recovery.progress import run_jobs
from raysearch.recovery.prompts import TrainingRow

ROWS_PER_JOB = 8  # each job has one file
_POSITIONS = 512  # positions whose logits are computed at once: 0.3 GB for a vocabulary of 152 thousand


@dataclass(frozen=True)
class TopLogits:
    """The dense model's likeliest tokens at the scored positions of one row.

    Args:
        ids: The likeliest tokens, int32, [n, k].
        log_p: Their log-probabilities over the whole vocabulary in nats, float16, [n, k].
    """

    ids: npt.NDArray[np.int32]
    log_p: npt.NDArray[np.float16]


@dataclass(frozen=True)
class TeacherJob(Job):
    """A job that runs the dense model on rows.

    Args:
        first: The index of the first row.
        rows: The tokens of each row.
        starts: The first scored position of each row.
        top_k: The number of tokens to keep at each position.
    """

    first: int
    rows: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    top_k: int

    @override
    @torch.no_grad()
    def run(self, replica: Replica) -> list[TopLogits]:
        stack = replica.stack
        results = []
        for ids, start in zip(self.rows, self.starts, strict=True):
            inputs = Batch.of([ids], [[index >= start for index in range(len(ids))]]).inputs
            hidden = stack.walk(stack.capture(inputs), Mask())[0, start - 1 : -1]
            k = min(self.top_k, stack.vocab_size)
            parts = [stack.logits(part).float().log_softmax(-1).topk(k) for part in hidden.split(_POSITIONS)]
            log_p, likeliest = map(torch.cat, zip(*parts, strict=True))
            results.append(TopLogits(likeliest.cpu().numpy().astype(np.int32), log_p.cpu().numpy().astype(np.float16)))
        return results

    def __str__(self) -> str:
        return f"the dense model's logits on rows {self.first} … {self.first + len(self.rows) - 1}"


def top_logits_of(
    rows: Sequence[TrainingRow],
    starts: Sequence[int],
    top_k: int,
    folder: Path,
    replicas: Callable[[], Pool],
    on_progress: Callable[[str], None],
) -> list[TopLogits]:
    """Return the dense model's likeliest tokens at the scored positions of each row.

    Args:
        rows: The rows.
        starts: The first scored position of each row.
        top_k: The number of tokens to keep at each position.
        folder: The folder of the results; results in it are not computed again.
        replicas: Returns the pool; called only if a result is missing.
        on_progress: Receives a line after each job.

    Returns:
        The tokens and logits of each row, in the order of the rows.
    """
    folder.mkdir(exist_ok=True)
    jobs = []
    for first in range(0, len(rows), ROWS_PER_JOB):
        part = slice(first, first + ROWS_PER_JOB)
        jobs.append(TeacherJob(first, tuple(row.ids for row in rows[part]), tuple(starts[part]), top_k))
    missing = [job for job in jobs if not _file(folder, job).exists()]
    for job, job_logits in run_jobs(missing, replicas, "logits of the teacher", on_progress):
        arrays: dict[str, Any] = {}  # NumPy declares a flag among the names of arrays
        for index, row_logits in enumerate(job_logits):
            arrays |= {f"ids{index}": row_logits.ids, f"log_p{index}": row_logits.log_p}
        with atomic_file(_file(folder, job)) as unfinished, unfinished.open("wb") as stream:
            np.savez(stream, **arrays)
    top_logits = []
    for job in jobs:
        with np.load(_file(folder, job)) as saved:
            top_logits += [TopLogits(saved[f"ids{index}"], saved[f"log_p{index}"]) for index in range(len(job.rows))]
    return top_logits


def distillation_loss(logits: Tensor, ids: Tensor, log_p: Tensor) -> Tensor:
    """Return the KL divergence from the dense model's distribution. All tokens that are not among `ids` count as one.

    Args:
        logits: The logits of the model in training, [n, vocabulary].
        ids: The dense model's likeliest tokens, int64, [n, k].
        log_p: Their log-probabilities, float32, [n, k].

    Returns:
        Nats at each token, [n].
    """
    log_q = logits.float().log_softmax(-1).gather(-1, ids)
    p = log_p.exp()
    top = torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)  # a token of probability 0 contributes nothing
    rest_p = (1 - log_p.exp().sum(-1)).clamp_min(1e-6)
    rest_q = (1 - log_q.exp().sum(-1)).clamp_min(1e-6)
    return top + rest_p * (rest_p.log() - rest_q.log())


def whole_distillation_loss(logits: Tensor, dense_logits: Tensor) -> Tensor:
    """Return the KL divergence from the dense model's distribution over the whole vocabulary.

    Args:
        logits: The logits of the model in training, [n, vocabulary].
        dense_logits: The dense model's logits, [n, vocabulary].

    Returns:
        Nats at each token, [n].
    """
    log_q = logits.float().log_softmax(-1)
    log_p = dense_logits.float().log_softmax(-1)
    return functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)


def _file(folder: Path, job: TeacherJob) -> Path:
    return folder / f"{job.first:08d}.npz"
