"""The work of replicas for a repair: sums over tokens at a cut, and losses of the model with a repair there.

Both run the dense model without the layers of a mask, and with the repairs of earlier cuts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import override

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.base import sum_by_sample, token_log_probs
from raysearch.core.cut import Cut
from raysearch.core.mask import PARTS, Half, Mask
from raysearch.core.site import Run
from raysearch.errors import UnsupportedModelError
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job
from raysearch.models.layers import State
from raysearch.models.output_weights import OutputWeights, find_output_weights, with_values
from raysearch.models.stack import LayerStack, predicting
from raysearch.models.verification import verify_scales
from raysearch.recovery.linear_map import CutSums

_ROWS_AT_ONCE = 8


@dataclass(frozen=True)
class Row:
    """A row of tokens.

    Args:
        ids: The tokens.
        start: The first token that is scored.
    """

    ids: tuple[int, ...]
    start: int


@dataclass(frozen=True, eq=False)
class CutRepair:
    """The repair of a cut: new weights before it, and a factor after it.

    Args:
        values: New values of the output weights of the half before the cut, by name within its layer; empty for none.
        scale: The factor of the hidden state after the cut.
    """

    values: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    scale: float = 1.0


@dataclass(frozen=True)
class OutputsJob(Job):
    """Find the output weights of halves of the dense model."""

    halves: tuple[Half, ...]

    @override
    @torch.no_grad()
    def run(self, replica: Replica) -> dict[Half, OutputWeights]:
        stack = replica.stack
        try:
            stack.halves  # noqa: B018 they are found on first use
        except UnsupportedModelError as error:
            raise UnsupportedModelError(
                f"recovery.method=closed_form repairs layers that add their attention, then their MLP; those of "
                f"{stack.kind} do not; use recovery.method=lora"
            ) from error
        captured, state = stack.random_state()
        return {half: find_output_weights(stack, half, state, captured) for half in self.halves}

    def __str__(self) -> str:
        return "the output weights of the layers"


@dataclass(frozen=True)
class ScalesJob(Job):
    """Check whether the layers of the dense model ignore the size of the hidden state."""

    @override
    def run(self, replica: Replica) -> bool:
        try:
            verify_scales(replica.stack)
        except UnsupportedModelError:
            return False
        return True

    def __str__(self) -> str:
        return "a hidden state of twice the size"


@dataclass(frozen=True)
class _CutJob(Job):
    """A job on rows at a cut.

    Args:
        first: The index of the first row.
        rows: The rows.
        mask: The removed layers and halves.
        cut: The cut.
        repairs: The repairs of the cuts before it.
    """

    first: int
    rows: tuple[Row, ...]
    mask: Mask
    cut: Cut
    repairs: Mapping[Cut, CutRepair] = field(compare=False)

    @property
    @override
    def size(self) -> int:
        return sum(len(row.ids) for row in self.rows)

    def _batches(self) -> Iterator[Batch]:
        """Yield the rows in batches without padding."""
        for length, group in itertools.groupby(self.rows, key=lambda row: len(row.ids)):
            rows = [*group]
            scored = [[place >= row.start for place in range(length)] for row in rows]
            yield from Batch.of([row.ids for row in rows], scored).at_most(_ROWS_AT_ONCE)

    @contextmanager
    def _repaired(self, stack: LayerStack) -> Iterator[None]:
        """Let the half before each earlier cut compute from its repaired weights within the context."""
        with ExitStack() as contexts:
            for cut, repair in self.repairs.items():
                contexts.enter_context(_with_repair(stack, cut, repair))
            yield

    def _scaled(self, run: Run, state: State) -> State:
        """Return the state that enters a run: scaled, if a cut with a factor ends there."""
        for cut, repair in self.repairs.items():
            if cut.after == _first_half(run):
                return state.scaled(repair.scale)
        return state


@dataclass(frozen=True)
class SumsJob(_CutJob):
    """Sum over tokens what the removed layers of a cut add, beside what the half before the cut adds."""

    @override
    @torch.no_grad()
    def run(self, replica: Replica) -> CutSums:
        stack = replica.stack
        with self._repaired(stack):
            return CutSums.total([self._sums(stack, batch) for batch in self._batches()])

    def _sums(self, stack: LayerStack, batch: Batch) -> CutSums:
        captured = stack.capture(batch.inputs)
        state = captured.embedded
        half_input = state.hidden  # what enters the half before the cut
        for run in _halves_before(stack, self.mask, self.cut):
            state = self._scaled(run, state)
            half_input = state.hidden
            state = stack.run(run, state.clone(), captured, compiled=False)
        before = state.hidden
        for run in _runs_of(self.cut.removed):
            state = stack.run(run, state.clone(), captured, compiled=False)
        after = state.hidden.flatten(0, 1).double()
        before = before.flatten(0, 1).double().to(after.device)
        added = before - half_input.flatten(0, 1).double().to(after.device)
        roots = after.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny).reciprocal()
        inputs = roots * torch.cat([added, torch.ones_like(roots)], dim=1)
        targets = roots * (after - before)
        growth = after.norm(dim=-1) / before.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
        return CutSums(
            inputs=(inputs.T @ inputs).cpu().numpy(),
            products=(inputs.T @ targets).cpu().numpy(),
            targets=targets.square().sum().item(),
            growth=growth.sum().item(),
            n_tokens=len(after),
        )

    def __str__(self) -> str:
        return f"sums at the cut {self.cut} on rows {self.first} … {self.first + len(self.rows) - 1}"


@dataclass(frozen=True)
class LossJob(_CutJob):
    """Compute the losses of rows with each of several repairs of a cut; later cuts are not repaired.

    Args:
        candidates: The repairs to compare.
    """

    candidates: tuple[CutRepair, ...] = field(compare=False, default=())

    @override
    @torch.no_grad()
    def run(self, replica: Replica) -> npt.NDArray[np.float64]:
        """Return the summed loss of each row in nats, [candidates, rows]."""
        stack = replica.stack
        with self._repaired(stack):
            return np.concatenate([self._losses(stack, batch) for batch in self._batches()], axis=1)

    def _losses(self, stack: LayerStack, batch: Batch) -> npt.NDArray[np.float64]:
        captured = stack.capture(batch.inputs)
        state = captured.embedded
        runs = [*_halves_before(stack, self.mask, self.cut)]
        for run in runs[:-1]:
            state = stack.run(run, self._scaled(run, state), captured, compiled=False)
        runs_after = [
            run for run in stack.sites.runs(self.mask) if self.cut.after and _first_half(run) >= self.cut.after
        ]
        losses = []
        for candidate in self.candidates:
            after = state.clone()
            with _with_repair(stack, self.cut, candidate):
                for run in runs[-1:]:  # the half before the cut; none if the cut is the beginning of the model
                    after = stack.run(run, self._scaled(run, after), captured, compiled=False)
            after = after.scaled(candidate.scale)
            for run in runs_after:
                after = stack.run(run, after, captured, compiled=False)
            states = predicting(after.hidden, batch.inputs).to(stack.last_device)
            losses.append(-sum_by_sample(batch, token_log_probs(states, batch, stack)))
        return torch.stack(losses).cpu().numpy()

    def __str__(self) -> str:
        return f"losses at the cut {self.cut} on rows {self.first} … {self.first + len(self.rows) - 1}"


def _halves_before(stack: LayerStack, mask: Mask, cut: Cut) -> Iterator[Run]:
    """Yield what runs before a cut: layers and halves, and at last the half before the cut by itself."""
    if cut.before is None:
        return
    layer, part = cut.before
    for run in stack.sites.runs(mask):
        if run == Run(layer) and part == "mlp":
            yield from (Run(layer, part) for part in PARTS)
        else:
            yield run
        if run.layer == layer:
            return


def _runs_of(halves: Sequence[Half]) -> Iterator[Run]:
    """Yield what runs consecutive halves: layers, and halves of other layers."""
    for layer, group in itertools.groupby(halves, key=lambda half: half.layer):
        parts = [half.part for half in group]
        yield Run(layer, None if len(parts) == len(PARTS) else parts[0])


def _first_half(run: Run) -> Half:
    return Half(run.layer, run.part or PARTS[0])


def _with_repair(stack: LayerStack, cut: Cut, repair: CutRepair) -> AbstractContextManager[None]:
    """Let the half before a cut compute from its repaired weights within the context."""
    if cut.before is None:
        return nullcontext()
    values = {name: torch.from_numpy(value) for name, value in repair.values.items()}
    return with_values(stack.layers[cut.before.layer], values)
