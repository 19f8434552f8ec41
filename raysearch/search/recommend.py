"""How many layers can go: the best mask of each size against a budget, from the ledger alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from raysearch.core.estimate import error_of_median
from raysearch.core.formatting import count
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.errors import UserError, did_you_mean
from raysearch.evaluation.totals import standard_error
from raysearch.ledger.ledger import Ledger
from raysearch.search.record import SearchRecord
from raysearch.search.result import SearchResult

_NUMBER = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(%?)")
_SAME = 1e-9  # relative; of two ways to compute one error
_SPEED, _MEMORY = "decode_tokens_per_s", "peak_memory_bytes"  # in the ledger's results of the speed assessment


@dataclass(frozen=True)
class Budget:
    """What a pruned model may lose, and what it must gain. None of a part: it does not matter.

    Args:
        loss: The most that the loss may rise over the dense model's, in the measure's unit.
        readout: The most by which the readout may get worse, as a share of the dense model's: 0.1.
        speedup: The least decoding speed, in multiples of the dense model's: 1.2.
        memory: The least change of peak memory, as a share of the dense model's: -0.15.

    Raises:
        UserError: A part is not finite or asks for nothing, or there is none.
    """

    loss: float | None = None
    readout: float | None = None
    speedup: float | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        if all(value is None for value in parts.values()):
            raise UserError(
                "the budget is empty; give one of budget.loss=0.1, .readout=10%, .speedup=1.2, .memory=-15%"
            )
        for name, good, example in (
            ("loss", lambda value: True, "0.1"),
            ("readout", lambda value: value >= 0, "10%"),
            ("speedup", lambda value: value > 1, "1.2"),
            ("memory", lambda value: -1 < value < 0, "-15%"),
        ):
            value = parts[name]
            if value is not None and not (math.isfinite(value) and good(value)):
                raise UserError(f"budget.{name}={value:g} is no budget; use a value such as {example}")

    @classmethod
    def parse(cls, words: Sequence[str]) -> Budget:
        """Read ``budget.loss=0.1`` and its like; ``10%`` is 0.1.

        Raises:
            UserError: A word is none of these.
        """
        known = {f"budget.{part.name}": part.name for part in fields(cls)}
        given: dict[str, float] = {}
        for word in words:
            key, equals, text = word.partition("=")
            number = _NUMBER.fullmatch(text.strip())
            if key not in known:
                raise UserError(f"{key} is no part of a budget; {did_you_mean(key, list(known))}")
            if not equals or number is None:
                raise UserError(f"{word} is no number; write {key}=0.1, or {key}=10%")
            given[known[key]] = float(number[1]) / (100 if number[2] else 1)
        return cls(**given)

    def __str__(self) -> str:
        return " ".join(
            f"budget.{part.name}={getattr(self, part.name):g}"
            for part in fields(self)
            if getattr(self, part.name) is not None
        )


@dataclass(frozen=True)
class SizeFacts:
    """The best mask of one number of layers, and what is known of it.

    Args:
        n_removed: M.
        mask: Which layers.
        loss: Its loss.
        delta: Its loss over the dense model's.
        delta_error: Standard error of that, by the choice of samples; None where it is not known.
        readout: Its loss as people read it.
        readout_change: By how much that is worse than the dense model's, as a share of it; None without a readout.
        speedup: Its decoding speed in multiples of the dense model's; None where it was not measured.
        speedup_error: Standard error of that, by repeat; None where it is not known.
        memory: Its peak memory less the dense model's, as a share of that; None where it was not measured.
        misses: The parts of the budget that it misses.
        unknown: The parts of the budget that nothing is known of.
    """

    n_removed: int
    mask: Mask
    loss: float
    delta: float
    delta_error: float | None
    readout: float
    readout_change: float | None
    speedup: float | None
    speedup_error: float | None
    memory: float | None
    misses: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recommendation:
    """The number of layers to remove by a budget.

    Args:
        search_id: The search.
        model: The model as the user named it.
        measure: What losses are counted in.
        budget: The budget.
        dense_loss: The dense model's loss.
        dense_readout: The same as people read it.
        sizes: All sizes, ascending.
        n_removed: The recommended one.
        removed: Its layers.
        reason: Why, in a sentence.
    """

    search_id: str
    model: str
    measure: Measure
    budget: Budget
    dense_loss: float
    dense_readout: float
    sizes: tuple[SizeFacts, ...]
    n_removed: int
    removed: Mask
    reason: str


def recommend(run: SearchRecord, budget: Budget, ledger: Ledger) -> Recommendation:
    """Return the number of layers to remove: of those that keep to the budget, the largest that only loses what it may.

    Where the budget names only what must be gained, it is the smallest that gains that.

    Args:
        run: A search that has finished, best one of a range: ``remove=1..9``.
        budget: The budget.
        ledger: Where it is recorded.

    Raises:
        UserError: It has not finished, the budget is of something that was not measured, or no size keeps to it.
    """
    result = run.found
    if budget.readout is not None and result.measure.readout is None:
        raise UserError(f"budget.readout={budget.readout:g} is of a readout, which {result.measure.unit} has none of")
    sizes = _sizes(result, budget, ledger)
    asked = {part: getattr(budget, part) for part in ("speedup", "memory") if getattr(budget, part) is not None}
    for part, value in asked.items():
        if all(part in size.unknown for size in sizes):
            raise UserError(
                f"budget.{part}={value:g} needs speeds, and none of {run.search_id} is on record; measure them with: "
                f"raysearch assess {run.search_id} --remove M assess=none assess.speed.enabled=true"
            )
    good = [size for size in sizes if not size.misses and not size.unknown]
    if not good:
        raise UserError(f"SEARCH={run.search_id} has no mask within {budget}; {_nearest(sizes, budget)}")
    only_gains = budget.loss is None and budget.readout is None
    chosen = good[0] if only_gains else good[-1]
    return Recommendation(
        run.search_id,
        result.model,
        result.measure,
        budget,
        result.dense_loss,
        result.dense_readout,
        sizes,
        chosen.n_removed,
        chosen.mask,
        _reason(chosen, sizes, budget, result.measure, only_gains),
    )


def _sizes(result: SearchResult, budget: Budget, ledger: Ledger) -> tuple[SizeFacts, ...]:
    best = {size: trial for size, trial in sorted(result.best_by_size.items()) if size}
    errors = _delta_errors(result, [trial.mask for trial in best.values()], ledger)
    speeds = _speeds(result, ledger)
    sizes = []
    for size, trial in best.items():
        assert trial.loss is not None, "best masks have one"
        readout, dense = result.measure.read(trial.loss), result.dense_readout
        change = None if result.measure.readout is None or dense == 0 else abs(readout - dense) / abs(dense)
        if change is not None and trial.loss < result.dense_loss:
            change = -change
        speedup, speedup_error, memory = speeds.get(size, (None, None, None))
        delta = trial.loss - result.dense_loss
        missed = {
            "loss": _over(delta, budget.loss),
            "readout": _over(change, budget.readout),
            "speedup": _over(_negative(speedup), _negative(budget.speedup)),
            "memory": _over(memory, budget.memory),
        }
        sizes.append(
            SizeFacts(
                size,
                trial.mask,
                trial.loss,
                delta,
                errors.get(trial.mask),
                readout,
                change,
                speedup,
                speedup_error,
                memory,
                tuple(part for part, over in missed.items() if over),
                tuple(part for part, over in missed.items() if over is None),
            )
        )
    return tuple(sizes)


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _over(value: float | None, most: float | None) -> bool | None:
    """Return whether a value is over what it may be; None if it is not known."""
    if most is None:
        return False
    return None if value is None else value > most


def _delta_errors(result: SearchResult, masks: Sequence[Mask], ledger: Ledger) -> dict[Mask, float]:
    """Return the standard errors of losses over dense where samples weigh the same.

    The ledger has samples' losses, and not how many tokens each scores. Whether these are equal is told by the error of
    the found mask, which is on record.
    """
    if result.delta_error is None or result.n_samples < 2:
        return {}
    known = ledger.known(result.fingerprints["calibration"], [*masks, Mask(), result.mask])
    weights = np.full(result.n_samples, result.measure.divisor(result.n_tokens, result.n_samples), np.int64)

    def error(mask: Mask) -> float | None:
        shards, dense = known.get(mask, {}), known.get(Mask(), {})
        if shards.keys() != dense.keys():
            return None
        samples = np.concatenate([shards[shard] - dense[shard] for shard in sorted(shards)])
        if len(samples) != result.n_samples or not np.isfinite(samples).all():
            return None
        return standard_error(samples, weights) * result.n_samples

    again = error(result.mask)
    if again is None or abs(again - result.delta_error) > _SAME * result.delta_error:
        return {result.mask: result.delta_error}
    return {mask: found for mask in masks if (found := error(mask)) is not None}


def _speeds(result: SearchResult, ledger: Ledger) -> dict[int, tuple[float, float | None, float]]:
    """Return by size how fast it decodes and what memory it needs beside the dense model, where that was measured."""
    masks = {str(trial.mask): size for size, trial in result.best_by_size.items()}
    alike = {str(Mask(tuple(range(result.n_layers - size, result.n_layers)))): size for size in result.best_by_size}
    found: dict[int, tuple[float, float | None, float]] = {}
    rows = ledger.read(
        "SELECT mask, result FROM assessments WHERE model = ? AND instr(result, ?) ORDER BY assessment",
        (result.fingerprints["model"], f'"{_SPEED}"'),
    )
    for mask, text in rows:
        size = masks.get(mask, alike.get(mask))  # layers of one size are as fast wherever they are
        values = json.loads(text)
        dense = values.get("dense") if isinstance(values, Mapping) else None
        if size is not None and isinstance(dense, Mapping):
            ratios = [theirs / mine for theirs, mine in zip(dense["decode_s"], values["decode_s"], strict=True)]
            error = error_of_median(ratios)
            found[size] = values[_SPEED] / dense[_SPEED], error, values[_MEMORY] / dense[_MEMORY] - 1
    return found


def _reason(chosen: SizeFacts, sizes: Sequence[SizeFacts], budget: Budget, measure: Measure, only_gains: bool) -> str:
    said = f"{count(chosen.n_removed, 'layer')} can go: {_facts(chosen, budget, measure)}"
    beside = [size for size in sizes if size.n_removed == chosen.n_removed + (-1 if only_gains else 1)]
    if not beside:
        ends = "smallest" if only_gains else "largest"
        return f"{said}; it is the {ends} number that was searched"
    other = beside[0]
    why = [f"it misses budget.{part}" for part in other.misses] + [
        f"its {part} is not measured" for part in other.unknown
    ]
    return f"{said}; with {other.n_removed} {' and '.join(why)}: {_facts(other, budget, measure)}"


def _nearest(sizes: Sequence[SizeFacts], budget: Budget) -> str:
    """Return what the mask that misses least has, and the remedy."""
    known = [size for size in sizes if not size.unknown] or sizes
    loses = {"loss", "readout"}.intersection(*(size.misses for size in known))
    near = (min if loses else max)(known, key=lambda size: (size.delta if loses else -len(size.misses), size.n_removed))
    missed = " and ".join(f"budget.{part}" for part in (*near.misses, *near.unknown))
    facts = f"the nearest, of {count(near.n_removed, 'layer')}, misses {missed}: the loss rises by {near.delta:.4f}"
    if near.speedup is not None:
        facts += f", {near.speedup:.2f} times as fast, memory {near.memory:+.1%}"
    return f"{facts}; give a larger budget, or search other numbers of layers with remove=1..M"


def _facts(size: SizeFacts, budget: Budget, measure: Measure) -> str:
    """Return what a size loses and gains, in the terms of the budget."""
    error = "" if size.delta_error is None else f" ± {size.delta_error:.4f}"
    said = [f"the loss rises by {size.delta:.4f}{error}"]
    if budget.readout is not None and size.readout_change is not None:
        said.append(f"{measure.readout} is {size.readout_change:.1%} worse")
    if budget.speedup is not None and size.speedup is not None:
        spread = "" if size.speedup_error is None else f" ± {size.speedup_error:.2f}"
        said.append(f"{size.speedup:.2f}{spread} times as fast")
    if budget.memory is not None and size.memory is not None:
        said.append(f"memory {size.memory:+.1%}")
    return ", ".join(said)
