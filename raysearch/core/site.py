"""The sites of a model: the parts that a mask can remove.

The sites of a model are its layers. If the halves of its layers are known, each layer has two smaller sites. A mask of
the model has layers and halves, and `Sites` has the facts of them.

A searcher removes the sites of a space (`raysearch.core.space`) or of a target: layers, groups of layers, shifted pairs
of halves, or halves. A mask of a searcher has the indices of such sites, and `Sites.mask_of` returns the mask of the
model.

    >>> layers = Sites.of_layers([100, 100, 120])
    >>> mask = Mask.of(0, 2)
    >>> layers.parameters(mask)
    220
    >>> layers.text(mask)
    '{0,2} of 3 layers (0-based)'
    >>> layers.in_groups(2).mask_of(Mask.of(0))
    Mask({0,1})
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, overload

from raysearch.core.mask import OTHER_PART, PARTS, Half, Mask, Part


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
        return cls(str(layer), tuple(Half(layer, part) for part in PARTS), parameters, cost=1.0, kind=kind)

    @classmethod
    def joined(cls, sites: Sequence[Site], kind: int = 0, label: str | None = None) -> Site:
        """Return the site that is several sites.

        Args:
            sites: Consecutive sites.
            kind: The number of its kind.
            label: Its name; None for one such as ``4-7``.

        Returns:
            The site with all of their halves.
        """
        if label is None:
            label = sites[0].label if len(sites) == 1 else f"{sites[0].label}-{sites[-1].label}"
        halves = tuple(half for site in sites for half in site.halves)
        return cls(label, halves, sum(site.parameters for site in sites), sum(site.cost for site in sites), kind)


class Run(NamedTuple):
    """A step of a forward: a layer, or one of its halves."""

    layer: int
    part: Part | None = None  #: the half; None for the whole layer

    @classmethod
    def of(cls, layer: int, mask: Mask) -> Run | None:
        """Return what a forward runs of a layer.

        Args:
            layer: The layer, 0-based.
            mask: The removed layers and halves.

        Returns:
            The layer or its half that stays; None if the mask removes the layer.
        """
        if layer in mask.layers:
            return None
        removed_part = next((half.part for half in mask.halves if half.layer == layer), None)
        return cls(layer, None if removed_part is None else OTHER_PART[removed_part])


class Block(NamedTuple):
    """A layer of a pruned model: an attention and an MLP, which may come from different layers of the dense model."""

    attention: int | None  #: the layer of the attention; None if the block has none
    mlp: int | None  #: the layer of the MLP; None if the block has none


@dataclass(frozen=True, repr=False)
class Sites(Sequence[Site]):
    """Sites of a model, in the order in which the model runs their first halves.

    Args:
        sites: The sites.
        parts: The halves of the model as sites, in the order of the model; empty if the halves are not known.
        model: The layers of the model; None if these sites are the layers.
    """

    sites: tuple[Site, ...]
    parts: tuple[Site, ...] = ()
    model: Sites | None = field(default=None, repr=False)

    @classmethod
    def of_layers(
        cls,
        parameters: Iterable[int],
        kinds: Iterable[int] | None = None,
        attention_parameters: Iterable[int] | None = None,
    ) -> Sites:
        """Return the layers of a model.

        The cost of a half is its share of the layer's parameters. The two halves of a kind of layers are kinds of their
        own: 2 k and 2 k + 1 for the attention and the MLP of kind k.

        Args:
            parameters: The number of parameters of each layer.
            kinds: The number of the kind of each layer; None if layers with as many parameters are of one kind.
            attention_parameters: The number of parameters of the attention of each layer; None if the halves are not
                known.

        Returns:
            A site for each layer.
        """
        sizes = tuple(parameters)
        kinds = map(tuple(dict.fromkeys(sizes)).index, sizes) if kinds is None else kinds
        layers = tuple(map(Site.of_layer, range(len(sizes)), sizes, kinds))
        parts: list[Site] = []
        for layer, n_attention in zip(layers, attention_parameters or (), strict=bool(attention_parameters)):
            attention, mlp = layer.halves
            cost = n_attention / layer.parameters
            parts.append(Site(str(attention), (attention,), n_attention, cost, 2 * layer.kind))
            parts.append(Site(str(mlp), (mlp,), layer.parameters - n_attention, 1.0 - cost, 2 * layer.kind + 1))
        return cls(layers, tuple(parts))

    @classmethod
    def of_equal_layers(cls, n_layers: int) -> Sites:
        """Return layers of one size, for toy problems and for records, which do not contain the sizes of layers.

        The two halves of a layer are of one size, too.
        """
        return cls.of_layers([2] * n_layers, attention_parameters=[1] * n_layers)

    @overload
    def __getitem__(self, index: int) -> Site: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Site]: ...

    def __getitem__(self, index: int | slice) -> Site | Sequence[Site]:
        return self.sites[index]

    def __len__(self) -> int:
        return len(self.sites)

    def __repr__(self) -> str:
        sites = "" if self.are_layers else f"{', '.join(site.label for site in self)} of "
        return f"Sites({sites}{self.n_layers} layers)"

    @property
    def layers(self) -> Sites:
        """The layers of the model, whose masks are masks of the model."""
        return self if self.model is None else self.model

    @property
    def n_layers(self) -> int:
        """N, the number of layers of the model."""
        return len(self.layers.sites)

    @cached_property
    def total_cost(self) -> float:
        """The cost of a forward of the dense model, in layer-forwards."""
        return sum(site.cost for site in self.layers.sites)

    @cached_property
    def layer_parameters(self) -> tuple[int, ...]:
        """The number of parameters of each layer."""
        return tuple(site.parameters for site in self.layers.sites)

    @property
    def singles(self) -> tuple[Mask, ...]:
        """Every mask of one site, ascending."""
        return tuple(Mask.of(index) for index in range(len(self)))

    # The sites of a searcher.

    def of_model(self, sites: Iterable[Site]) -> Sites:
        """Return other sites of the same model."""
        return Sites(tuple(sites), self.parts, self.layers)

    def in_groups(self, size: int) -> Sites:
        """Return the same parts of the model as groups of `size` sites; the last group may be smaller.

        Groups with as many sites of each kind are of one kind.
        """
        groups = [self[start : start + size] for start in range(0, len(self), size)]
        kinds_of_sites = [tuple(sorted(site.kind for site in group)) for group in groups]
        numbers = [*dict.fromkeys(kinds_of_sites)]
        pairs = zip(groups, kinds_of_sites, strict=True)
        return self.of_model(Site.joined(group, numbers.index(kinds)) for group, kinds in pairs)

    @cached_property
    def are_layers(self) -> bool:
        """Whether a mask of these sites is a mask of the model: each site is the layer of its index."""
        return all(site.halves == layer.halves for site, layer in zip(self, self.layers.sites, strict=False)) and (
            len(self) == self.n_layers
        )

    @cached_property
    def overlaps(self) -> tuple[frozenset[int], ...]:
        """By site, the other sites that contain one of its halves."""
        sites_of_half: dict[Half, set[int]] = {}
        for index, site in enumerate(self):
            for half in site.halves:
                sites_of_half.setdefault(half, set()).add(index)
        return tuple(
            frozenset(set().union(*(sites_of_half[half] for half in site.halves)) - {index})
            for index, site in enumerate(self)
        )

    @cached_property
    def next_sites(self) -> tuple[int | None, ...]:
        """By site, the site of the next halves: consecutive layers, or the next pair without a common half."""
        first_halves = {site.halves[0]: index for index, site in reversed([*enumerate(self)])}
        halves = sorted({half for site in self for half in site.halves})
        following = dict(pairwise(halves))
        next_halves = (following.get(site.halves[-1]) for site in self)
        return tuple(None if half is None else first_halves.get(half) for half in next_halves)

    def mask_of(self, mask: Mask) -> Mask:
        """Return the mask of the model for a mask of these sites."""
        return mask if self.are_layers else Mask.of_halves(half for index in mask for half in self[index].halves)

    def indices_of(self, mask: Mask) -> Mask | None:
        """Return the mask of these sites for a mask of the model; None if no disjoint sites have just its halves."""
        if self.are_layers:
            return None if mask.halves else mask
        removed = {*mask.all_halves}
        indices: list[int] = []
        for index, site in enumerate(self):
            if removed.issuperset(site.halves):
                indices.append(index)
                removed.difference_update(site.halves)
        return None if removed else Mask(tuple(indices))

    def in_layers(self, layers: Iterable[int]) -> frozenset[int]:
        """Return the indices of all sites that contain a half of these layers."""
        layer_set = set(layers)
        return frozenset(
            index for index, site in enumerate(self) if not layer_set.isdisjoint(half.layer for half in site.halves)
        )

    def with_halves(self, halves: Iterable[Half]) -> frozenset[int]:
        """Return the indices of all sites that contain one of these halves."""
        half_set = set(halves)
        return frozenset(index for index, site in enumerate(self) if not half_set.isdisjoint(site.halves))

    # The facts of masks of the model.

    def runs(self, mask: Mask) -> Iterator[Run]:
        """Yield what a forward runs: the layers that stay, and the halves whose layer does not stay as a whole."""
        runs = (Run.of(layer, mask) for layer in range(self.n_layers))
        return (run for run in runs if run is not None)

    def run_cost(self, run: Run) -> float:
        """Return the cost of a step of a forward, in layer-forwards."""
        if run.part is None:
            return self.layers.sites[run.layer].cost
        return self.parts[Half(run.layer, run.part).position].cost

    def blocks(self, mask: Mask) -> tuple[Block, ...]:
        """Return the layers of the pruned model, of which an attention and the next MLP make one."""
        blocks: list[Block] = []
        for layer, part in self.runs(mask):
            if part is None:
                blocks.append(Block(layer, layer))
            elif part == "attention":
                blocks.append(Block(layer, None))
            elif blocks and blocks[-1].mlp is None:
                blocks[-1] = Block(blocks[-1].attention, layer)
            else:
                blocks.append(Block(None, layer))
        return tuple(blocks)

    def kept_layers(self, mask: Mask) -> tuple[int, ...]:
        """Return the layers of which at least a half stays, ascending."""
        return tuple(run.layer for run in self.runs(mask))

    def removed_sites(self, mask: Mask) -> list[Site]:
        """Return the layers, and the halves of other layers, that a mask removes."""
        layers = [self.layers.sites[layer] for layer in mask.layers]
        return layers + [self.parts[half.position] for half in mask.halves]

    def parameters(self, mask: Mask) -> int:
        """Return the number of parameters that a mask removes."""
        return sum(site.parameters for site in self.removed_sites(mask))

    def cost(self, mask: Mask) -> float:
        """Return the cost that a mask saves in each forward, in layer-forwards."""
        return sum(site.cost for site in self.removed_sites(mask))

    def remaining_cost(self, mask: Mask) -> float:
        """Return the cost of a forward without what the mask removes, in layer-forwards."""
        return self.total_cost - self.cost(mask)

    def by_kind(self, indices: Iterable[int]) -> dict[int, list[int]]:
        """Return the indices of sites by the kind of the sites, in the given order."""
        sites_of_kind: dict[int, list[int]] = {}
        for index in indices:
            sites_of_kind.setdefault(self[index].kind, []).append(index)
        return sites_of_kind

    def of_same_speed(self, mask: Mask) -> Mask:
        """Return the mask that stands for all masks of the same speed: of as many sites of each kind, the last ones.

        If a mask of the model has halves, the sites are the halves. So the mask of a shifted pair is as fast as that of
        a layer: without either, the model has a block less.
        """
        if mask.halves:
            halves_of_kind = self._halves_by_kind(part.halves[0] for part in self.parts)
            n_halves_of_kind = {kind: len(halves) for kind, halves in self._halves_by_kind(mask.all_halves).items()}
            return Mask.of_halves(
                half for kind, number in n_halves_of_kind.items() for half in halves_of_kind[kind][-number:]
            )
        sites_of_kind = self.by_kind(range(len(self)))
        n_of_kind = {kind: len(indices) for kind, indices in self.by_kind(mask).items()}
        return Mask.of(*(index for kind, number in n_of_kind.items() for index in sites_of_kind[kind][-number:]))

    def _halves_by_kind(self, halves: Iterable[Half]) -> dict[int, list[Half]]:
        """Return halves by the kind of their sites, in the given order."""
        halves_of_kind: dict[int, list[Half]] = {}
        for half in halves:
            halves_of_kind.setdefault(self.parts[half.position].kind, []).append(half)
        return halves_of_kind

    def text(self, mask: Mask) -> str:
        """Return a mask with the number of all layers: ``{3,5} of 30 layers (0-based)``."""
        return f"{mask} of {self.n_layers} layers (0-based)"

    def picture(self, mask: Mask) -> str:
        """Return the layers as text, in groups of ten: ``████·███`` and a key for the mask {4} of 8 layers."""
        kept = {run.layer: run.part for run in self.runs(mask)}
        mark_of_part = {None: "█", "attention": "▀", "mlp": "▄"}
        marks = "".join(mark_of_part[kept[layer]] if layer in kept else "·" for layer in range(self.n_layers))
        groups = " ".join(marks[start : start + 10] for start in range(0, len(marks), 10))
        halves = "▀ attention kept, ▄ MLP kept, " if mask.halves else ""
        return f"{groups}   layers 0 to {self.n_layers - 1}: █ kept, {halves}· removed"
