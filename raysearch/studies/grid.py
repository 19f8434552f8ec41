"""The grid of a study: every combination of its axes, as words of the command line.

An axis is a list of values, or a mapping from a label to the words that it stands for:

    searcher: [one_shot, greedy]                                the words searcher=one_shot, searcher=greedy
    searcher: {beam 3: searcher=beam searcher.width=3}          the words as they stand
    remove: [5, 7]
    draw: [0, 1, 2]                                             the words data.seed=0, data.seed=1, data.seed=2
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.errors import UserError, did_you_mean

#: What a search has one of, and a table one column; any other axis says more of the calibration.
_DIMENSIONS = ("model", "calibration", "searcher", "remove", "seed", "draw")
#: Other samples of the same calibration are another draw of it, not another calibration.
_DRAW, _DRAW_KEY = "draw", "data.seed"


@dataclass(frozen=True)
class Combination:
    """A value of each axis: its label, and all words that these stand for, as typed after ``raysearch search``."""

    labels: Mapping[str, str]
    words: tuple[str, ...]

    def label(self, dimension: str) -> str | None:
        """Return the search's label in one of the dimensions of a report; None if the grid gives none."""
        parts = [label for axis, label in self.labels.items() if _dimension(axis) == dimension]
        return ", ".join(parts) or None


def combinations_of(
    grid: Mapping[str, Any], include: Sequence[Mapping[str, Any]] = (), exclude: Sequence[Mapping[str, Any]] = ()
) -> list[Combination]:
    """Return every combination of a grid's axes in their order, the last one changing fastest.

    Those of `include` are added, with a label of every axis each. `exclude` leaves out all that have, on each axis that
    one of its rules names, a label that it names.

    Raises:
        UserError: An axis is empty or misread, a rule names what is not there, or nothing is left.
    """
    axes = {axis: _values(axis, values) for axis, values in grid.items()}
    if not axes:
        raise UserError("study.grid={} has no axis; give one such as study.grid.searcher=[one_shot,greedy]")
    rules = [_rule("exclude", rule, axes) for rule in exclude]
    left = [one for one in _crossed(axes) if not any(_matches(one, rule) for rule in rules)]
    for extra in include:
        left += _added(extra, axes)
    if not left:
        raise UserError("study.exclude leaves no search; exclude less")
    unique = {json.dumps(one, sort_keys=True): one for one in left}
    return [
        Combination(
            {axis: _shown(axis, label, grid[axis]) for axis, label in one.items()},
            tuple(word for axis, label in one.items() for word in shlex.split(axes[axis][label])),
        )
        for one in unique.values()
    ]


def _shown(axis: str, label: str, values: Any) -> str:
    """Return a label as people read it beside those of other axes: ``samples=8``, where nobody has named the value."""
    is_option = "." in axis and axis != _DRAW_KEY and isinstance(values, list)
    return f"{axis.rpartition('.')[2]}={label}" if is_option else label


def _values(axis: str, values: Any) -> dict[str, str]:
    """The words of each label of an axis."""
    if isinstance(values, Mapping):
        for label, words in values.items():
            if not isinstance(words, str) or "=" not in words or not _closes(words):
                raise UserError(
                    f"study.grid.{axis} has {label}: {json.dumps(words)}; write the words it stands for, such as "
                    f'"{axis}=… data.samples=8"'
                )
        found = {str(label): words for label, words in values.items()}
        if len(found) < len(values):
            raise UserError(f"study.grid.{axis} has two labels that read alike, as 1 and '1' do; name them apart")
    elif isinstance(values, list):
        key = _DRAW_KEY if axis == _DRAW else axis
        found = {_text(value): f"{key}={shlex.quote(_text(value))}" for value in values}
    else:
        each = _text(values)
        if match := re.fullmatch(r"(\d{1,3})\.\.(\d{1,3})", each):  # not the range that one search takes
            each = ",".join(map(str, range(int(match[1]), int(match[2]) + 1))) or each
        raise UserError(f"study.grid.{axis}={_text(values)} is not a list; write study.grid.{axis}=[{each}]")
    if not found:
        raise UserError(f"study.grid.{axis} has no value; give one, or leave the axis out")
    return found


def _rule(kind: str, rule: Any, axes: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """A rule as lists of labels by axis, if the grid has them."""
    if not isinstance(rule, Mapping) or not rule:
        raise UserError(f"study.{kind} has {json.dumps(rule)}; write rules such as {{searcher: greedy, seed: [1, 2]}}")
    found = {}
    for axis, labels in rule.items():
        if axis not in axes:
            raise UserError(f"study.{kind} names the axis {axis}; {did_you_mean(axis, axes)}")
        found[axis] = [_text(label) for label in (labels if isinstance(labels, list) else [labels])]
        for label in found[axis]:
            if label not in axes[axis] and kind == "exclude":
                raise UserError(f"study.{kind} names {axis}: {label}; {did_you_mean(label, axes[axis])}")
    return found


def _added(extra: Any, axes: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    """Return what a rule adds; a value that its axis lacks is taken as if it stood in the axis' list."""
    rule = _rule("include", extra, axes)
    for axis in axes:
        if axis not in rule:
            raise UserError(f"study.include has {json.dumps(dict(extra))} without {axis}; name a label of every axis")
        for label in rule[axis]:
            axes[axis].setdefault(label, _values(axis, [label])[label])
    return _crossed({axis: rule[axis] for axis in axes})


def _crossed(axes: Mapping[str, Iterable[str]]) -> list[dict[str, str]]:
    return [dict(zip(axes, labels, strict=True)) for labels in itertools.product(*axes.values())]


def _matches(combination: Mapping[str, str], rule: Mapping[str, Sequence[str]]) -> bool:
    return all(combination[axis] in labels for axis, labels in rule.items())


def _closes(words: str) -> bool:
    """Return whether every quote has its other end."""
    try:
        return bool(shlex.split(words))
    except ValueError:
        return False


def _dimension(axis: str) -> str:
    group = _DRAW if axis == _DRAW_KEY else axis.partition(".")[0]
    return group if group in _DIMENSIONS else "calibration"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
