"""A finding of a study: a question, its answer in one computed sentence, and the certainty of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from raysearch.reporting.analysis.frame import Panel, Setting

#: The certainty of a finding: ``clear`` if a test rejects that noise explains it, ``clear in part`` if that holds in
#: some settings, ``not significant`` if none does. ``cannot tell`` if the study is too small for a test. ``measured``
#: for a count or a description.
Sure = Literal["clear", "clear in part", "not significant", "cannot tell", "measured"]

MISSED = "would be missed more often than one time in five with these samples"


@dataclass(frozen=True)
class Finding:
    """A row of the table of findings.

    Args:
        question: The question.
        verdict: The answer, one sentence.
        sure: The certainty of the answer.
        section: The part of the report with the evidence; empty for none.
        leads: Whether it is one of the answers with which a report opens.
        command: The command to run next; empty for none.
    """

    question: str
    verdict: str
    sure: Sure
    section: str = ""
    leads: bool = False
    command: str = ""


def sure_of(n_significant: int, n_settings: int) -> Sure:
    """Return the certainty of a finding that was tested setting by setting.

    Args:
        n_significant: The number of settings with a significant result.
        n_settings: The number of settings.

    Returns:
        ``clear`` if all settings have one, ``clear in part`` if some have.
    """
    if not n_significant:
        return "not significant"
    return "clear" if n_significant == n_settings else "clear in part"


def of_all(part: int, whole: int, noun: str) -> str:
    """Return a part of several as a phrase: ``in the one setting``, ``in all 4 settings``, ``in 3 of 4 settings``.

    Args:
        part: The number of things in the part.
        whole: The number of all things.
        noun: What is counted, in the singular: ``setting``.

    Returns:
        The text.
    """
    if whole == 1:
        return f"in the one {noun}" if part else f"not in the one {noun}"
    if part == whole:
        return f"in both {noun}s" if whole == 2 else f"in all {whole} {noun}s"
    return f"in {part or 'none'} of {whole} {noun}s"


def place_in(place: Setting | Panel, places: Sequence[Setting | Panel]) -> str:
    """Return the name of a setting or panel: its labels that differ among several, and M: ``keep, M = 3``.

    Args:
        place: The setting or panel.
        places: All settings or panels that are to be distinguished.

    Returns:
        The text.
    """
    labels = place._asdict()
    remove = labels.pop("remove")
    different = [label for name, label in labels.items() if len({getattr(any_place, name) for any_place in places}) > 1]
    return ", ".join([*different, f"M = {remove}"])
