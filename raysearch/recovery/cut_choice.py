"""Chooses the repair of a cut: what can lower the loss is tried, and is taken only if it does on held-out rows.

    linear   a matrix, merged into the last projection before the cut, that predicts what the removed layers added
    bias     a constant in place of the matrix, where that projection has a bias
    scale    then a factor of the hidden state: its mean growth in the removed layers, or the square of that

A repair is taken if the loss on held-out rows falls by more than its standard error.

Sources: ReplaceMe (arXiv 2505.02819) for the matrix; Prune&Comp (arXiv 2507.18212) for the factor; FLAP (arXiv
2312.11983) for the bias.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from raysearch.core.cut import Cut
from raysearch.core.paths import atomic_file
from raysearch.models.output_weights import OutputWeights
from raysearch.recovery.cut_jobs import CutRepair, LossJob, Row, SumsJob
from raysearch.recovery.linear_map import CutSums, LinearMap, solve, solve_constant
from raysearch.recovery.progress import run_jobs
from raysearch.recovery.recovery_record import RepairedCut
from raysearch.recovery.repaired_model import RepairedModel
from raysearch.recovery.spec import RecoveryOptions
from raysearch.recovery.trainer import TrainingRows
from raysearch.stats.estimates import mean

_MOST_ROWS = 8  # of a job
_LEAST_JOBS = 8  # for rows that are fewer; enough for several replicas

MOST_TRIED = 4  # at each cut: a matrix, a constant, and two scales

#: The loss of each row in nats, [rows].
Losses: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CutChoice:
    """What was chosen for a cut.

    Args:
        repair: The repair; an empty one if none lowers the loss.
        record: What is said of it.
        losses: The loss of each held-out row with it.
    """

    repair: CutRepair
    record: RepairedCut
    losses: Losses


@dataclass(frozen=True)
class CutChooser:
    """Chooses the repairs of the cuts of a model.

    Args:
        model: The pruned model.
        data: The rows; held-out rows come first.
        options: What to try, and how many rows are held out.
        folder: The folder of the sums over rows, so that they are not computed again.
    """

    model: RepairedModel
    data: TrainingRows
    options: RecoveryOptions
    folder: Path

    @cached_property
    def _rows(self) -> list[Row]:
        """All rows; those that are held out come first."""
        return [Row(tuple(row.ids), start) for row, start in zip(self.data.rows, self.data.starts, strict=True)]

    @cached_property
    def held_out(self) -> list[Row]:
        """The rows that decide what is taken."""
        return self._rows[: self.options.n_held_out(len(self._rows))]

    @cached_property
    def fitted(self) -> list[Row]:
        """The rows that maps and scales are fitted to."""
        return self._rows[len(self.held_out) :]

    def choose(self, cut: Cut, repairs: Mapping[Cut, CutRepair], losses_before: Losses | None) -> CutChoice:
        """Try what may repair a cut, and return what lowers the loss on the held-out rows.

        Args:
            cut: The cut.
            repairs: The repairs of the cuts before it.
            losses_before: The loss of each held-out row with these repairs; None if it is not known.

        Returns:
            The choice.

        Raises:
            UnsupportedModelError: The layers have no halves, or no weights were found that a repair can change.
        """
        no_map = self._why_no_map(cut)
        no_scale = self._why_no_scale(cut)
        fitted = self._sums(cut, repairs, "fitted", self.fitted)
        held_out = self._sums(cut, repairs, "held-out", self.held_out)
        maps = []
        if cut.before is not None and not no_map:
            maps = self._maps(self.model.outputs[cut.before], fitted, held_out)
        candidates = [CutRepair(), *(self.model.merged(cut, linear_map) for linear_map, _ in maps)]
        losses = self._losses(cut, repairs, candidates, [] if losses_before is None else [losses_before])
        best = _best(losses)
        chosen = candidates[best]
        chosen_losses = losses[best]
        not_tried = "; ".join(filter(None, [no_map, no_scale]))
        record = RepairedCut(str(cut), self._per_token(losses[0]), self._per_token(chosen_losses), not_tried=not_tried)
        if best > 0:
            linear_map, ridge = maps[best - 1]
            explained = None if ridge is None else 1 - held_out.error(linear_map)
            record = replace(record, ridge=ridge, explained=explained, has_bias=bool(linear_map.constant.any()))
        if "scale" in self.options.repairs and not no_scale:
            growth = fitted.mean_growth
            candidates = [chosen, *(replace(chosen, scale=scale) for scale in (growth, growth**2))]
            losses = self._losses(cut, repairs, candidates, [chosen_losses])
            best = _best(losses)
            chosen = candidates[best]
            chosen_losses = losses[best]
            record = replace(record, scale=chosen.scale, held_out=self._per_token(chosen_losses))
        return CutChoice(chosen, record, chosen_losses)

    def _why_no_map(self, cut: Cut) -> str:
        """Return why no matrix and no constant can be tried at a cut; empty if they can."""
        if not {"linear", "bias"}.intersection(self.options.repairs):
            return ""
        if cut.before is None:
            return "no layer stays before it to hold a map"
        if not self.model.outputs[cut.before].can_be_mapped:
            return f"a norm follows the projection of {cut.before}, so no map can be merged into it"
        if "linear" not in self.options.repairs and self.model.outputs[cut.before].bias is None:
            return f"the projection of {cut.before} has no bias"
        return ""

    def _why_no_scale(self, cut: Cut) -> str:
        """Return why no scale can be tried at a cut; empty if one can."""
        if "scale" not in self.options.repairs:
            return ""
        if cut.after is None:
            return "the norm after it ignores a scale"
        return "" if self.model.ignores_size else "the layers do not begin with a norm, so no weights can hold a scale"

    def _maps(self, outputs: OutputWeights, fitted: CutSums, held_out: CutSums) -> list[tuple[LinearMap, float | None]]:
        """Return the maps to try, each with its ridge; a constant alone has none.

        Args:
            outputs: The weights before the cut.
            fitted: The sums to fit.
            held_out: The sums by which the ridge is chosen.

        Returns:
            At most a matrix and a constant.
        """
        has_bias = outputs.bias is not None and "bias" in self.options.repairs
        maps: list[tuple[LinearMap, float | None]] = []
        if "linear" in self.options.repairs:
            solutions = [(solve(fitted, ridge, has_bias), ridge) for ridge in self.options.ridges]
            maps.append(min(solutions, key=lambda solution: held_out.error(solution[0])))
        if has_bias:
            maps.append((solve_constant(fitted), None))
        return maps

    def remove_sums(self, cut: Cut) -> None:
        """Delete the sums at a cut whose repair is chosen."""
        shutil.rmtree(self._folder_of_sums(cut), ignore_errors=True)

    def _folder_of_sums(self, cut: Cut) -> Path:
        return self.folder / f"sums-{cut.removed[0].position}"

    def _sums(self, cut: Cut, repairs: Mapping[Cut, CutRepair], name: str, rows: Sequence[Row]) -> CutSums:
        """Return the sums over rows at a cut. Those of each job are kept until the cut's repair is chosen."""
        folder = self._folder_of_sums(cut)
        folder.mkdir(exist_ok=True)
        jobs = [SumsJob(first, part, self.model.mask, cut, repairs) for first, part in _parts(rows)]
        files = {job: folder / f"{name}-{job.first}-{len(job.rows)}.npz" for job in jobs}
        missing = [job for job in jobs if not files[job].is_file()]
        for job, sums in run_jobs(missing, self.model.replicas, f"sums at {cut}", self.model.on_progress):
            with atomic_file(files[job]) as unfinished, unfinished.open("wb") as stream:
                np.savez(stream, **asdict(sums))
        return CutSums.total(map(_read_sums, files.values()))

    def _losses(
        self,
        cut: Cut,
        repairs: Mapping[Cut, CutRepair],
        candidates: Sequence[CutRepair],
        first_losses: Sequence[Losses],
    ) -> npt.NDArray[np.float64]:
        """Return the loss of each held-out row with each of several repairs of a cut, in nats, [candidates, rows].

        Args:
            cut: The cut.
            repairs: The repairs of the cuts before it.
            candidates: The repairs to compare.
            first_losses: The losses with the first of them, which are not computed again.

        Returns:
            The losses.
        """
        other_candidates = tuple(candidates[len(first_losses) :])
        if not other_candidates:
            return np.vstack(first_losses)
        parts = _parts(self.held_out)
        jobs = [LossJob(first, part, self.model.mask, cut, repairs, other_candidates) for first, part in parts]
        by_job = dict(run_jobs(jobs, self.model.replicas, f"losses at {cut}", self.model.on_progress))
        return np.vstack([*first_losses, np.concatenate([by_job[job] for job in jobs], axis=1)])

    def _per_token(self, losses: Losses) -> float:
        """Return the summed loss of the held-out rows in nats per token."""
        return float(losses.sum() / sum(len(row.ids) - row.start for row in self.held_out))


def _parts(rows: Sequence[Row]) -> Iterator[tuple[int, tuple[Row, ...]]]:
    """Yield the rows of each job, with the index of its first row."""
    n_rows = min(_MOST_ROWS, math.ceil(len(rows) / _LEAST_JOBS))
    for first in range(0, len(rows), n_rows):
        yield first, tuple(rows[first : first + n_rows])


def _best(losses: npt.NDArray[np.float64]) -> int:
    """Return the repair with the lowest loss; 0 if it is not lower than that of repair 0 by more than a standard error.

    A single row has no standard error, so it decides for repair 0.

    Args:
        losses: The loss of each row with each repair, [repairs, rows].

    Returns:
        The index of the repair.
    """
    totals = losses.sum(axis=1)
    best = int(np.where(np.isfinite(totals), totals, np.inf).argmin())
    gain = mean([float(difference) for difference in losses[0] - losses[best]])
    return best if gain.error is not None and gain.value > gain.error else 0


def _read_sums(file: Path) -> CutSums:
    with np.load(file) as saved:
        return CutSums(
            saved["inputs"], saved["products"], float(saved["targets"]), float(saved["growth"]), int(saved["n_tokens"])
        )
