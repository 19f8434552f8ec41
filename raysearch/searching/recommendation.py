"""A budget, and the recommended number of layers, pairs or halves to remove."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from html import escape
from statistics import NormalDist
from typing import NamedTuple

from raysearch.core.json import Number
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.space import LAYERS, Space
from raysearch.errors import UserError
from raysearch.text.numbers import added
from raysearch.text.numbers import size as size_text
from raysearch.text.sentences import did_you_mean, listed

_NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(%|[MG]i?B)?")
_UNITS = {None: 1.0, "%": 0.01, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30}


class _Part(NamedTuple):
    """A part of a budget: its units, two examples, and whether it may have a value."""

    units: Collection[str | None]
    examples: tuple[str, str]
    allows: Callable[[float], bool]


_PARTS = {
    "loss": _Part({None}, ("0.1", "0.05"), lambda rise: rise >= 0),
    "readout": _Part({None, "%"}, ("0.1", "10%"), lambda share: share >= 0),
    "speedup": _Part({None, "%"}, ("1.2", "120%"), lambda times: times > 1),
    "memory": _Part(_UNITS, ("-15%", "6GB"), lambda change: -1 < change < 0 or change >= 1),
    "kv_memory": _Part(_UNITS, ("-15%", "2GB"), lambda change: -1 < change < 0 or change >= 1),
    "latency_ms": _Part({None}, ("800", "1500"), lambda latency_ms: latency_ms > 0),
}
_OF_BYTES = ("memory", "kv_memory")  #: the parts that are a change, or a number of bytes
_TIMED = ("speedup", "memory", "latency_ms")  #: the gains that need a measurement; the size of a KV cache is counted


CONFIDENCE = 0.95  #: the one-sided confidence that a mask keeps to a budget
Z = NormalDist().inv_cdf(CONFIDENCE)  #: the corresponding number of standard errors


@dataclass(frozen=True)
class Budget:
    """The most that a pruned model may lose, and the least that it must gain. A part that is None does not matter.

    A number with a standard error keeps to the budget only if the bound of its 95 % confidence interval does.

    Args:
        loss: The largest increase of the loss over the dense model's, in the measure's unit.
        readout: The largest worsening of the readout, as a share of the dense model's: 0.1.
        speedup: The least decoding speed, in multiples of the dense model's: 1.2.
        memory: The least change of peak memory, as a share of the dense model's: -0.15. A value of 1 or more is the
            largest peak memory in bytes.
        kv_memory: The least change of the size of the KV cache, as a share of the dense model's: -0.15. A value of 1 or
            more is the largest size in bytes.
        latency_ms: The longest time of a request, from the prompt to the last new token, in milliseconds.

    Raises:
        UserError: A part is not finite or requires nothing, or there is no part.
    """

    loss: float | None = None
    readout: float | None = None
    speedup: float | None = None
    memory: float | None = None
    kv_memory: float | None = None
    latency_ms: float | None = None

    def __post_init__(self) -> None:
        if not self.limits:
            raise UserError(
                "the budget is empty; give one of budget.loss=0.1, .readout=10%, .speedup=1.2, .memory=-15%, "
                ".kv_memory=-15%, .latency_ms=800"
            )
        for part, value in self.limits.items():
            if not (math.isfinite(value) and _PARTS[part].allows(value)):
                examples = " or ".join(_PARTS[part].examples)
                raise UserError(f"budget.{part}={value:g} is not a budget; use a value such as {examples}")

    @classmethod
    def parse(cls, overrides: Sequence[str]) -> Budget:
        """Parse overrides such as ``budget.loss=0.1``.

        ``10%`` is 0.1, and not allowed for a loss; ``6GB`` is 6e9, and allowed for memory and KV memory only.

        Args:
            overrides: ``budget.PART=VALUE`` each.

        Raises:
            UserError: An override is not of a budget, or its value is not a number of the part.
        """
        parts = {f"budget.{part}": part for part in _PARTS}
        values: dict[str, float] = {}
        for override in overrides:
            key, _, text = override.partition("=")
            if key not in parts:
                name = f"budget.{key}" if f"budget.{key}" in parts else key
                raise UserError(f"{key} is not a part of a budget; {did_you_mean(name, parts)}")
            part = parts[key]
            number = _NUMBER.fullmatch(text.strip())
            example, second_example = _PARTS[part].examples
            if part == "loss" and number is not None and number[2] == "%":
                raise UserError(
                    f"{override} is no such number: a loss is not a share; write budget.loss={example}, or "
                    f"budget.readout={text} for a share of the readout, such as perplexity"
                )
            if number is None or number[2] not in _PARTS[part].units:
                raise UserError(f"{override} is no such number; write {key}={example}, or {key}={second_example}")
            unit = number[2]
            value = float(number[1]) * _UNITS[unit]
            if part in _OF_BYTES and unit is None and 1 <= value < 1000:
                raise UserError(f"{override} would be {value:g} bytes; write {override}GB")
            if part in _OF_BYTES and unit == "%" and value > 0:
                raise UserError(
                    f"{override} has no sign, and less memory is a negative change; write {key}=-{text.strip(' +')}"
                )
            if part == "readout" and unit is None and value >= 1:
                raise UserError(f"{override} would be {value:.0%}; write {override}%, or {key}={value / 100:g}")
            values[part] = value
        return cls(**values)

    @property
    def limits(self) -> dict[str, float]:
        """The values of the parts that are not None."""
        return {part: value for part, value in vars(self).items() if value is not None}

    @property
    def only_gains(self) -> bool:
        """Whether the budget has only gains, and no losses."""
        return self.gains == self.limits

    @property
    def gains(self) -> dict[str, float]:
        """The least gains, by part."""
        return {part: value for part, value in self.limits.items() if part not in ("loss", "readout")}

    @property
    def measured_gains(self) -> dict[str, float]:
        """The gains that need a measurement: all but the size of the KV cache, which is counted."""
        return {part: value for part, value in self.gains.items() if part in _TIMED}

    def is_of_bytes(self, part: str) -> bool:
        """Return whether a part is a number of bytes, and not a change."""
        return part in _OF_BYTES and self.limits.get(part, 0) > 0

    def word(self, part: str) -> str:
        """Return a part as an override: ``budget.memory=6GB``."""
        value = getattr(self, part)
        if self.is_of_bytes(part):
            return f"budget.{part}={value / 1e9:g}GB"
        return f"budget.{part}=" + (f"{100 * value:g}%" if part in (*_OF_BYTES, "readout") else f"{value:g}")

    def __str__(self) -> str:
        return " ".join(map(self.word, self.limits))


@dataclass(frozen=True)
class Speed:
    """The speed and the memory of a mask relative to the dense model.

    Args:
        speedup: The decoding speed in multiples of the dense model's.
        error: The standard error of `speedup` over repeats; None if it is not known.
        memory: Peak memory minus the dense model's, as a share of the dense model's; None if it is not known.
        memory_bytes: Peak memory, in bytes; None if it is not known.
        latency_ms: The time of a request, in milliseconds; None in old records.
        latency_error_ms: The standard error of `latency_ms` over repeats; None if it is not known.
        dense_latency_ms: The time of the dense model, in milliseconds.
        runtime: The runtime in which all of this was measured, with its version; None for transformers.
    """

    speedup: float
    error: float | None
    memory: float | None
    memory_bytes: float | None
    latency_ms: float | None = None
    latency_error_ms: float | None = None
    dense_latency_ms: float | None = None
    runtime: str | None = None


@dataclass(frozen=True)
class KvMemory:
    """The size of the KV cache of a mask, which is exact.

    Args:
        size_bytes: The size, in bytes.
        change: The size minus the dense model's, as a share of the dense model's.
    """

    size_bytes: int
    change: float

    @property
    def dense_bytes(self) -> int:
        """The size for the dense model, in bytes."""
        return round(self.size_bytes / (1 + self.change))


@dataclass(frozen=True)
class SizeFacts:
    """The best mask of one size, and its facts; a number that is not known is None.

    Args:
        n_removed: The size, as ``remove=`` counts it.
        mask: The mask.
        loss: Its loss, in the measure's unit.
        delta: Its loss minus the dense model's.
        delta_error: The standard error of `delta` from the choice of samples.
        readout: The readout of its loss.
        readout_change: How much worse the readout is than the dense model's, as a share of the dense model's.
        readout_error: The standard error of `readout_change`.
        speed: Its speed and memory.
        kv_memory: The size of its KV cache; it is counted if the budget limits it.
        misses: The parts of the budget that it misses.
        unknown: The parts of the budget that were not measured.
        unsure: The parts that it keeps to, but not beyond the error of the measurement.
    """

    n_removed: int
    mask: Mask
    loss: float
    delta: float
    delta_error: float | None
    readout: Number
    readout_change: float | None
    readout_error: float | None
    speed: Speed | None = None
    kv_memory: KvMemory | None = None
    misses: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()

    @property
    def keeps(self) -> bool:
        """Whether the mask keeps to every part of the budget, beyond all errors."""
        return not (self.misses or self.unknown or self.unsure)


def memory_text(speed: Speed, budget: Budget) -> str:
    """Return the memory of a mask in the unit of a budget: ``-10.5%``, or ``489 MB``.

    Args:
        speed: The speed and memory of the mask.
        budget: The budget.

    Returns:
        The text with its unit.
    """
    if speed.memory is None or speed.memory_bytes is None:
        return "not measured"
    return size_text(speed.memory_bytes) if budget.is_of_bytes("memory") else f"{speed.memory:+.1%}"


def kv_memory_text(kv_memory: KvMemory, budget: Budget) -> str:
    """Return the size of the KV cache of a mask in the unit of a budget: ``-10.5%``, or ``489 MB``.

    Args:
        kv_memory: The size.
        budget: The budget.

    Returns:
        The text with its unit.
    """
    return size_text(kv_memory.size_bytes) if budget.is_of_bytes("kv_memory") else f"{kv_memory.change:+.1%}"


def latency_text(speed: Speed) -> str:
    """Return the time of a request with its standard error, if there is one: ``812 ± 4 ms``."""
    if speed.latency_ms is None:
        return "not measured"
    error = "" if speed.latency_error_ms is None else f" ± {speed.latency_error_ms:.3g}"
    return f"{speed.latency_ms:.4g}{error} ms"


@dataclass(frozen=True)
class Recommendation:
    """The recommended size of the mask of a search: the number of layers to remove, or of pairs or halves.

    Args:
        search_id: The search.
        model: The model as the user named it.
        measure: The unit of the losses.
        budget: The budget.
        dense_loss: The loss of the dense model.
        dense_readout: Its readout.
        sizes: The facts of the best mask of each size, ascending.
        n_removed: The recommended size.
        removed: The best mask of that size.
        reason: The reason, as a sentence.
        confidence: The one-sided confidence that the mask keeps to the budget.
        space: What the masks remove.
    """

    search_id: str
    model: str
    measure: Measure
    budget: Budget
    dense_loss: float
    dense_readout: Number
    sizes: tuple[SizeFacts, ...]
    n_removed: int
    removed: Mask
    reason: str
    confidence: float = CONFIDENCE
    space: Space = LAYERS

    def __str__(self) -> str:
        """Return the search, the budget and the reason."""
        return f"{self.search_id}, {self.budget}: {self.reason}"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the reason, and a table of the best mask of each size."""
        columns = (self.space.plural, "removed", "loss over dense", "budget")
        head = "".join(f"<th>{name}</th>" for name in columns)
        rows = ""
        for size in self.sizes:
            if size.mask == self.removed:
                verdict = "recommended"
            elif size.keeps:
                verdict = "keeps to it"
            else:
                verdict = f"not {listed((*size.misses, *size.unsure, *size.unknown))}"
            cells = size.n_removed, size.mask, added(size.delta, size.delta_error), verdict
            rows += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        return f"<p>{escape(str(self))}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
