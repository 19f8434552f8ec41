"""Rules by which a program derives a property of layers from their places.

Most are periods: one layer in each period is of another kind than the rest. If layers are removed, places change, so a
kept layer may become one of another kind, unless the program reads a list of the layers' kinds instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from raysearch.core.mask import Part

EXPERTS = "which layers have experts"  #: the property of a layer with a period that its MLP has


@dataclass(frozen=True)
class Key:
    """The name of a value of a model.

    Args:
        config: The name in ``config.json``; None if a config has no such value.
        gguf: The name in a GGUF file after the architecture's prefix; None if a file has no such value.
    """

    config: str | None = None
    gguf: str | None = None


#: Returns the value of a key in one of the formats; None if there is none.
Get = Callable[[Key], Any]


@dataclass(frozen=True)
class Values:
    """What a model says of its layers.

    Args:
        family: The model's family, see `family_of`.
        get: Returns the model's value of a key.
        is_gguf: Whether the model is a GGUF file.
    """

    family: str
    get: Get
    is_gguf: bool = False

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Values:
        """Return the values of a ``config.json``, or of its part that describes the decoder."""
        return cls(family_of(config.get("model_type") or ""), lambda key: config.get(key.config or ""))


WINDOW = Key("sliding_window", "attention.sliding_window")
#: The families that have windows even if their width is not given.
_ALWAYS_WINDOWS = ("gemma2", "llama4", "exaonemoe", "gemma3n")


class ListForm(Enum):
    """What a list that is read instead of a period contains."""

    FLAGS = "a value for each layer: whether it is of the usual kind; the period is left out"
    OTHERS = "the indices of the layers of the other kind; the period stays, but is not read"
    EXCEPTIONS = "the indices of the layers of the usual kind; all others are of the other kind if the period is 1"


@dataclass(frozen=True)
class PeriodList:
    """A list that is read instead of a period.

    Args:
        key: The name of the list.
        form: What the list contains.
        since: The first build of llama.cpp that reads the list; 0 for every build.
    """

    key: Key
    form: ListForm
    since: int = 0


@dataclass(frozen=True)
class Period:
    """One layer in each period of a model is of another kind than the rest.

    Args:
        rule: The rule.
        length: The period, in layers; 0 for the number of the model's layers.
        place: The place of that layer in a period: 0 for the first, 1 for the second, -1 for the last.
        start: The layer at which the periods begin. Layers before it are of the other kind.
        pattern: The kinds of the layers of a period, if these are not one layer of another kind; None if they are.
    """

    rule: PeriodRule
    length: int
    place: int
    start: int = 0
    pattern: Sequence[Any] | None = None

    def flags(self, n_layers: int) -> list[bool]:
        """Return one value for each layer of a model: False if the rule gives it the other kind."""
        length = self.length or n_layers
        n_in_periods = n_layers // length * length if self.rule.rest else n_layers
        return [
            self.start <= index < n_in_periods and (index - self.start) % length != self.place % length
            for index in range(n_layers)
        ]

    def kinds(self, n_layers: int) -> Sequence[Any]:
        """Return the kind of each layer of a model."""
        if self.pattern is None:
            return self.flags(n_layers)
        return [self.pattern[index % self.length] for index in range(n_layers)]

    def is_list_of(self, n_layers: int) -> bool:
        """Return whether the pattern is a list with a value for each layer of a model, which an export cuts."""
        return isinstance(self.pattern, list) and len(self.pattern) == n_layers

    def changes(self, kept_layers: Sequence[int], n_layers: int) -> bool:
        """Return whether a kept layer is of another kind at its new place.

        Args:
            kept_layers: The indices of the kept layers in the dense model, ascending.
            n_layers: N, the layers of the dense model.

        Returns:
            Whether a program would run a kept layer as a layer of another kind.
        """
        if self.is_list_of(n_layers) or self.is_list_of(len(kept_layers)):
            return False
        kinds = self.kinds(n_layers)
        return [kinds[layer] for layer in kept_layers] != self.kinds(len(kept_layers))

    @property
    def text(self) -> str:
        """The place of the other kind, for a sentence: ``one in 4``."""
        if not self.length:
            return "the last one" if self.place else "the first one"
        return f"one in {self.length}" if self.pattern is None else f"which repeats every {self.length} layers"


def _part_with(about: str) -> Part:
    """Return the half of a layer that has a property: the MLP has the experts, the attention all other properties."""
    return "mlp" if "experts" in about else "attention"


@dataclass(frozen=True)
class PeriodRule:
    """A period of some families of models.

    Args:
        about: The property of a layer, for a sentence.
        place: The place of the layer of another kind in a period: 0 for the first, 1 for the second, -1 for the last.
        key: The key of the period, in layers; None if it is constant.
        families: The families for which the rule holds, each with its period if the key has no value; 0 for the number
            of the model's layers, and None if the rule then does not hold. The names have letters and digits only, see
            `family_of`. None for every family, without such a period.
        place_key: The key of a value to use in place of `place`.
        windows: Whether the rule holds for models with windows only, or for those without; None for all.
        as_list: The list that is read instead of the period; None if there is none.
        repeats: Whether the value of the key is a period itself: a list or a text with the kinds of its layers.
        start: The layer at which the periods begin. Layers before it are of the other kind.
        start_key: The key of a value to use in place of `start`.
        rest: Whether the layers after the last whole period are of the other kind, too.
        unless: The key of a value, such as a list of the layers' kinds, with which the rule does not hold.
        only_with: The key of a value without which the rule does not hold.
    """

    about: str
    place: int
    key: Key | None = None
    families: Mapping[str, int | None] | None = None
    place_key: Key | None = None
    windows: bool | None = None
    as_list: PeriodList | None = None
    repeats: bool = False
    start: int = 0
    start_key: Key | None = None
    rest: bool = False
    unless: Key | None = None
    only_with: Key | None = None

    @property
    def part(self) -> Part:
        """The half of a layer that has the property."""
        return _part_with(self.about)

    def period(self, values: Values) -> Period | None:
        """Return the period of a model; None if the rule does not hold for it."""
        family, get = values.family, values.get
        if self.families is not None and family not in self.families:
            return None
        if self.windows is not None and self.windows != _has_windows(values):
            return None
        if not _may_hold(values, self.unless, self.only_with):
            return None
        value = None if self.key is None else get(self.key)
        if self.repeats:
            return Period(self, len(value), 0, pattern=value) if isinstance(value, (str, list)) and value else None
        length = value if isinstance(value, int) and value >= 1 else (self.families or {}).get(family)
        if length is None:
            return None
        place = None if self.place_key is None else get(self.place_key)
        start = None if self.start_key is None else get(self.start_key)
        return Period(self, length, self.place if place is None else place, self.start if start is None else start)


@dataclass(frozen=True)
class PlacedRule:
    """A property that a program computes for each layer from its place, so that it differs from layer to layer.

    Args:
        about: The property of a layer, for a sentence.
        families: The families for which the rule holds, see `family_of`.
        by_depth: Whether the property also follows from the number of layers.
        unless: The key of a value with which the rule does not hold.
        only_with: The key of a value without which the rule does not hold.
    """

    about: str
    families: Collection[str]
    by_depth: bool = True
    unless: Key | None = None
    only_with: Key | None = None

    @property
    def part(self) -> Part:
        """The half of a layer that has the property."""
        return _part_with(self.about)

    def holds(self, values: Values) -> bool:
        """Return whether the rule holds for a model."""
        return values.family in self.families and _may_hold(values, self.unless, self.only_with)

    def changes(self, kept_layers: Sequence[int], n_layers: int) -> bool:
        """Return whether a kept layer has another property at its new place.

        Args:
            kept_layers: The indices of the kept layers in the dense model, ascending.
            n_layers: N, the layers of the dense model.

        Returns:
            Whether a program would run a kept layer with another property.
        """
        return len(kept_layers) < n_layers if self.by_depth else list(kept_layers) != list(range(len(kept_layers)))


def list_instead(period: Period, current: Any, kept_layers: Sequence[int], n_layers: int) -> list[Any] | None:
    """Return the list that describes the kept layers in place of a period.

    Args:
        period: The period, whose rule has a list.
        current: The list that the dense model has; any other value if it has none.
        kept_layers: The indices of the kept layers in the dense model, ascending.
        n_layers: N, the layers of the dense model.

    Returns:
        The list in the form of the rule; None if the period describes the kept layers, or if a list of the dense model
        is read instead, which is cut as all lists.
    """
    assert period.rule.as_list is not None, "the rule has a list"
    form = period.rule.as_list.form
    flags = period.flags(n_layers)
    if form is ListForm.FLAGS:
        flags = [bool(flag) for flag in current] if isinstance(current, list) else flags
        kept_flags = [flags[layer] for layer in kept_layers]
        return None if kept_flags == period.flags(len(kept_layers)) else kept_flags
    if form is ListForm.OTHERS:
        if isinstance(current, (list, tuple)) or not period.changes(kept_layers, n_layers):
            return None
        return [place for place, layer in enumerate(kept_layers) if not flags[layer]]
    if period.length == 1 or len(kept_layers) == n_layers:
        return None
    exceptions = current or ()
    return [place for place, layer in enumerate(kept_layers) if flags[layer] or layer in exceptions]


def periods_of(rules: Iterable[PeriodRule], values: Values) -> list[Period]:
    """Return the periods of a model.

    Args:
        rules: The rules. Of several rules with the same key, only the first that holds counts.
        values: What the model says of its layers.

    Returns:
        The periods; empty if all layers are alike.
    """
    periods: list[Period] = []
    for rule in rules:
        period = rule.period(values)
        keys = [period.rule.key for period in periods]
        if period is not None and (rule.key is None or rule.key not in keys):
            periods.append(period)
    return periods


def family_of(name: str) -> str:
    """Return the letters and digits of a model type or an architecture.

    transformers and llama.cpp separate the parts of names differently, and transformers marks the part of a multimodal
    model that reads text: ``llama4_text``.
    """
    return re.sub(r"[^a-z0-9]", "", name.lower().removesuffix("_text"))


def _may_hold(values: Values, unless: Key | None, only_with: Key | None) -> bool:
    """Return whether a model lacks the one value and has the other."""
    return (unless is None or not values.get(unless)) and (only_with is None or bool(values.get(only_with)))


def _has_windows(values: Values) -> bool:
    """Return whether some layers of a model attend to a window only."""
    width = values.get(WINDOW)
    return bool(width) or (width is None and values.family in _ALWAYS_WINDOWS)
