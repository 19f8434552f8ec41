"""The layers removed from a model. `raysearch.core.site.Sites` has their facts in a model.

    >>> mask = Mask.of(25, 21, 22)
    >>> str(mask)
    '{21,22,25}'
    >>> Mask.parse("{21,22,25}") == mask
    True

Layer indices are 0-based everywhere, as in ``model.layers``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from raysearch.errors import UserError

_TEXT = re.compile(r"\{\s*(\d+(\s*,\s*\d+)*)?\s*\}")


@dataclass(frozen=True, order=True, slots=True)
class Mask:
    """A set of removed layers: frozen, hashable, and ordered as its sorted tuple of layers.

    Args:
        layers: The removed layers, 0-based, ascending and distinct. `Mask.of` accepts any order.

    Raises:
        UserError: A layer is negative, repeated or out of order.
    """

    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(layer < 0 for layer in self.layers):
            raise UserError(f"mask={list(self.layers)} holds a negative layer; use 0-based indices 0 … N-1")
        if len({*self.layers}) < len(self.layers):
            raise UserError(f"mask={list(self.layers)} repeats a layer; name each layer once")
        if list(self.layers) != sorted(self.layers):
            raise UserError(f"mask={list(self.layers)} is not ascending; use Mask.of")

    @classmethod
    def of(cls, *layers: int) -> Self:
        """Return the mask that removes these layers, given in any order."""
        return cls(tuple(sorted(map(operator.index, layers))))  # `index` turns NumPy's integers into Python's

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the mask of a text such as ``{21,22,25}`` or ``{}``.

        Raises:
            UserError: The text is not a mask.
        """
        if not _TEXT.fullmatch(text.strip()):
            raise UserError(f"mask={text!r} is not a set of layers; write it as {{21,22,25}}, or {{}} for none")
        return cls.of(*(int(number) for number in re.findall(r"\d+", text)))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the schema by which pydantic reads and writes a mask as a list of layers."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls(tuple(value)),
            serialization=core_schema.plain_serializer_function_ser_schema(list),
        )

    def __str__(self) -> str:
        return "{" + ",".join(map(str, self.layers)) + "}"

    def __contains__(self, layer: object) -> bool:
        return layer in self.layers

    def __iter__(self) -> Iterator[int]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __or__(self, layers: Iterable[int]) -> Mask:
        return Mask.of(*set(self.layers).union(layers))

    def __and__(self, layers: Iterable[int]) -> Mask:
        return Mask.of(*set(self.layers).intersection(layers))

    def __sub__(self, layers: Iterable[int]) -> Mask:
        return Mask.of(*set(self.layers).difference(layers))

    def __xor__(self, layers: Iterable[int]) -> Mask:
        return Mask.of(*set(self.layers).symmetric_difference(layers))

    def jaccard(self, other: Mask) -> float:
        """Return the overlap |A ∩ B| / |A ∪ B| with another mask: 1 for equal masks, 0 for disjoint ones."""
        union = len(self | other)
        return len(self & other) / union if union else 1.0  # two empty masks are equal
