"""The parts removed from a model: whole layers, and single halves of layers.

    >>> mask = Mask.of(25, "21a", 17)
    >>> str(mask)
    '{17,21a,25}'
    >>> Mask.parse("{17,21a,25}") == mask
    True
    >>> Mask.of("21a", "21m") == Mask.of(21)
    True

Layer indices are 0-based everywhere, as in ``model.layers``. `raysearch.core.site.Sites` has the facts of layers and
halves in a model. A searcher has masks of a problem's sites; its masks have the indices of these sites in the place of
layers (`raysearch.core.problem`).
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from raysearch.errors import UserError

#: The name of a half.
Part = Literal["attention", "mlp"]
PARTS: tuple[Part, ...] = ("attention", "mlp")  #: in the order in which a layer runs them
OTHER_PART: Mapping[Part, Part] = {"attention": "mlp", "mlp": "attention"}

_HALF = re.compile(r"([0-9]{1,9})([am])")
_TEXT = re.compile(r"\{\s*(\d+[am]?(\s*,\s*\d+[am]?)*)?\s*\}")


class Half(NamedTuple):
    """A half of a layer, with its norms. Halves are in the order in which the model runs them."""

    layer: int  #: the layer, 0-based
    part: Part

    @classmethod
    def parse(cls, text: str) -> Half:
        """Return the half of a text such as ``17a``, the attention of layer 17, or ``17m``, its MLP.

        Raises:
            UserError: The text is not a half.
        """
        match = _HALF.fullmatch(text.strip())
        if match is None:
            raise UserError(
                f"{text!r} is not a half of a layer; write 17a for the attention of layer 17, or 17m for its MLP"
            )
        number, letter = match.groups()
        return cls(int(number), "attention" if letter == "a" else "mlp")

    @staticmethod
    def is_text(text: str) -> bool:
        """Return whether a text is a half."""
        return _HALF.fullmatch(text.strip()) is not None

    def __str__(self) -> str:
        return f"{self.layer}{self.part[0]}"

    @property
    def position(self) -> int:
        """Its position among all halves of the model, in the order A0 M0 A1 M1 …, 0-based."""
        return 2 * self.layer + PARTS.index(self.part)


@dataclass(frozen=True, order=True, slots=True, repr=False)
class Mask:
    """A set of removed parts: frozen, hashable, and ordered by its whole layers, then by its single halves.

    Args:
        layers: The layers of which both halves are removed, 0-based, ascending and distinct. `Mask.of` accepts any
            order.
        halves: The removed halves of other layers, at most one of each, in the order of the model.

    Raises:
        UserError: A layer is negative, repeated or out of order, or a layer has two single halves.
    """

    layers: tuple[int, ...] = ()
    halves: tuple[Half, ...] = ()

    def __post_init__(self) -> None:
        if any(layer < 0 for layer in self.layers):
            raise UserError(f"mask={list(self.layers)} holds a negative layer; use 0-based indices 0 … N-1")
        if len({*self.layers}) < len(self.layers):
            raise UserError(f"mask={list(self.layers)} repeats a layer; name each layer once")
        if list(self.layers) != sorted(self.layers):
            raise UserError(f"mask={list(self.layers)} is not ascending; use Mask.of")
        layers_of_halves = [half.layer for half in self.halves]
        if layers_of_halves != sorted({*layers_of_halves} - {*self.layers}):
            raise UserError(f"mask={self} does not have each layer once, in order; use Mask.of")

    @classmethod
    def of(cls, *parts: int | str | Half) -> Self:
        """Return the mask that removes layers, such as 17, and halves, such as ``17a``, given in any order."""
        halves: list[Half] = []
        layers: list[int] = []
        for part in parts:
            if isinstance(part, str):
                halves.append(Half.parse(part))
            elif isinstance(part, Half):
                halves.append(part)
            else:
                layers.append(operator.index(part))  # a Python integer for one of NumPy
        whole = cls(tuple(sorted(layers)))
        return cls.of_halves([*whole.all_halves, *halves]) if halves else whole

    @classmethod
    def of_halves(cls, halves: Iterable[Half]) -> Self:
        """Return the mask that removes these halves, given in any order."""
        removed = set(halves)
        layers = sorted({half.layer for half in removed})
        whole = [layer for layer in layers if all((layer, part) in removed for part in PARTS)]
        return cls(tuple(whole), tuple(sorted(half for half in removed if half.layer not in whole)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the mask of a text such as ``{17,21a,22m}`` or ``{}``.

        Raises:
            UserError: The text is not a mask.
        """
        if not _TEXT.fullmatch(text.strip()):
            raise UserError(
                f"mask={text!r} is not a set of layers; write it as {{21,22,25}}, with halves as {{21,22a,25m}}, or "
                "{} for none"
            )
        parts = re.findall(r"\d+[am]?", text)
        return cls.of(*(int(part) if part.isdecimal() else part for part in parts))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the schema by which pydantic reads and writes a mask as a list of layers, and of texts for halves."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.of(*value),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda mask: mask.parts),
        )

    @property
    def parts(self) -> list[int | str]:
        """The removed layers, and the names of the removed halves of other layers, in the order of the model."""
        names: dict[int, int | str] = {layer: layer for layer in self.layers}
        names.update({half.layer: str(half) for half in self.halves})
        return [names[layer] for layer in sorted(names)]

    @property
    def all_halves(self) -> tuple[Half, ...]:
        """All removed halves, those of whole layers too, in the order of the model."""
        of_layers = (Half(layer, part) for layer in self.layers for part in PARTS)
        return tuple(sorted(itertools.chain(of_layers, self.halves)))

    @property
    def n_halves(self) -> int:
        """The number of removed halves."""
        return 2 * len(self.layers) + len(self.halves)

    @property
    def touched_layers(self) -> tuple[int, ...]:
        """The layers of which at least a half is removed, ascending."""
        return tuple(sorted((*self.layers, *(half.layer for half in self.halves))))

    def removes(self, half: Half) -> bool:
        """Return whether the mask removes a half, alone or with its layer."""
        return half.layer in self.layers or half in self.halves

    def contains(self, other: Mask) -> bool:
        """Return whether the mask removes all that another mask removes."""
        return {*other.all_halves} <= {*self.all_halves}

    def then(self, later: Mask) -> Mask:
        """Return the mask of all layers that are removed if a later mask is applied to the model that this one leaves.

            >>> Mask.of(13, 14).then(Mask.of(0, 13))
            Mask({0,13,14,15})

        Args:
            later: Layers in the numbering of the smaller model.

        Returns:
            The layers of both masks, in the numbering of this mask.
        """
        kept = (layer for layer in itertools.count() if layer not in self.layers)
        kept_layers = [*itertools.islice(kept, 1 + max(later, default=-1))]
        return self | [kept_layers[layer] for layer in later]

    def without(self, other: Mask) -> Mask:
        """Return the mask of what this mask removes and another does not."""
        return Mask.of_halves({*self.all_halves} - {*other.all_halves})

    def __str__(self) -> str:
        return "{" + ",".join(map(str, self.parts)) + "}"

    def __repr__(self) -> str:
        return f"Mask({self})"

    def __contains__(self, layer: object) -> bool:
        return layer in self.layers

    def __iter__(self) -> Iterator[int]:
        return iter(self._whole_layers)

    def __len__(self) -> int:
        return len(self._whole_layers)

    def __bool__(self) -> bool:
        return bool(self.layers or self.halves)

    @property
    def _whole_layers(self) -> tuple[int, ...]:
        """The layers of a mask without single halves, which has no other parts."""
        assert not self.halves, f"{self} has halves; use its `parts`, `all_halves` or `n_halves`"
        return self.layers

    def __or__(self, layers: Iterable[int]) -> Mask:
        return Mask.of(*set(self).union(layers))

    def __and__(self, layers: Iterable[int]) -> Mask:
        return Mask.of(*set(self).intersection(layers))

    def __sub__(self, layers: Iterable[int]) -> Mask:
        return Mask.of(*set(self).difference(layers))

    def __xor__(self, layers: Iterable[int]) -> Mask:
        return Mask.of(*set(self).symmetric_difference(layers))

    def jaccard(self, other: Mask) -> float:
        """Return the overlap |A ∩ B| / |A ∪ B| of halves with another mask: 1 for equal masks, 0 for disjoint ones."""
        halves = {*self.all_halves}
        other_halves = {*other.all_halves}
        union = len(halves | other_halves)
        return len(halves & other_halves) / union if union else 1.0  # two empty masks are equal
