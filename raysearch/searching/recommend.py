"""How many layers can go: the best mask of each size against a budget, after a search or by ``remove=auto`` in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raysearch.core.estimate import error_of_median
from raysearch.core.formatting import count
from raysearch.core.formatting import size as size_text
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.paths import option_of
from raysearch.core.problem import AUTO, Problem
from raysearch.errors import UserError
from raysearch.evaluation.session import EvaluationSession
from raysearch.ledger.assessments import assessments_with
from raysearch.ledger.ledger import Ledger
from raysearch.searching.recommendation import Budget, Recommendation, SizeFacts, Speed, Z, memory_text
from raysearch.searching.recorder import SearchRecorder
from raysearch.searching.result import SearchResult
from raysearch.searching.trial import Trial, best_by_size

_OTHER_SIZES = "give a larger budget, or search other numbers of layers with remove=1..M"
_SPEED, _MEMORY = "decode_tokens_per_s", "peak_memory_bytes"  # in the ledger's results of the speed assessment

#: Measures the speed and the memory of masks beside the dense model's; none if speed is not to be measured.
SpeedMeter = Callable[[EvaluationSession, Sequence[Mask]], Mapping[Mask, Speed]]


@dataclass(frozen=True)
class BudgetedSearch:
    """A search by budget that has started; its problem has as many layers to remove as may go."""

    budget: Budget
    problem: Problem
    session: EvaluationSession
    recorder: SearchRecorder
    meter: SpeedMeter

    def check(self) -> None:
        """Refuse a budget that no mask meets: one of a readout that is not there, or of too large a gain."""
        check_readout(self.budget, self.session.measure)
        if not self.budget.gains:
            return
        smallest_first = sorted(self.problem.free, key=self.session.info.layer_parameters.__getitem__)
        mask = Mask.of(*smallest_first[-self.problem.n_remove :])
        speed = self.meter(self.session, [mask])[mask]
        _check_memory(self.budget, speed)
        facts = facts_of(mask, 0.0, 0.0, self.session.measure, self.budget, speed=speed)
        if missed := [self.budget.word(part) for part in facts.misses if part in self.budget.gains]:
            raise UserError(
                f"no mask meets {' and '.join(missed)}: without {count(len(mask), 'layer')}, the most that may go, "
                f"{self.session.info.model.label} is {speed.speedup:.2f} times as fast, "
                f"memory {memory_text(speed, self.budget)}; ask for less"
            )

    def found(self) -> Mask | None:
        """Return the best mask of the last round if the budget is spent, at which the search ends; else None.

        Where the budget names what may be lost, it is spent when that mask may lose more; else when it surely gains
        enough.
        """
        best = self._best()
        if not best:
            return None
        mask, only_gains = best[-1].mask, self.budget.only_gains
        speed = self.meter(self.session, [mask])[mask] if only_gains else None
        losses = self.recorder.losses[mask], self.recorder.dense_loss
        (error,) = self.session.delta_errors([mask])
        facts = facts_of(mask, *losses, self.session.measure, self.budget, error=error, speed=speed)
        is_spent = facts.keeps if only_gains else not {"loss", "readout"}.isdisjoint(facts.misses + facts.unsure)
        return mask if is_spent else None

    def recommend(self, result: SearchResult) -> Recommendation:
        """Return the number of layers to remove, as `recommend`."""
        measured = self.meter(self.session, [trial.mask for trial in self._best()])
        return recommend(result, self.budget, self.session.ledger, measured)

    def _best(self) -> tuple[Trial, ...]:
        """Return the best trial of each size so far, ascending."""
        return best_by_size(self.recorder.trials, self.problem.n_remove)


def recommend(
    result: SearchResult, budget: Budget, ledger: Ledger, measured: Mapping[Mask, Speed] | None = None
) -> Recommendation:
    """Return the number of layers to remove: of those that keep to the budget, the largest that only loses what it may.

    Where the budget names only what must be gained, it is the smallest that gains that. What has an error keeps to the
    budget only beyond that. Speeds of masks that are not
    `measured` now are those of the search's own recommendation, or in the ledger.

    Raises:
        UserError: The budget is of something that was not measured, or no size keeps to it.
    """
    check_readout(budget, result.measure)
    sizes = _sizes(result, budget, ledger, measured or {})
    for part in budget.gains:
        if all(part in size.unknown for size in sizes):
            raise UserError(
                f"{budget.word(part)} needs speeds, and none are recorded for {result.search_id}; measure them "
                f"with: raysearch assess {result.search_id} --remove M assess=none assess.speed.enabled=true"
                + option_of(result.config)
            )
    for size in sizes:
        if size.speed is not None:
            _check_memory(budget, size.speed)
    good = [size for size in sizes if size.keeps]
    if not good:
        near = _nearest(sizes)
        remedies = ["give another budget" if result.config["remove"] == AUTO else _OTHER_SIZES]
        if not near.misses and not near.unknown:
            remedies.insert(0, _more_exact(near.unsure))
        raise UserError(
            f"SEARCH={result.search_id} has no mask within {budget}; the nearest, of "
            f"{count(near.n_removed, 'layer')}, {_shortfall(near)}: {_facts(near, budget, result.measure)}; "
            + ", or ".join(remedies)
        )
    chosen = good[0] if budget.only_gains else good[-1]
    return Recommendation(
        result.search_id,
        result.model,
        result.measure,
        budget,
        result.dense_loss,
        result.dense_readout,
        sizes,
        chosen.n_removed,
        chosen.mask,
        _reason(chosen, sizes, budget, result.measure),
    )


def check_readout(budget: Budget, measure: Measure) -> None:
    """Refuse a budget of a readout where losses have none."""
    if budget.readout is not None and measure.readout is None:
        raise UserError(
            f"{budget.word('readout')} needs a readout, but a loss in {measure.unit} has none; use budget.loss"
        )


def _check_memory(budget: Budget, speed: Speed) -> None:
    """Refuse a budget of memory alone that the dense model keeps to; `speed` is of any mask beside it."""
    dense_bytes = speed.memory_bytes / (1 + speed.memory)
    if budget.given.keys() == {"memory"} and dense_bytes <= budget.given["memory"]:
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
    """Return what is known of a mask, and which parts of a budget it misses.

    `error` is the standard error of the difference of the losses, if it is known; `speed` None if it was not measured.
    """
    delta, readout, dense = loss - dense_loss, measure.read(loss), measure.read(dense_loss)

    def readout_change(at: float) -> float | None:
        if measure.readout is None or dense == 0:
            return None
        return math.copysign((measure.read(at) - dense) / dense, at - dense_loss)

    change_error = None
    if error is not None and readout_change(loss) is not None:
        change_error = abs(measure.read(loss + error) - measure.read(loss - error)) / 2 / abs(dense)
    margin = Z * (error or 0.0)
    reached: dict[str, tuple[float | None, float | None]] = {  # by part what was measured, and the bound of that
        "loss": (delta, delta + margin),
        "readout": (readout_change(loss), readout_change(loss + margin)),
    }
    if speed is not None:
        memory = speed.memory_bytes if budget.is_of_bytes else speed.memory
        reached |= {"speedup": (speed.speedup, speed.speedup - Z * (speed.error or 0.0)), "memory": (memory, memory)}
    known = [part for part in budget.given if reached.get(part, (None,))[0] is not None]

    def missed(part: str, value: float | None) -> bool:
        assert value is not None, "it is known"
        return value < budget.given[part] if part == "speedup" else value > budget.given[part]

    misses = tuple(part for part in known if missed(part, reached[part][0]))
    return SizeFacts(
        len(mask),
        mask,
        loss,
        delta,
        error,
        readout,
        readout_change(loss),
        change_error,
        speed,
        misses,
        unknown=tuple(part for part in budget.given if part not in known),
        unsure=tuple(part for part in known if part not in misses and missed(part, reached[part][1])),
    )


def _sizes(
    result: SearchResult, budget: Budget, ledger: Ledger, measured: Mapping[Mask, Speed]
) -> tuple[SizeFacts, ...]:
    own = () if result.recommendation is None else result.recommendation.sizes
    speeds = _recorded_speeds(result, ledger) | {one.n_removed: one.speed for one in own if one.speed is not None}
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
        if trial.loss is not None  # best masks have one
    )


def _recorded_speeds(result: SearchResult, ledger: Ledger) -> dict[int, Speed]:
    """Return by size how fast it decodes and what memory it needs beside the dense model, where that was measured."""
    masks = {trial.mask: size for size, trial in result.best_by_size.items()}
    last = {Mask(tuple(range(result.n_layers - size, result.n_layers))): size for size in masks.values()}
    sizes = last | masks  # layers of one size are as fast wherever they are
    found: dict[int, Speed] = {}
    measured = assessments_with(ledger, result.fingerprints["model"], _SPEED)
    for mask, values in sorted(measured, key=lambda row: row[0] in masks):  # that of a mask itself counts most
        dense = values.get("dense")
        if mask in sizes and isinstance(dense, Mapping):
            ratios = [theirs / mine for theirs, mine in zip(dense["decode_s"], values["decode_s"], strict=True)]
            memory = values[_MEMORY] / dense[_MEMORY] - 1
            found[sizes[mask]] = Speed(values[_SPEED] / dense[_SPEED], error_of_median(ratios), memory, values[_MEMORY])
    return found


def _reason(chosen: SizeFacts, sizes: Sequence[SizeFacts], budget: Budget, measure: Measure) -> str:
    said = f"{count(chosen.n_removed, 'layer')} can go: {_facts(chosen, budget, measure)}"
    beside, ends = (-1, "smallest") if budget.only_gains else (1, "largest")
    other = next((size for size in sizes if size.n_removed == chosen.n_removed + beside), None)
    if other is None:
        return f"{said}; it is the {ends} number that was searched"
    if other.keeps:
        return said
    why = f"{said}; with {other.n_removed} it {_shortfall(other)}: {_facts(other, budget, measure)}"
    return why if other.misses or other.unknown else f"{why}; {_more_exact(other.unsure)}"


def _shortfall(size: SizeFacts) -> str:
    """Return which parts of the budget a size does not keep to, as the end of a sentence."""
    clauses = [f"misses {part}" for part in _keys(size.misses)]
    clauses += [f"keeps to {part}, but not beyond the error" for part in _keys(size.unsure)]
    clauses += [f"has no measured {part}" for part in size.unknown]
    return " and ".join(clauses)


def _keys(parts: Sequence[str]) -> list[str]:
    return [f"budget.{part}" for part in parts]


def _more_exact(parts: Sequence[str]) -> str:
    """Return how parts of a budget are measured with a smaller error."""
    ways = ["take more samples (data.samples)"] if {"loss", "readout"}.intersection(parts) else []
    ways += ["measure the speed on an idle machine, with more repeats"] if "speedup" in parts else []
    return " and ".join(ways)


def _nearest(sizes: Sequence[SizeFacts]) -> SizeFacts:
    """Return the size that is nearest to a budget which none keeps to."""
    known = [size for size in sizes if not size.unknown] or sizes
    unsure = [size for size in known if not size.misses]
    if unsure:
        return unsure[0]
    loses = {"loss", "readout"}.intersection(*(size.misses for size in known))
    return (min if loses else max)(known, key=lambda size: (size.delta if loses else -len(size.misses), size.n_removed))


def _facts(size: SizeFacts, budget: Budget, measure: Measure) -> str:
    """Return what a size loses and gains, in the terms of the budget."""
    error = "" if size.delta_error is None else f" ± {size.delta_error:.4f}"
    said = [_change(size) + error]
    if budget.readout is not None and size.readout_change is not None:
        change = size.readout_change
        said.append(f"{measure.readout} is {abs(change):.1%} {'better' if change < 0 else 'worse'}")
    if budget.speedup is not None and size.speed is not None:
        spread = "" if size.speed.error is None else f" ± {size.speed.error:.2f}"
        said.append(f"{size.speed.speedup:.2f}{spread} times as fast")
    if budget.memory is not None and size.speed is not None:
        said.append(f"memory {memory_text(size.speed, budget)}")
    return ", ".join(said)


def _change(size: SizeFacts) -> str:
    return f"the loss {'falls' if size.delta < 0 else 'rises'} by {abs(size.delta):.4f}"
