"""The sites of a model: the parts that a mask can remove.

A mask has the indices of the removed sites. `Sites` defines what an index means: how the site is named, which halves of
layers it removes, and what that saves. The sites of a model are its layers, so the index of a site is the number of the
layer. If a target allows only groups of layers, a searcher has the groups as its sites (`Sites.in_groups`).

    >>> sites = Sites.of_layers([100, 100, 120])
    >>> mask = Mask.of(0, 2)
    >>> sites.parameters(mask)
    220
    >>> sites.text(mask)
    '{0,2} of 3 layers (0-based)'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, overload

from raysearch.core.mask import Mask

#: The name of a half.
Part = Literal["attention", "mlp"]
PARTS: tuple[Part, ...] = ("attention", "mlp")  #: in the order in which a layer runs them


class Half(NamedTuple):
    """A half of a layer, with its norms."""

    layer: int  #: the layer, 0-based
    part: Part


@dataclass(frozen=True)
class Site:
    """A part of a model that a mask can remove.

    Args:
        label: Its name in texts, such as ``17``.
        halves: The halves of layers that it contains, in the order in which the model runs them.
        parameters: The number of its parameters.
        cost: The cost of running it, in layer-forwards.
        kind: The number of its kind: sites of one kind take the same time and memory.
    """

    label: str
    halves: tuple[Half, ...]
    parameters: int
    cost: float
    kind: int = 0

    @classmethod
    def of_layer(cls, layer: int, parameters: int, kind: int = 0) -> Site:
        """Return the site that is a whole layer.

        Args:
            layer: The layer, 0-based.
            parameters: The number of its parameters.
            kind: The number of its kind.

        Returns:
            The site with both halves of the layer, with a cost of one layer-forward.
        """
        return cls(str(layer), (Half(layer, "attention"), Half(layer, "mlp")), parameters, cost=1.0, kind=kind)

    @classmethod
    def of_group(cls, sites: Sequence[Site], kind: int = 0) -> Site:
        """Return the site that is a group of sites.

        Args:
            sites: Consecutive sites.
            kind: The number of the group's kind.

        Returns:
            The site with all of their halves, with a label such as ``4-7``.
        """
        label = sites[0].label if len(sites) == 1 else f"{sites[0].label}-{sites[-1].label}"
        halves = tuple(half for site in sites for half in site.halves)
        return cls(label, halves, sum(site.parameters for site in sites), sum(site.cost for site in sites), kind)


@dataclass(frozen=True, repr=False)
class Sites(Sequence[Site]):
    """All sites of a model, in the order in which the model runs them. Each part of a layer belongs to one site.

    Args:
        sites: The sites.
    """

    sites: tuple[Site, ...]

    @classmethod
    def of_layers(cls, parameters: Iterable[int], kinds: Iterable[int] | None = None) -> Sites:
        """Return the sites of a model from which whole layers are removed.

        Args:
            parameters: The number of parameters of each layer.
            kinds: The number of the kind of each layer; None if layers with as many parameters are of one kind.

        Returns:
            A site for each layer.
        """
        sizes = tuple(parameters)
        kinds = map(tuple(dict.fromkeys(sizes)).index, sizes) if kinds is None else kinds
        layers = enumerate(zip(sizes, kinds, strict=True))
        return cls(tuple(Site.of_layer(layer, n_parameters, kind) for layer, (n_parameters, kind) in layers))

    @classmethod
    def of_equal_layers(cls, n_layers: int) -> Sites:
        """Return layers of one size, for toy problems and for records, which do not contain the sizes of layers."""
        return cls.of_layers([1] * n_layers)

    @overload
    def __getitem__(self, index: int) -> Site: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Site]: ...

    def __getitem__(self, index: int | slice) -> Site | Sequence[Site]:
        return self.sites[index]

    def __len__(self) -> int:
        return len(self.sites)

    def __repr__(self) -> str:
        return f"Sites({self.n_layers} layers)"

    @cached_property
    def n_layers(self) -> int:
        """N, the number of layers of the model."""
        return len(self.kept_layers(Mask()))

    @cached_property
    def total_cost(self) -> float:
        """The cost of a forward of the dense model, in layer-forwards."""
        return sum(site.cost for site in self)

    @cached_property
    def layer_parameters(self) -> tuple[int, ...]:
        """The number of parameters of each layer."""
        totals = [0] * self.n_layers
        for site in self:
            totals[site.halves[0].layer] += site.parameters
        return tuple(totals)

    @property
    def singles(self) -> tuple[Mask, ...]:
        """Every mask of one site, ascending."""
        return tuple(Mask.of(index) for index in range(len(self)))

    def last(self, n_removed: int) -> Mask:
        """Return the mask of the last `n_removed` sites."""
        return Mask(tuple(range(len(self) - n_removed, len(self))))

    def in_layers(self, layers: Iterable[int]) -> frozenset[int]:
        """Return the indices of all sites that contain a half of these layers."""
        layer_set = set(layers)
        return frozenset(
            index for index, site in enumerate(self) if not layer_set.isdisjoint(half.layer for half in site.halves)
        )

    def in_groups(self, size: int) -> Sites:
        """Return the same parts of the model as groups of `size` sites; the last group may be smaller.

        Groups with as many sites of each kind are of one kind.
        """
        groups = [self[start : start + size] for start in range(0, len(self), size)]
        kinds_of_sites = [tuple(sorted(site.kind for site in group)) for group in groups]
        numbers = [*dict.fromkeys(kinds_of_sites)]
        pairs = zip(groups, kinds_of_sites, strict=True)
        return Sites(tuple(Site.of_group(group, numbers.index(kinds)) for group, kinds in pairs))

    def layers_of(self, mask: Mask) -> Mask:
        """Return the mask of all layers that have a part in the sites of a mask."""
        return Mask.of(*{half.layer for index in mask for half in self[index].halves})

    def remaining(self, mask: Mask) -> tuple[int, ...]:
        """Return the indices of the sites that stay, ascending."""
        removed = set(mask)
        return tuple(index for index in range(len(self)) if index not in removed)

    def kept_layers(self, mask: Mask) -> tuple[int, ...]:
        """Return the layers of which at least a half stays, ascending."""
        halves = (half for index in self.remaining(mask) for half in self[index].halves)
        return tuple(dict.fromkeys(half.layer for half in halves))

    def parameters(self, mask: Mask) -> int:
        """Return the number of parameters that a mask removes."""
        return sum(self[index].parameters for index in mask)

    def cost(self, mask: Mask) -> float:
        """Return the cost that a mask saves in each forward, in layer-forwards."""
        return sum(self[index].cost for index in mask)

    def remaining_cost(self, mask: Mask) -> float:
        """Return the cost of a forward without the mask's sites, in layer-forwards."""
        return self.total_cost - self.cost(mask)

    def by_kind(self, indices: Iterable[int]) -> dict[int, list[int]]:
        """Return the indices of sites by the kind of the sites, in the given order."""
        sites_of_kind: dict[int, list[int]] = {}
        for index in indices:
            sites_of_kind.setdefault(self[index].kind, []).append(index)
        return sites_of_kind

    def of_same_speed(self, mask: Mask) -> Mask:
        """Return the mask that stands for all masks of the same speed: of as many sites of each kind, the last ones."""
        sites_of_kind = self.by_kind(range(len(self)))
        n_of_kind = {kind: len(indices) for kind, indices in self.by_kind(mask).items()}
        return Mask.of(*(index for kind, number in n_of_kind.items() for index in sites_of_kind[kind][-number:]))

    def text(self, mask: Mask) -> str:
        """Return a mask with the number of all layers: ``{3,5} of 30 layers (0-based)``."""
        return f"{mask} of {self.n_layers} layers (0-based)"

    def picture(self, mask: Mask) -> str:
        """Return the layers as text, in groups of ten: ``████·███`` and a key for the mask {4} of 8 layers."""
        marks = "".join("·" if index in mask else "█" for index in range(len(self)))
        groups = " ".join(marks[start : start + 10] for start in range(0, len(self), 10))
        return f"{groups}   layers 0 to {self.n_layers - 1}: █ kept, · removed"
