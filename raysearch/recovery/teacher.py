"""The dense model's next-token distributions, of which the likeliest tokens are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import override

from raysearch.calibration.batch import Batch
from raysearch.core.formatting import duration
from raysearch.core.mask import Mask
from raysearch.evaluation.pool import Job, Pool
from raysearch.evaluation.replica import Replica
from raysearch.recovery.progress import Pace
from raysearch.recovery.prompts import Row
from raysearch.recovery.whole import is_whole

_AT_ONCE = 8  # rows of a job, and of a file
_POSITIONS = 512  # whose logits there are at once: 0.3 GB of a vocabulary of 152 thousand


@dataclass(frozen=True)
class Teaching:
    """What the dense model says of the scored tokens of one row.

    Args:
        ids: Its likeliest tokens, int32, [n, k].
        log_p: Their log-probabilities over the whole vocabulary in nats, float16, [n, k].
    """

    ids: npt.NDArray[np.int32]
    log_p: npt.NDArray[np.float16]


@dataclass(frozen=True)
class TeacherJob(Job):
    """A job that reads rows with the dense model.

    Args:
        first: The place of the first row.
        rows: The rows.
        starts: The first scored token of each.
        top_k: How many of the likeliest tokens are kept.
    """

    first: int
    rows: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    top_k: int

    @override
    @torch.no_grad()
    def run(self, replica: Replica) -> list[Teaching]:
        stack, found = replica.stack, []
        for ids, start in zip(self.rows, self.starts, strict=True):
            inputs = Batch.of([ids], [[place >= start for place in range(len(ids))]]).inputs
            hidden = stack.walk(stack.capture(inputs), Mask())[0, start - 1 : -1]
            k = min(self.top_k, stack.vocab_size)
            parts = [stack.logits(part).float().log_softmax(-1).topk(k) for part in hidden.split(_POSITIONS)]
            log_p, likeliest = map(torch.cat, zip(*parts, strict=True))
            found.append(Teaching(likeliest.cpu().numpy().astype(np.int32), log_p.cpu().numpy().astype(np.float16)))
        return found

    def __str__(self) -> str:
        return f"the dense model's logits on rows {self.first} … {self.first + len(self.rows) - 1}"


def teach(
    rows: Sequence[Row],
    starts: Sequence[int],
    top_k: int,
    folder: Path,
    replicas: Callable[[], Pool],
    on_progress: Callable[[str], None],
) -> list[Teaching]:
    """Return what the dense model says of each row; what stands in the folder is not computed again.

    The first scored tokens are `starts`, and `replicas` gives the pool when it is first needed.
    """
    folder.mkdir(exist_ok=True)
    jobs = [
        TeacherJob(
            first,
            tuple(row.ids for row in rows[first : first + _AT_ONCE]),
            tuple(starts[first : first + _AT_ONCE]),
            top_k,
        )
        for first in range(0, len(rows), _AT_ONCE)
    ]
    missing, pace = [job for job in jobs if not is_whole(_file(folder, job))], Pace()
    for done, (job, found) in enumerate(filter(None, replicas().run(missing) if missing else ()), start=1):
        _keep(_file(folder, job), found)
        left = duration(pace.left(done, len(missing)))
        on_progress(f"logits of the dense model: {done} of {len(missing)} jobs, {left} left")
    return [one for job in jobs for one in _read(_file(folder, job))]


def distillation_loss(logits: Tensor, ids: Tensor, log_p: Tensor) -> Tensor:
    """Return the KL divergence from the dense model's distribution, in which all but the kept tokens count as one.

    Args:
        logits: Of the model that is trained, [n, vocabulary].
        ids: The dense model's likeliest tokens, int64, [n, k].
        log_p: Their log-probabilities, float32, [n, k].

    Returns:
        Nats at each token, [n].
    """
    log_q = logits.float().log_softmax(-1).gather(-1, ids)
    p = log_p.exp()
    kept = torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)  # what the dense model rules out counts nothing
    rest_p, rest_q = ((1 - one.exp().sum(-1)).clamp_min(1e-6) for one in (log_p, log_q))
    return kept + rest_p * (rest_p.log() - rest_q.log())


def _file(folder: Path, job: TeacherJob) -> Path:
    return folder / f"{job.first:08d}.npz"


def _keep(file: Path, found: Sequence[Teaching]) -> None:
    arrays: dict[str, Any] = {}
    for place, one in enumerate(found):
        arrays |= {f"ids{place}": one.ids, f"log_p{place}": one.log_p}
    unfinished = file.with_name(f"{file.stem}.{os.getpid()}.part")
    with unfinished.open("wb") as stream:
        np.savez(stream, **arrays)
    unfinished.replace(file)


def _read(file: Path) -> list[Teaching]:
    with np.load(file) as arrays:
        return [Teaching(arrays[f"ids{at}"], arrays[f"log_p{at}"]) for at in range(len(arrays.files) // 2)]
