"""The grid of a study: every combination of its axes, as overrides of the command line.

An axis is a list of values, or a mapping from a label to overrides:

    searcher: [one_shot, greedy]                            the overrides searcher=one_shot, searcher=greedy
    searcher: {beam 3: searcher=beam searcher.width=3}      these overrides, with the label "beam 3"
    remove: [5, 7]
    draw: [0, 1, 2]                                         the overrides data.seed=0, data.seed=1, data.seed=2
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.errors import UserError
from raysearch.text.sentences import did_you_mean

#: The columns of a table of searches. Any other axis is a part of the calibration's label.
_DIMENSIONS = ("model", "calibration", "searcher", "remove", "seed", "draw")
#: Other spaces and repairs are compared as other searchers are, at the same M.
_AS_SEARCHERS = ("space", "repair")
#: Other samples of the same calibration are another draw of it, not another calibration.
_DRAW = "draw"
_DRAW_KEY = "data.seed"


@dataclass(frozen=True)
class Combination:
    """One value of each axis.

    Args:
        labels: The label of the value, by axis.
        words: The overrides of all axes, as typed after ``raysearch search``.
    """

    labels: Mapping[str, str]
    overrides: tuple[str, ...]

    def label(self, dimension: str) -> str | None:
        """Return the search's label in one of the dimensions of a report; None if no axis belongs to it."""
        parts = [label for axis, label in self.labels.items() if _dimension(axis) == dimension]
        return ", ".join(parts) or None


def combinations_of(
    grid: Mapping[str, Any], include: Sequence[Mapping[str, Any]] = (), exclude: Sequence[Mapping[str, Any]] = ()
) -> list[Combination]:
    """Return every combination of a grid's axes, in the order of the axes; the last axis changes fastest.

    Args:
        grid: The values of each axis.
        include: Combinations to add; each names a label of every axis.
        exclude: Rules that leave combinations out. A rule names some axes and labels of each; it leaves out the
            combinations that have one of these labels on every axis that it names.

    Returns:
        The labels and the overrides of each combination.

    Raises:
        UserError: An axis is empty or wrong, a rule names an unknown axis or label, or no combination remains.
    """
    axes = {axis: _values(axis, values) for axis, values in grid.items()}
    if not axes:
        raise UserError("study.grid={} has no axis; give one such as study.grid.searcher=[one_shot,greedy]")
    rules = [_rule("exclude", rule, axes) for rule in exclude]
    selected = [labels for labels in _crossed(axes) if not any(_matches(labels, rule) for rule in rules)]
    for extra in include:
        selected += _added(extra, axes)
    if not selected:
        raise UserError("study.exclude leaves no search; exclude less")
    unique = {json.dumps(labels, sort_keys=True): labels for labels in selected}
    return [
        Combination(
            {axis: _shown(axis, label, grid[axis]) for axis, label in labels.items()},
            tuple(word for axis, label in labels.items() for word in shlex.split(axes[axis][label])),
        )
        for labels in unique.values()
    ]


def _shown(axis: str, label: str, values: Any) -> str:
    """Return a label as it is shown next to those of other axes: ``samples=8`` if the user gave the value no label."""
    is_option = ("." in axis or axis in ("target", "repair")) and axis != _DRAW_KEY and isinstance(values, list)
    return f"{axis.rpartition('.')[2]}={label}" if is_option else label


def _values(axis: str, values: Any) -> dict[str, str]:
    """Return the overrides of each label of an axis."""
    if isinstance(values, Mapping):
        for label, text in values.items():
            if not isinstance(text, str) or "=" not in text or not _closes(text):
                raise UserError(
                    f"study.grid.{axis} has {label}: {json.dumps(text)}; write the overrides for this label, such as "
                    f'"{axis}=… data.samples=8"'
                )
        overrides = {str(label): text for label, text in values.items()}
        if len(overrides) < len(values):
            raise UserError(f"study.grid.{axis} has two labels with the same text, such as 1 and '1'; rename one")
    elif isinstance(values, list):
        key = _DRAW_KEY if axis == _DRAW else axis
        overrides = {_text(value): f"{key}={shlex.quote(_text(value))}" for value in values}
    else:
        items = _text(values)
        if match := re.fullmatch(r"(\d{1,3})\.\.(\d{1,3})", items):  # in a search, such a range is a single value
            items = ",".join(map(str, range(int(match[1]), int(match[2]) + 1))) or items
        raise UserError(f"study.grid.{axis}={_text(values)} is not a list; write study.grid.{axis}=[{items}]")
    if not overrides:
        raise UserError(f"study.grid.{axis} has no value; give one, or leave the axis out")
    return overrides


def _rule(kind: str, rule: Any, axes: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the labels that a rule names, by axis; a rule of `exclude` may only name labels of the grid."""
    if not isinstance(rule, Mapping) or not rule:
        raise UserError(f"study.{kind} has {json.dumps(rule)}; write rules such as {{searcher: greedy, seed: [1, 2]}}")
    labels_by_axis = {}
    for axis, labels in rule.items():
        if axis not in axes:
            raise UserError(f"study.{kind} names the axis {axis}; {did_you_mean(axis, axes)}")
        labels_by_axis[axis] = [_text(label) for label in (labels if isinstance(labels, list) else [labels])]
        for label in labels_by_axis[axis]:
            if label not in axes[axis] and kind == "exclude":
                raise UserError(f"study.{kind} names {axis}: {label}; {did_you_mean(label, axes[axis])}")
    return labels_by_axis


def _added(extra: Any, axes: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    """Return the combinations that a rule of `include` adds; a value that its axis lacks is added to the axis."""
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
    """Return whether every quote is closed."""
    try:
        return bool(shlex.split(words))
    except ValueError:
        return False


def _dimension(axis: str) -> str:
    if axis in _AS_SEARCHERS:
        return "searcher"
    group = _DRAW if axis == _DRAW_KEY else axis.partition(".")[0]
    return group if group in _DIMENSIONS else "calibration"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
