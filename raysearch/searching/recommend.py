"""Recommends how many layers to remove: the best masks of all sizes, compared with a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.problem import AUTO, Problem
from raysearch.core.trial import Trial, best_by_size
from raysearch.errors import UserError
from raysearch.evaluation.session import EvaluationSession
from raysearch.ledger.assessments import assessments_with
from raysearch.ledger.ledger import Ledger
from raysearch.searching.recommendation import Budget, Recommendation, SizeFacts, Speed, Z, memory_text
from raysearch.searching.result import SearchResult
from raysearch.searching.search_recorder import SearchRecorder
from raysearch.stats.estimates import error_of_median
from raysearch.text.numbers import count
from raysearch.text.numbers import size as size_text

_OTHER_SIZES = "give a larger budget, or search other numbers of layers with remove=1..M"
_SPEED = "decode_tokens_per_s"  # a key of the recorded results of the speed assessment
_MEMORY = "peak_memory_bytes"  # another key

#: Measures the speed and the memory of masks relative to the dense model; returns nothing if speed is not measured.
SpeedMeter = Callable[[EvaluationSession, Sequence[Mask]], Mapping[Mask, Speed]]


def unmeasured(session: EvaluationSession, masks: Sequence[Mask]) -> Mapping[Mask, Speed]:
    """Return no speeds: the meter of a search that measures none.

    Args:
        session: The session of the search; not used.
        masks: The masks; not used.

    Returns:
        An empty mapping.
    """
    return {}


@dataclass(frozen=True)
class BudgetedSearch:
    """A search by budget that has started.

    Args:
        budget: The budget.
        problem: The space of legal masks; its `n_remove` is the largest number of layers.
        session: Evaluates masks.
        recorder: The trials so far.
        meter: Measures speeds.
    """

    budget: Budget
    problem: Problem
    session: EvaluationSession
    recorder: SearchRecorder
    meter: SpeedMeter

    def check(self) -> None:
        """Check the budget before the first round.

        Raises:
            UserError: No mask can keep to the budget: there is no readout, or a gain is too large.
        """
        check_readout(self.budget, self.session.measure)
        if not self.budget.gains:
            return
        groups = self.problem.of_groups
        smallest_first = sorted(groups.free, key=lambda group: groups.sites[group].parameters)
        mask = groups.sites.layers_of(Mask.of(*smallest_first[-groups.n_remove :]))
        speed = self.meter(self.session, [mask])[mask]
        _check_memory(self.budget, speed)
        facts = facts_of(mask, 0.0, 0.0, self.session.measure, self.budget, speed=speed)
        if missed := [self.budget.word(part) for part in facts.misses if part in self.budget.gains]:
            raise UserError(
                f"no mask meets {' and '.join(missed)}: without {count(len(mask), 'layer')}, the most that may go, "
                f"{self.session.info.model.label} is {speed.speedup:.2f} times as fast, "
                f"memory {memory_text(speed, self.budget)}; ask for less"
            )

    def mask_at_end(self) -> Mask | None:
        """Return the best mask of the last round if the budget is spent, so that the search ends; else None.

        If the budget limits losses, it is spent when that mask may lose more. If it has only gains, it is spent when
        that mask certainly gains enough.
        """
        best = self._best()
        if not best:
            return None
        mask = best[-1].mask
        only_gains = self.budget.only_gains
        speed = self.meter(self.session, [mask])[mask] if only_gains else None
        (error,) = self.session.delta_errors([mask])
        facts = facts_of(
            mask,
            self.recorder.losses[mask],
            self.recorder.dense_loss,
            self.session.measure,
            self.budget,
            error=error,
            speed=speed,
        )
        may_lose_more = not {"loss", "readout"}.isdisjoint(facts.misses + facts.unsure)
        is_spent = facts.keeps if only_gains else may_lose_more
        return mask if is_spent else None

    def recommend(self, result: SearchResult) -> Recommendation:
        """Return the recommended number of layers to remove (see the function `recommend`)."""
        measured = self.meter(self.session, [trial.mask for trial in self._best()])
        return recommend(result, self.budget, self.session.ledger, measured)

    def _best(self) -> tuple[Trial, ...]:
        """Return the best trial of each size so far, ascending."""
        return best_by_size(self.recorder.trials, self.problem.n_remove)


def recommend(
    result: SearchResult, budget: Budget, ledger: Ledger, measured: Mapping[Mask, Speed] | None = None
) -> Recommendation:
    """Return the recommended number of layers to remove.

    If the budget limits losses, this is the largest number of layers that keeps to the budget; if it has only gains,
    the smallest. A measurement with a standard error keeps to the budget only beyond that error.

    Args:
        result: The search.
        budget: The budget.
        ledger: The ledger, which may contain speeds.
        measured: Speeds of masks that were measured now. The speeds of other masks come from the recommendation of the
            search, or from the ledger.

    Returns:
        The recommended number of layers with its reason, and the facts of every number.

    Raises:
        UserError: A part of the budget was not measured, or no number of layers keeps to the budget.
    """
    check_readout(budget, result.measure)
    sizes = _sizes(result, budget, ledger, measured or {})
    for part in budget.gains:
        if all(part in size.unknown for size in sizes):
            raise UserError(
                f"{budget.word(part)} needs speeds, and none are recorded for {result.search_id}; measure them "
                f"with: raysearch assess {result.search_id} --remove M assess=none assess.speed.enabled=true"
                + result.settings.places.ledger_option
            )
    for size in sizes:
        if size.speed is not None:
            _check_memory(budget, size.speed)
    keeping = [size for size in sizes if size.keeps]
    if not keeping:
        near = _nearest(sizes)
        remedies = ["give another budget" if result.settings.remove == AUTO else _OTHER_SIZES]
        if not near.misses and not near.unknown:
            remedies.insert(0, _more_exact(near.unsure))
        raise UserError(
            f"SEARCH={result.search_id} has no mask within {budget}; the nearest, of "
            f"{count(near.n_removed, 'layer')}, {_shortfall(near)}: {_facts(near, budget, result.measure)}; "
            + ", or ".join(remedies)
        )
    chosen = keeping[0] if budget.only_gains else keeping[-1]
    return Recommendation(
        search_id=result.search_id,
        model=result.model,
        measure=result.measure,
        budget=budget,
        dense_loss=result.dense_loss,
        dense_readout=result.dense_readout,
        sizes=sizes,
        n_removed=chosen.n_removed,
        removed=chosen.mask,
        reason=_reason(chosen, sizes, budget, result.measure),
    )


def check_readout(budget: Budget, measure: Measure) -> None:
    """Check that losses have a readout if the budget limits it.

    Args:
        budget: The budget.
        measure: The unit of the losses.

    Raises:
        UserError: They have none.
    """
    if budget.readout is not None and measure.readout is None:
        raise UserError(
            f"{budget.word('readout')} needs a readout, but a loss in {measure.unit} has none; use budget.loss"
        )


def _check_memory(budget: Budget, speed: Speed) -> None:
    """Refuse a budget that limits only memory and that the dense model keeps to; `speed` is that of any mask."""
    dense_bytes = speed.memory_bytes / (1 + speed.memory)
    if budget.limits.keys() == {"memory"} and dense_bytes <= budget.limits["memory"]:
        raise UserError(
            f"{budget.word('memory')} is no less than the dense model needs, {size_text(dense_bytes)}, so no layer has "
            "to go; ask for less"
        )


def facts_of(
    mask: Mask,
    loss: float,
    dense_loss: float,
    measure: Measure,
    budget: Budget,
    *,
    error: float | None = None,
    speed: Speed | None = None,
) -> SizeFacts:
    """Return the facts of a mask, and the parts of a budget that it misses.

    Args:
        mask: The mask.
        loss: Its loss.
        dense_loss: The loss of the dense model.
        measure: The unit of the losses.
        budget: The budget.
        error: The standard error of the difference of the losses; None if it is not known.
        speed: The speed of the mask; None if it was not measured.

    Returns:
        The facts, each as an absolute number and relative to the dense model.
    """
    delta = loss - dense_loss
    dense_readout = measure.read(dense_loss)

    def readout_change(at: float) -> float | None:
        if measure.readout is None or dense_readout == 0:
            return None
        return math.copysign((measure.read(at) - dense_readout) / dense_readout, at - dense_loss)

    change_error = None
    if error is not None and readout_change(loss) is not None:
        change_error = abs(measure.read(loss + error) - measure.read(loss - error)) / 2 / abs(dense_readout)
    margin = Z * (error or 0.0)
    values: dict[str, float | None] = {"loss": delta, "readout": readout_change(loss)}
    bounds: dict[str, float | None] = {"loss": delta + margin, "readout": readout_change(loss + margin)}
    if speed is not None:
        memory = speed.memory_bytes if budget.is_of_bytes else speed.memory
        values |= {"speedup": speed.speedup, "memory": memory}
        bounds |= {"speedup": speed.speedup - Z * (speed.error or 0.0), "memory": memory}
    measured = [part for part in budget.limits if values.get(part) is not None]

    def is_missed(part: str, value: float | None) -> bool:
        assert value is not None, "it was measured"
        return value < budget.limits[part] if part == "speedup" else value > budget.limits[part]

    misses = tuple(part for part in measured if is_missed(part, values[part]))
    return SizeFacts(
        n_removed=len(mask),
        mask=mask,
        loss=loss,
        delta=delta,
        delta_error=error,
        readout=measure.read(loss),
        readout_change=readout_change(loss),
        readout_error=change_error,
        speed=speed,
        misses=misses,
        unknown=tuple(part for part in budget.limits if part not in measured),
        unsure=tuple(part for part in measured if part not in misses and is_missed(part, bounds[part])),
    )


def _sizes(
    result: SearchResult, budget: Budget, ledger: Ledger, measured: Mapping[Mask, Speed]
) -> tuple[SizeFacts, ...]:
    """Return the facts of the best mask of each size, ascending."""
    speeds = _recorded_speeds(result, ledger)
    if result.recommendation is not None:
        speeds |= {size.n_removed: size.speed for size in result.recommendation.sizes if size.speed is not None}
    speeds |= {len(mask): speed for mask, speed in measured.items()}
    return tuple(
        facts_of(
            trial.mask,
            trial.loss,
            result.dense_loss,
            result.measure,
            budget,
            error=result.delta_errors.get(size),
            speed=speeds.get(size),
        )
        for size, trial in result.best_by_size.items()
        if trial.loss is not None  # best masks have a loss
    )


def _recorded_speeds(result: SearchResult, ledger: Ledger) -> dict[int, Speed]:
    """Return the recorded speeds and memory relative to the dense model, by number of removed layers."""
    masks = {trial.mask: size for size, trial in result.best_by_size.items()}
    stand_ins = {result.sites.of_same_speed(mask): size for mask, size in masks.items()}
    sizes = stand_ins | masks
    speeds: dict[int, Speed] = {}
    assessments = assessments_with(ledger, result.fingerprints["model"], _SPEED)
    for mask, values in sorted(assessments, key=lambda row: row[0] in masks):  # the mask's own speed overwrites others
        dense = values.get("dense")
        if mask in sizes and isinstance(dense, Mapping):
            ratios = [dense_s / mask_s for dense_s, mask_s in zip(dense["decode_s"], values["decode_s"], strict=True)]
            speeds[sizes[mask]] = Speed(
                speedup=values[_SPEED] / dense[_SPEED],
                error=error_of_median(ratios),
                memory=values[_MEMORY] / dense[_MEMORY] - 1,
                memory_bytes=values[_MEMORY],
            )
    return speeds


def _reason(chosen: SizeFacts, sizes: Sequence[SizeFacts], budget: Budget, measure: Measure) -> str:
    """Return a sentence on the chosen size, and on why the next size does not keep to the budget."""
    sentence = f"{count(chosen.n_removed, 'layer')} can go: {_facts(chosen, budget, measure)}"
    further = [size for size in sizes if size.n_removed > chosen.n_removed]
    extreme = "largest"
    if budget.only_gains:
        further = [size for size in reversed(sizes) if size.n_removed < chosen.n_removed]
        extreme = "smallest"
    neighbour = next(iter(further), None)
    if neighbour is None:
        return f"{sentence}; it is the {extreme} number that was searched"
    if neighbour.keeps:
        return sentence
    sentence += f"; with {neighbour.n_removed} it {_shortfall(neighbour)}: {_facts(neighbour, budget, measure)}"
    if neighbour.misses or neighbour.unknown:
        return sentence
    return f"{sentence}; {_more_exact(neighbour.unsure)}"


def _shortfall(size: SizeFacts) -> str:
    """Return the parts of the budget that a size does not keep to, as the end of a sentence."""
    clauses = [f"misses {part}" for part in _keys(size.misses)]
    clauses += [f"keeps to {part}, but not beyond the error" for part in _keys(size.unsure)]
    clauses += [f"has no measured {part}" for part in size.unknown]
    return " and ".join(clauses)


def _keys(parts: Sequence[str]) -> list[str]:
    return [f"budget.{part}" for part in parts]


def _more_exact(parts: Sequence[str]) -> str:
    """Return what makes the error of parts of a budget smaller."""
    remedies = []
    if "loss" in parts or "readout" in parts:
        remedies.append("take more samples (data.samples)")
    if "speedup" in parts:
        remedies.append("measure the speed on an idle machine, with more repeats")
    return " and ".join(remedies)


def _nearest(sizes: Sequence[SizeFacts]) -> SizeFacts:
    """Return the size that is nearest to a budget to which no size keeps."""
    measured = [size for size in sizes if not size.unknown] or sizes
    unsure = [size for size in measured if not size.misses]
    if unsure:
        return unsure[0]
    if {"loss", "readout"}.intersection(*(size.misses for size in measured)):  # all lose too much
        return min(measured, key=lambda size: (size.delta, size.n_removed))
    return max(measured, key=lambda size: (-len(size.misses), size.n_removed))


def _facts(size: SizeFacts, budget: Budget, measure: Measure) -> str:
    """Return the losses and gains of a size, in the units of the budget."""
    error = "" if size.delta_error is None else f" ± {size.delta_error:.4f}"
    facts = [_loss_change(size) + error]
    if budget.readout is not None and size.readout_change is not None:
        change = size.readout_change
        facts.append(f"{measure.readout} is {abs(change):.1%} {'better' if change < 0 else 'worse'}")
    if budget.speedup is not None and size.speed is not None:
        spread = "" if size.speed.error is None else f" ± {size.speed.error:.2f}"
        facts.append(f"{size.speed.speedup:.2f}{spread} times as fast")
    if budget.memory is not None and size.speed is not None:
        facts.append(f"memory {memory_text(size.speed, budget)}")
    return ", ".join(facts)


def _loss_change(size: SizeFacts) -> str:
    return f"the loss {'falls' if size.delta < 0 else 'rises'} by {abs(size.delta):.4f}"
