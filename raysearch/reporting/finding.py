"""A finding of a study: a question, its answer in one computed sentence, and how sure the answer is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from raysearch.reporting.stats.frame import Panel, Setting

#: How sure a finding is: ``clear`` if a test rejects that noise explains it, ``clear in part`` if one does in some
#: settings, ``not significant`` if none does; ``measured`` is a count or a description without noise.
Sure = Literal["clear", "clear in part", "not significant", "cannot tell", "measured"]

MISSED = "would be missed more often than one time in five with these samples"


@dataclass(frozen=True)
class Finding:
    """A row of the table of findings.

    Args:
        verdict: The answer, one sentence.
        section: The part of the report with the evidence; empty where there is none.
        leads: Whether it is one of the answers that a report opens with.
        command: What to run next; empty where there is nothing to run.
    """

    question: str
    verdict: str
    sure: Sure
    section: str = ""
    leads: bool = False
    command: str = ""


def sure_of(n_significant: int, n_settings: int) -> Sure:
    """Return how sure a finding is that was tested in so many settings, setting by setting."""
    if not n_significant:
        return "not significant"
    return "clear" if n_significant == n_settings else "clear in part"


def of_all(part: int, whole: int, what: str) -> str:
    """Return a part of several in words: ``in the one setting``, ``in all 4 settings``, ``in 3 of 4 settings``."""
    if whole == 1:
        return f"in the one {what}" if part else f"not in the one {what}"
    if part == whole:
        return f"in both {what}s" if whole == 2 else f"in all {whole} {what}s"
    return f"in {part or 'none'} of {whole} {what}s"


def place_in(place: Setting | Panel, places: Sequence[Setting | Panel]) -> str:
    """Return what tells a setting or panel from the others, in words: ``keep, M = 3``; M is always said."""
    labels = place._asdict()
    remove = labels.pop("remove")
    different = [label for name, label in labels.items() if len({getattr(other, name) for other in places}) > 1]
    return ", ".join([*different, f"M = {remove}"])
