"""One finding, and the words that findings share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from raysearch.reporting.stats.frame import Setting

#: How sure a finding is. ``measured`` is a count or a description, which no noise stands behind.
Sure = Literal["clear", "within noise", "cannot tell", "measured"]


@dataclass(frozen=True)
class Finding:
    """A sentence for the top of the page, and what stands behind it.

    Args:
        title: The finding.
        sure: How sure it is.
        details: Sentences of evidence.
        section: The part of the report that shows it.
    """

    title: str
    sure: Sure
    details: Sequence[str] = field(default_factory=tuple)
    section: str = ""


def where(model: str, remove: int, one_model: bool, calibration: str | None = None) -> str:
    """A place in the study: ``smollm2, perplexity, M = 7``; the model only where there are several."""
    parts = [] if one_model else [model]
    parts += [] if calibration is None else [calibration]
    return ", ".join([*parts, f"M = {remove}"])


def at(setting: Setting, one_model: bool) -> str:
    """A setting in words."""
    return where(setting.model, setting.remove, one_model, setting.calibration)


def of_all(part: int, whole: int, what: str) -> str:
    """A part of several: ``in the one setting``, ``in all 4 settings``, ``in 3 of 4 settings``."""
    if whole == 1:
        return f"in the one {what}" if part else f"not in the one {what}"
    if part == whole:
        return f"in both {what}s" if whole == 2 else f"in all {whole} {what}s"
    return f"in {part or 'none'} of {whole} {what}s"
