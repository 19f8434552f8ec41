"""A budget, and the number of layers that is recommended by it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from html import escape
from statistics import NormalDist

from raysearch.core.formatting import added, listed
from raysearch.core.formatting import size as size_text
from raysearch.core.json import Number
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.errors import UserError, did_you_mean

_NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(%|[MG]i?B)?")
_UNITS = {None: 1.0, "%": 0.01, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30}
#: The units of each part, two examples, and what is true of a number that it takes.
_PARTS: dict[str, tuple[Collection[str | None], tuple[str, str], Callable[[float], bool]]] = {
    "loss": ({None}, ("0.1", "0.05"), lambda rise: rise >= 0),
    "readout": ({None, "%"}, ("0.1", "10%"), lambda share: share >= 0),
    "speedup": ({None, "%"}, ("1.2", "120%"), lambda times: times > 1),
    "memory": (_UNITS, ("-15%", "6GB"), lambda change: -1 < change < 0 or change >= 1),
}


#: A budget is kept beyond the error of what was measured, at this confidence, one-sided.
CONFIDENCE = 0.95
Z = NormalDist().inv_cdf(CONFIDENCE)


@dataclass(frozen=True)
class Budget:
    """The most that a pruned model may lose, and the least that it must gain. None of a part: it does not matter.

    A number with a standard error keeps to it if the bound of its 95 % confidence does, and not the number alone.

    Args:
        loss: The most that the loss may rise over the dense model's, in the measure's unit.
        readout: The most by which the readout may get worse, as a share of the dense model's: 0.1.
        speedup: The least decoding speed, in multiples of the dense model's: 1.2.
        memory: The least change of peak memory, as a share of the dense model's: -0.15; or, from 1 on, the most peak
            memory in bytes.

    Raises:
        UserError: A part is not finite or asks for nothing, or there is none.
    """

    loss: float | None = None
    readout: float | None = None
    speedup: float | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        if not self.given:
            raise UserError(
                "the budget is empty; give one of budget.loss=0.1, .readout=10%, .speedup=1.2, .memory=-15%"
            )
        for part, value in self.given.items():
            _, examples, fits = _PARTS[part]
            if not (math.isfinite(value) and fits(value)):
                raise UserError(f"budget.{part}={value:g} is not a budget; use a value such as {' or '.join(examples)}")

    @classmethod
    def parse(cls, words: Sequence[str]) -> Budget:
        """Read ``budget.loss=0.1`` and its like; ``10%`` is 0.1, and of no loss; ``6GB`` is 6e9, and of memory alone.

        Raises:
            UserError: A word is none of these.
        """
        known = {f"budget.{part}": part for part in _PARTS}
        given: dict[str, float] = {}
        for word in words:
            key, _, text = word.partition("=")
            if key not in known:
                meant = f"budget.{key}" if f"budget.{key}" in known else key
                raise UserError(f"{key} is not a part of a budget; {did_you_mean(meant, known)}")
            part, number = known[key], _NUMBER.fullmatch(text.strip())
            units, (one, other), _ = _PARTS[part]
            if part == "loss" and number is not None and number[2] == "%":
                raise UserError(
                    f"{word} is no such number: a loss is not a share; write budget.loss={one}, or "
                    f"budget.readout={text} for a share of the readout, such as perplexity"
                )
            if number is None or number[2] not in units:
                raise UserError(f"{word} is no such number; write {key}={one}, or {key}={other}")
            given[part] = float(number[1]) * _UNITS[number[2]]
            if part == "memory" and number[2] is None and 1 <= given[part] < 1000:
                raise UserError(f"{word} would be {given[part]:g} bytes; write {word}GB")
            if part == "memory" and number[2] == "%" and given[part] > 0:
                raise UserError(
                    f"{word} has no sign, and less memory is a negative change; write {key}=-{text.strip(' +')}"
                )
            if part == "readout" and number[2] is None and given[part] >= 1:
                raise UserError(f"{word} would be {given[part]:.0%}; write {word}%, or {key}={given[part] / 100:g}")
        return cls(**given)

    @property
    def given(self) -> dict[str, float]:
        """The parts that matter."""
        return {part: value for part, value in vars(self).items() if value is not None}

    @property
    def only_gains(self) -> bool:
        """Whether it names what must be gained, and not what may be lost."""
        return self.gains == self.given

    @property
    def gains(self) -> dict[str, float]:
        """The least that must be gained, by part."""
        return {part: value for part, value in self.given.items() if part in ("speedup", "memory")}

    @property
    def is_of_bytes(self) -> bool:
        """Whether its memory is a number of bytes, and no change."""
        return self.memory is not None and self.memory > 0

    def word(self, part: str) -> str:
        """Return a part as it is given: ``budget.memory=6GB``."""
        value = getattr(self, part)
        if part == "memory" and self.is_of_bytes:
            return f"budget.memory={value / 1e9:g}GB"
        return f"budget.{part}=" + (f"{100 * value:g}%" if part in ("memory", "readout") else f"{value:g}")

    def __str__(self) -> str:
        return " ".join(map(self.word, self.given))


@dataclass(frozen=True)
class Speed:
    """The speed and the memory of a mask beside the dense model.

    Args:
        speedup: Decoding speed in multiples of the dense model's.
        error: Standard error of that, by repeat; None where it is not known.
        memory: Peak memory less the dense model's, as a share of that.
        memory_bytes: Peak memory.
    """

    speedup: float
    error: float | None
    memory: float
    memory_bytes: float


@dataclass(frozen=True)
class SizeFacts:
    """The best mask of one number of layers, and what is known of it; None of a number that is not known.

    Args:
        delta: Its loss over the dense model's, with the standard error by the choice of samples.
        readout_change: By how much its readout is worse than the dense model's, as a share of it, with that error.
        misses: The parts of the budget that it misses.
        unsure: The parts that it keeps to, but not beyond the error of what was measured.
        unknown: The parts of the budget that nothing is known of.
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
    misses: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()

    @property
    def keeps(self) -> bool:
        """Whether it keeps to every part of the budget, beyond all errors."""
        return not (self.misses or self.unknown or self.unsure)


def memory_text(speed: Speed, budget: Budget) -> str:
    """Return the memory of a mask in the terms of a budget: ``-10.5%``, or ``489 MB``."""
    return size_text(speed.memory_bytes) if budget.is_of_bytes else f"{speed.memory:+.1%}"


@dataclass(frozen=True)
class Recommendation:
    """The number of layers to remove by a budget, of all sizes, ascending; and the reason in a sentence."""

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

    def __str__(self) -> str:
        """Return the reason as a sentence."""
        return f"{self.search_id}, {self.budget}: {self.reason}"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the reason, and the best mask of each number of layers."""
        head = "".join(f"<th>{name}</th>" for name in ("layers", "removed", "loss over dense", "budget"))
        rows = ""
        for size in self.sizes:
            parts = (*size.misses, *size.unsure, *size.unknown)
            verdict = (
                "recommended" if size.mask == self.removed else "keeps to it" if size.keeps else f"not {listed(parts)}"
            )
            cells = size.n_removed, size.mask, added(size.delta, size.delta_error), verdict
            rows += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        return f"<p>{escape(str(self))}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
