"""Recommends how much to remove: the best masks of all sizes, compared with a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.core.kv_cache import KvCache
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.problem import AUTO, Problem
from raysearch.core.site import Sites
from raysearch.core.space import LAYERS, Space
from raysearch.core.trial import Trial, best_by_size
from raysearch.errors import UserError
from raysearch.evaluation.session import EvaluationSession
from raysearch.ledger.assessments import assessments_with
from raysearch.ledger.ledger import Ledger
from raysearch.searching.recommendation import (
    Budget,
    KvMemory,
    Recommendation,
    SizeFacts,
    Speed,
    Z,
    kv_memory_text,
    latency_text,
    memory_text,
)
from raysearch.searching.result import SearchResult
from raysearch.searching.search_recorder import SearchRecorder
from raysearch.searching.speeds import Summary, speed_of
from raysearch.text.numbers import size as size_text

_LATENCY = "latency_s"  # a key of the recorded numbers of each measured mask
#: The keys of values that are equal for numbers that can be compared.
_CONDITIONS = ("runtime", "arguments", "machine", "threads", "batch", "context_tokens", "new_tokens")

#: Returns the speed and the memory of masks relative to the dense model; nothing if speed is not measured. It is given
#: the session, the space of legal masks, and the masks.
SpeedMeter = Callable[[EvaluationSession, Problem, Sequence[Mask]], Mapping[Mask, Speed]]


def unmeasured(session: EvaluationSession, problem: Problem, masks: Sequence[Mask]) -> Mapping[Mask, Speed]:
    """Return no speeds: the meter of a search that measures none.

    Args:
        session: The session of the search; not used.
        problem: The space of legal masks; not used.
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
        problem: The space of legal masks; its `n_remove` is the largest number of sites.
        session: Evaluates masks.
        recorder: The trials so far.
        meter: Returns speeds.
        kv_cache: The KV cache of the dense model; None if the budget does not limit it.
    """

    budget: Budget
    problem: Problem
    session: EvaluationSession
    recorder: SearchRecorder
    meter: SpeedMeter
    kv_cache: KvCache | None = None

    def check(self) -> None:
        """Check the budget before the first round.

        Raises:
            UserError: No mask can keep to the budget: there is no readout, or a gain is too large.
        """
        check_readout(self.budget, self.session.measure)
        if not self.budget.gains:
            return
        problem = self.problem
        layers = self.session.info.sites

        def without_largest(size: Callable[[int], float]) -> Mask:
            """Return the mask of as many sites as may go, of the largest ones."""
            smallest_first = sorted(problem.free, key=size)
            return problem.sites.mask_of(problem.completed(Mask(), reversed(smallest_first)))

        mask = without_largest(lambda index: problem.sites[index].parameters)
        speed = self._speeds([mask]).get(mask) if self.budget.measured_gains else None
        kv_memory = None
        if (kv_cache := self.kv_cache) is not None:
            most_saved = without_largest(
                lambda index: -kv_cache.size_without(problem.sites.mask_of(Mask.of(index)), layers)
            )
            kv_memory = kv_memory_of(most_saved, kv_cache, layers)
        _check_memory(self.budget, speed)
        _check_maximum(self.budget, problem.space, speed, kv_memory)
        facts = facts_of(
            mask, 0.0, 0.0, self.session.measure, self.budget, problem.space, speed=speed, kv_memory=kv_memory
        )
        if missed := [self.budget.word(part) for part in facts.misses if part in self.budget.gains]:
            raise UserError(
                f"no mask meets {' and '.join(missed)}: without {problem.space.count(facts.n_removed)}, the most that "
                f"may go, {self.session.info.model.label} reaches only: {', '.join(_gains(facts, self.budget))}; ask "
                "for less"
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
        speed = self._speeds([mask]).get(mask) if only_gains and self.budget.measured_gains else None
        (error,) = self.session.delta_errors([mask])
        facts = facts_of(
            mask,
            self.recorder.losses[mask],
            self.recorder.dense_loss,
            self.session.measure,
            self.budget,
            self.problem.space,
            error=error,
            speed=speed,
            kv_memory=self._kv_memory(mask),
        )
        may_lose_more = not {"loss", "readout"}.isdisjoint(facts.misses + facts.unsure)
        is_spent = facts.keeps if only_gains else may_lose_more
        return mask if is_spent else None

    def recommend(self, result: SearchResult) -> Recommendation:
        """Return the recommended size of the mask (see the function `recommend`)."""
        masks = [trial.mask for trial in self._best()]
        # A budget of the KV cache alone is exact, and needs no measurement.
        is_measured = self.budget.measured_gains or self.budget.kv_memory is None
        measured = self._speeds(masks) if is_measured else {}
        return recommend(result, self.budget, self.session.ledger, measured, self.kv_cache)

    def _speeds(self, masks: Sequence[Mask]) -> Mapping[Mask, Speed]:
        return self.meter(self.session, self.problem, masks)

    def _kv_memory(self, mask: Mask) -> KvMemory | None:
        return None if self.kv_cache is None else kv_memory_of(mask, self.kv_cache, self.session.info.sites)

    def _best(self) -> tuple[Trial, ...]:
        """Return the best trial of each size so far, ascending."""
        return best_by_size(self.recorder.trials, self.problem.size, self.problem.space)


def kv_memory_of(mask: Mask, kv_cache: KvCache, sites: Sites) -> KvMemory:
    """Return the size of the KV cache of a mask.

    Args:
        mask: The mask.
        kv_cache: The KV cache of the dense model.
        sites: The layers of the dense model.

    Returns:
        The size, and its change relative to the dense model.
    """
    size_bytes = kv_cache.size_without(mask, sites)
    return KvMemory(size_bytes, size_bytes / kv_cache.size_without(Mask(), sites) - 1)


def recommend(
    result: SearchResult,
    budget: Budget,
    ledger: Ledger,
    measured: Mapping[Mask, Speed] | None = None,
    kv_cache: KvCache | None = None,
) -> Recommendation:
    """Return the recommended size of the mask: the number of layers to remove, or of pairs or halves.

    If the budget limits losses, this is the largest size that keeps to the budget; if it has only gains, the smallest.
    A measurement with a standard error keeps to the budget only beyond that error.

    Args:
        result: The search.
        budget: The budget.
        ledger: The ledger, which may contain speeds.
        measured: Speeds of masks that were measured now. The speeds of other masks come from the recommendation of the
            search, or from the ledger.
        kv_cache: The KV cache of the dense model; None if the budget does not limit it.

    Returns:
        The recommended size with its reason, and the facts of every size.

    Raises:
        UserError: A part of the budget was not measured, or no size keeps to the budget.
    """
    check_readout(budget, result.measure)
    sizes = _sizes(result, budget, ledger, measured or {}, kv_cache)
    for size in sizes:
        _check_memory(budget, size.speed)
    serve = result.settings.serve
    measuring = "assess.speed.enabled=true" if serve is None else f"assess.serve={serve}"
    for part in budget.measured_gains:
        if all(part in size.unknown for size in sizes):
            raise UserError(
                f"{budget.word(part)} needs speeds, and none are recorded for {result.search_id}; measure them "
                f"with: raysearch assess {result.search_id} --remove M assess=none {measuring}"
                + result.settings.places.ledger_option
            )
    for size in sizes:
        _check_maximum(budget, result.space, size.speed, size.kv_memory)
    keeping = [size for size in sizes if size.keeps]
    if not keeping:
        near = _nearest(sizes)
        other_sizes = f"give a larger budget, or search other numbers of {result.space.plural} with remove=1..M"
        remedies = ["give another budget" if result.settings.remove == AUTO else other_sizes]
        if not near.misses and not near.unknown:
            remedies.insert(0, _more_exact(near.unsure))
        raise UserError(
            f"SEARCH={result.search_id} has no mask within {budget}; the nearest, of "
            f"{result.space.count(near.n_removed)}, {_shortfall(near)}: {_facts(near, budget, result.measure)}; "
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
        reason=_reason(chosen, sizes, budget, result.measure, result.space),
        space=result.space,
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


def _check_memory(budget: Budget, speed: Speed | None) -> None:
    """Refuse a budget of the peak memory if a runtime was measured, and its peak memory is not known."""
    if budget.memory is not None and speed is not None and speed.memory is None:
        raise UserError(
            f"{budget.word('memory')} needs the peak memory, which is not known of {speed.runtime} on this machine; "
            "leave it out, or measure in transformers by speed.serve=null"
        )


def _check_maximum(budget: Budget, space: Space, speed: Speed | None, kv_memory: KvMemory | None) -> None:
    """Refuse a budget of a single maximum that the dense model keeps to; the numbers are those of any mask."""
    (part, *others) = budget.limits
    if others:
        return
    limit = budget.limits[part]
    dense: tuple[float, str] | None = None
    if (
        part == "memory"
        and speed is not None
        and speed.memory is not None
        and speed.memory_bytes is not None
        and budget.is_of_bytes(part)
    ):
        dense_bytes = speed.memory_bytes / (1 + speed.memory)
        dense = dense_bytes, size_text(dense_bytes)
    elif part == "kv_memory" and kv_memory is not None and budget.is_of_bytes(part):
        dense = kv_memory.dense_bytes, size_text(kv_memory.dense_bytes)
    elif part == "latency_ms" and speed is not None and speed.dense_latency_ms is not None:
        dense = speed.dense_latency_ms, f"{speed.dense_latency_ms:.4g} ms"
    if dense is not None and dense[0] <= limit:
        raise UserError(
            f"{budget.word(part)} is no less than the dense model needs, {dense[1]}, so no {space.noun} has to go; "
            "ask for less"
        )


def facts_of(
    mask: Mask,
    loss: float,
    dense_loss: float,
    measure: Measure,
    budget: Budget,
    space: Space = LAYERS,
    *,
    error: float | None = None,
    speed: Speed | None = None,
    kv_memory: KvMemory | None = None,
) -> SizeFacts:
    """Return the facts of a mask, and the parts of a budget that it misses.

    Args:
        mask: The mask.
        loss: Its loss.
        dense_loss: The loss of the dense model.
        measure: The unit of the losses.
        budget: The budget.
        space: What the mask removes.
        error: The standard error of the difference of the losses; None if it is not known.
        speed: The speed of the mask; None if it was not measured.
        kv_memory: The size of its KV cache; None if it was not counted.

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
        memory = speed.memory_bytes if budget.is_of_bytes("memory") else speed.memory
        values |= {"speedup": speed.speedup, "memory": memory, "latency_ms": speed.latency_ms}
        bounds |= {"speedup": speed.speedup - Z * (speed.error or 0.0), "memory": memory}
        if speed.latency_ms is not None:
            bounds["latency_ms"] = speed.latency_ms + Z * (speed.latency_error_ms or 0.0)
    if kv_memory is not None:
        values["kv_memory"] = kv_memory.size_bytes if budget.is_of_bytes("kv_memory") else kv_memory.change
        bounds["kv_memory"] = values["kv_memory"]
    measured = [part for part in budget.limits if values.get(part) is not None]

    def is_missed(part: str, value: float | None) -> bool:
        assert value is not None, "it was measured"
        limit = budget.limits[part]
        is_beyond = value < limit if part == "speedup" else value > limit
        return is_beyond and not math.isclose(value, limit, rel_tol=1e-9)  # 27 of 30 layers are -10% of the KV cache

    misses = tuple(part for part in measured if is_missed(part, values[part]))
    return SizeFacts(
        n_removed=space.size_of(mask),
        mask=mask,
        loss=loss,
        delta=delta,
        delta_error=error,
        readout=measure.read(loss),
        readout_change=readout_change(loss),
        readout_error=change_error,
        speed=speed,
        kv_memory=kv_memory,
        misses=misses,
        unknown=tuple(part for part in budget.limits if part not in measured),
        unsure=tuple(part for part in measured if part not in misses and is_missed(part, bounds[part])),
    )


