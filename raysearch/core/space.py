"""The spaces: the sites that the masks of a search remove.

    layers      whole layers
    pairs       two neighbouring halves: a layer, or an MLP and the next attention. The rest alternates A M A M …, so
                it is an ordinary model, whose layers may have their halves from different layers
    attention   attentions
    mlp         MLPs
    halves      attentions and MLPs

A further space is one more entry of `SPACES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from raysearch.core.mask import Mask
from raysearch.core.site import Site, Sites
from raysearch.text.numbers import count


@dataclass(frozen=True, repr=False)
class Space:
    """The sites that the masks of a search remove.

    Args:
        name: Its name, the value of ``space=``.
        noun: The name of what ``remove=`` counts: ``layer``, ``pair`` …
        plural: The plural of the noun.
        n_halves: The number of halves in it.
        select: Returns the sites of the space, from the layers of a model.
        keeps_blocks: Whether what remains is always a model of ordinary layers, with an attention and an MLP each.
        needs_halves: Whether the halves of the layers must be known.
    """

    name: str
    noun: str
    plural: str
    n_halves: int
    select: Callable[[Sites], Sites]
    keeps_blocks: bool = False
    needs_halves: bool = True

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the schema by which pydantic reads and writes a space as its name."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else SPACES[value],
            serialization=core_schema.plain_serializer_function_ser_schema(lambda space: space.name),
        )

    def __reduce__(self) -> tuple[Callable[[str], Space], tuple[str]]:
        """Let pickles have the name alone, so that a space stays the same object."""
        return _space_of_name, (self.name,)

    def __repr__(self) -> str:
        return f"Space({self.name})"

    def size_of(self, mask: Mask) -> int:
        """Return the size of a mask, as ``remove=`` counts it."""
        return mask.n_halves // self.n_halves

    def total(self, layers: Sites) -> int:
        """Return how much of a model the space has, as ``remove=`` counts it."""
        return len({half for site in self.select(layers) for half in site.halves}) // self.n_halves

    def count(self, number: int) -> str:
        """Return a number of what ``remove=`` counts, for a sentence: ``5 layers``."""
        return count(number, self.noun, self.plural)


def _space_of_name(name: str) -> Space:
    return SPACES[name]


def _pairs(layers: Sites) -> Sites:
    kinds: dict[tuple[int, ...], int] = {}
    pairs = []
    for halves in pairwise(layers.parts):
        first, second = halves
        kind = kinds.setdefault(tuple(sorted(half.kind for half in halves)), len(kinds))
        is_layer = first.halves[0].layer == second.halves[0].layer
        label = str(first.halves[0].layer) if is_layer else f"{first.label},{second.label}"
        pairs.append(Site.joined(halves, kind, label))
    return layers.of_model(pairs)


LAYERS = Space("layers", "layer", "layers", 2, lambda layers: layers, keeps_blocks=True, needs_halves=False)

#: All spaces, by name.
SPACES = {
    space.name: space
    for space in (
        LAYERS,
        Space("pairs", "pair", "pairs", 2, _pairs, keeps_blocks=True),
        Space("attention", "attention", "attentions", 1, lambda layers: layers.of_model(layers.parts[::2])),
        Space("mlp", "MLP", "MLPs", 1, lambda layers: layers.of_model(layers.parts[1::2])),
        Space("halves", "half", "halves", 1, lambda layers: layers.of_model(layers.parts)),
    )
}