def _sizes(
    result: SearchResult,
    budget: Budget,
    ledger: Ledger,
    measured: Mapping[Mask, Speed],
    kv_cache: KvCache | None,
) -> tuple[SizeFacts, ...]:
    """Return the facts of the best mask of each size, ascending."""
    speeds = _recorded_speeds(result, ledger)
    if result.recommendation is not None:
        speeds |= {size.n_removed: size.speed for size in result.recommendation.sizes if size.speed is not None}
    speeds |= {result.space.size_of(mask): speed for mask, speed in measured.items()}
    return tuple(
        facts_of(
            trial.mask,
            trial.loss,
            result.dense_loss,
            result.measure,
            budget,
            result.space,
            error=result.delta_errors.get(size),
            speed=speeds.get(size),
            kv_memory=None if kv_cache is None else kv_memory_of(trial.mask, kv_cache, result.sites),
        )
        for size, trial in result.best_by_size.items()
        if trial.loss is not None  # best masks have a loss
    )


def _recorded_speeds(result: SearchResult, ledger: Ledger) -> dict[int, Speed]:
    """Return the recorded speeds and memory relative to the dense model, by size of the mask.

    All of them were measured in the search's runtime, and under the same conditions: those under which most sizes are
    known.
    """
    by_conditions: dict[tuple[Any, ...], dict[Mask, Summary]] = {}
    for mask, summary in assessments_with(ledger, result.fingerprints["model"], _LATENCY):
        if summary.get("serve") == result.settings.serve and summary["dense"] is not None:
            conditions = tuple(summary.get(key) for key in _CONDITIONS)
            by_conditions.setdefault(conditions, {})[mask] = summary
    best: dict[int, Speed] = {}
    for summaries in by_conditions.values():
        speeds = {
            size: speed_of(trial.mask, result.space_sites, summaries) for size, trial in result.best_by_size.items()
        }
        measured = {size: speed for size, speed in speeds.items() if speed is not None}
        best = max(best, measured, key=len)
    return best


def _reason(chosen: SizeFacts, sizes: Sequence[SizeFacts], budget: Budget, measure: Measure, space: Space) -> str:
    """Return a sentence on the chosen size, and on why the next size does not keep to the budget."""
    sentence = f"{space.count(chosen.n_removed)} can go: {_facts(chosen, budget, measure)}"
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
    if "speedup" in parts or "latency_ms" in parts:
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
    return ", ".join([*facts, *_gains(size, budget)])


def _gains(size: SizeFacts, budget: Budget) -> list[str]:
    """Return the gains of a size that a budget limits, as texts."""
    gains = []
    speed = size.speed
    if budget.speedup is not None and speed is not None:
        spread = "" if speed.error is None else f" ± {speed.error:.2f}"
        gains.append(f"{speed.speedup:.2f}{spread} times as fast{_in_runtime(speed)}")
    if budget.memory is not None and speed is not None:
        gains.append(f"memory {memory_text(speed, budget)}{_in_runtime(speed)}")
    if budget.kv_memory is not None and size.kv_memory is not None:
        gains.append(f"KV cache {kv_memory_text(size.kv_memory, budget)}")
    if budget.latency_ms is not None and speed is not None:
        gains.append(f"{latency_text(speed)} a request{_in_runtime(speed)}")
    return gains


def _in_runtime(speed: Speed) -> str:
    """Return where a speed was measured, as the end of a clause; empty for transformers."""
    return "" if speed.runtime is None else f" in {speed.runtime}"


def _loss_change(size: SizeFacts) -> str:
    return f"the loss {'falls' if size.delta < 0 else 'rises'} by {abs(size.delta):.4f}"
