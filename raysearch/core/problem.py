"""The space of legal masks: the sites that a search removes, the number of sites to remove, and the protected sites.

    S* = argmin over |S| = n_remove of L(D; f with the sites S removed)

(Kim et al. 2026, arXiv 2604.24938, equation 1, for layers.)

The masks of a problem, and of a searcher, have the indices of its sites. `Sites.mask_of` returns the mask of the model,
which is the same if the sites are the layers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from raysearch.core.mask import Half, Mask
from raysearch.core.place_limits import PlaceLimits
from raysearch.core.site import Sites
from raysearch.core.space import LAYERS, Space
from raysearch.errors import UserError

AUTO = "auto"  #: in place of a number of layers to remove: as many as a budget allows


@dataclass(frozen=True)
class Problem:
    """Remove `n_remove` of some sites of a model, which do not overlap, none of them protected.

    Args:
        sites: The sites: layers, groups of layers that a target allows, or those of another space.
        n_remove: The number of sites that a final mask removes, at least 1.
        protected: The indices of the sites that must stay. `create` and `of_model` take layers and halves.
        space: The space of the sites.
    """

    sites: Sites
    n_remove: int
    protected: frozenset[int] = field(default_factory=frozenset)
    space: Space = LAYERS

    @classmethod
    def create(
        cls,
        n_layers: int,
        remove: int | str,
        protect: Sequence[int | str] = (),
        model: str = "the model",
        space: Space = LAYERS,
    ) -> Problem:
        """Return the problem of a model with layers of one size.

        Args:
            n_layers: N, the number of layers of the dense model.
            remove: As in `of_model`.
            protect: As in `of_model`.
            model: As in `of_model`.
            space: As in `of_model`.

        Returns:
            The problem: the sites of N equal layers, M and the protected sites.

        Raises:
            UserError: As in `of_model`.
        """
        return cls.of_model(Sites.of_equal_layers(n_layers), remove, protect, model, space=space)

    @classmethod
    def of_model(
        cls,
        layers: Sites,
        remove: int | str,
        protect: Sequence[int | str] = (),
        model: str = "the model",
        limits: PlaceLimits | None = None,
        space: Space = LAYERS,
    ) -> Problem:
        """Return the problem of the user's numbers, after checking them against the model.

        Args:
            layers: The layers of the dense model.
            remove: M, or a range of numbers (see `sizes_of`), of which the largest counts; `AUTO` for the largest M.
                With groups, M is a multiple of their size, and the multiples in a range count.
            protect: What must stay: layers, such as 3, and halves, such as ``3a``; a negative layer counts from the
                end, so ``[0, -1]`` are the first and the last layer. A site with such a half stays.
            model: The name of the model, for messages.
            limits: The limits of the search's target; None for none.
            space: What can be removed.

        Returns:
            The problem: the sites of the space, M and the indices of the protected sites.

        Raises:
            UserError: A protected layer lies outside the model, there is too little to remove, M is no multiple of the
                size of the groups, or the target allows only groups of layers in a space of halves.
        """
        limits = limits or PlaceLimits()
        n_layers = layers.n_layers
        halves = _protected_halves(protect, n_layers, model)
        if n_layers == 1:
            raise UserError(f"remove={remove} leaves no layer of {model}, which has one; use a model of two or more")
        if space is not LAYERS and limits.group > 1:
            raise UserError(
                f"space={space.name} cannot keep the groups of {limits.group} layers that the target needs "
                f"({'; '.join(limits.reasons)}); use space=layers, or another target"
            )
        sites = space.select(layers)
        if limits.group > 1:
            sites = sites.in_groups(limits.group)
        protected = sites.with_halves([*halves, *limits.protected_halves]) | sites.in_layers(limits.protected)
        if limits.group > 1 and n_layers % limits.group:
            protected |= {len(sites) - 1}  # the layers after the last whole group
        problem = cls(sites, 1, protected, space)
        total = space.total(layers)
        most = min(problem.most_disjoint(problem.free) * limits.group, total - 1)
        possible = list(range(limits.group, most + 1, limits.group))
        if space.keeps_blocks:
            refused = limits.refused_depths
            possible = [size for size in possible if n_layers - size * space.n_halves // 2 not in refused]
        if not possible:
            raise _nothing_to_remove(space, total, protect, model, limits)
        sizes = _sizes(remove, possible, model, limits)
        remedy = f"use 1..{most}" if len(possible) == most else f"use {_enumerated(possible)}"
        if sizes[0] < 1:
            raise UserError(f"remove={remove} removes nothing; {remedy} for the {space.count(total)} of {model}")
        if sizes[-1] > most:
            n_protected = total - problem.most_disjoint(problem.free) * limits.group
            kept = "kept by the target or protect" if limits.reasons else "protected"
            condition = f" with {n_protected} {kept}" if n_protected else ""
            fault = f"leaves no {space.noun}" if sizes[-1] >= total else "is more than can go"
            raise UserError(f"remove={remove} {fault} of the {total} that {model} has{condition}; {remedy}")
        allowed = [size for size in sizes if size in possible]
        if not allowed or allowed != list(sizes[: len(allowed)]):  # smaller sizes would be results of the search, too
            raise UserError(
                f"remove={remove} leaves {model} with a number of layers that the target does not allow "
                f"({'; '.join(limits.reasons)}); {remedy}"
            )
        return cls(sites, allowed[-1] // limits.group, protected, space)

    @property
    def noun(self) -> str:
        """The name of a site in a sentence: ``layer``, ``pair`` …, or ``group`` if the sites are groups of layers."""
        return "group" if self._is_of_groups else self.space.noun

    @property
    def plural(self) -> str:
        """The plural of `noun`."""
        return "groups" if self._is_of_groups else self.space.plural

    @property
    def _is_of_groups(self) -> bool:
        return self.space is LAYERS and not self.sites.are_layers

    @property
    def size(self) -> int:
        """M, as ``remove=`` counts it: layers, even if they can only be removed in groups, pairs, or halves."""
        return self.n_remove * self.group

    @property
    def group(self) -> int:
        """The size of a site, as ``remove=`` counts it: the number of layers of a group; else 1."""
        return len(self.sites[0].halves) // self.space.n_halves

    @property
    def dense(self) -> Mask:
        """The empty mask, which removes nothing."""
        return Mask()

    @cached_property
    def free(self) -> tuple[int, ...]:
        """The indices of the sites that may be removed, ascending."""
        return tuple(index for index in range(len(self.sites)) if index not in self.protected)

    @property
    def singles(self) -> tuple[Mask, ...]:
        """Every legal mask of one site, ascending: the ablations of single sites."""
        return tuple(Mask((index,)) for index in self.free)

    @cached_property
    def has_overlaps(self) -> bool:
        """Whether some sites have halves in common, so that a mask cannot have both."""
        return any(self.sites.overlaps)

    @cached_property
    def n_solutions(self) -> int:
        """The number of legal masks of `n_remove` sites."""
        if not self.has_overlaps:
            return math.comb(len(self.free), self.n_remove)
        return self._n_masks_from[0][self.n_remove]

    @cached_property
    def _n_masks_from(self) -> list[list[int]]:
        """The numbers of legal masks of the free sites from a place on, by place and by the size of the masks."""
        n_free = len(self.free)
        numbers = [[1] + [0] * self.n_remove for _ in range(n_free + 1)]
        for place in reversed(range(n_free)):
            without_site = numbers[place + 1]
            with_site = numbers[self._next_disjoint(place)]
            numbers[place] = [1] + [without_site[size] + with_site[size - 1] for size in range(1, self.n_remove + 1)]
        return numbers

    def _next_disjoint(self, place: int) -> int:
        """Return the place in `free` of the first later site that does not overlap; sites are in the model's order."""
        overlapping = self.sites.overlaps[self.free[place]]
        later = range(place + 1, len(self.free))
        return next((other for other in later if self.free[other] not in overlapping), len(self.free))

    def solutions(self) -> Iterator[Mask]:
        """Return every legal mask of `n_remove` sites, one after another, in mask order."""
        if self.has_overlaps:
            return map(Mask, self._disjoint_from(0, self.n_remove))
        return map(Mask, itertools.combinations(self.free, self.n_remove))

    def _disjoint_from(self, first_place: int, size: int) -> Iterator[tuple[int, ...]]:
        """Yield every legal choice of so many free sites from a place on, in order."""
        if size == 0:
            yield ()
            return
        for place in range(first_place, len(self.free)):
            if not self._n_masks_from[place][size]:
                return
            for later in self._disjoint_from(self._next_disjoint(place), size - 1):
                yield (self.free[place], *later)

    def draw(self, rng: np.random.Generator) -> Mask:
        """Return a random mask of `n_remove` sites. All legal masks have the same probability.

        Args:
            rng: The source of random numbers.

        Returns:
            The mask.
        """
        indices: list[int] = []
        place = 0
        while size := self.n_remove - len(indices):
            next_place = self._next_disjoint(place)
            if rng.random() < self._n_masks_from[next_place][size - 1] / self._n_masks_from[place][size]:
                indices.append(self.free[place])
                place = next_place
            else:
                place += 1
        return Mask(tuple(indices))

    def children(self, parents: Iterable[Mask]) -> tuple[Mask, ...]:
        """Return all legal masks that remove one site more than a parent, each once, in order.

        A child removes all halves that its parent removes. If sites overlap, its sites may be others: without the layer
        of 1a and 1m, the neighbours 0m and 2a make a pair, and the halves 0m 1a 1m 2a are the pairs 0m,1a and 1m,2a.
        """
        children = self._children_by_halves if self.has_overlaps else self._children_by_sites
        return tuple(sorted({child for parent in parents for child in children(parent)}))

    def _children_by_sites(self, parent: Mask) -> Iterator[Mask]:
        return (parent | single for single in self.singles if single.layers[0] not in parent)

    def _children_by_halves(self, parent: Mask) -> Iterator[Mask]:
        removed = {*self.sites.mask_of(parent).all_halves}
        remaining = [half for half in self._halves if half not in removed]
        width = len(self.sites[0].halves)
        for start in range(len(remaining) - width + 1):
            child = self.sites.indices_of(Mask.of_halves(removed.union(remaining[start : start + width])))
            if child is not None and self.is_legal(child):
                yield child

    @cached_property
    def _halves(self) -> list[Half]:
        """The halves of all sites, in the order of the model."""
        return sorted({half for site in self.sites for half in site.halves})

    def most_disjoint(self, indices: Iterable[int]) -> int:
        """Return the largest number of these sites that do not overlap; sites of equal length overlap in order."""
        overlapping: frozenset[int] = frozenset()
        n_disjoint = 0
        for index in sorted(indices):
            if index not in overlapping:
                n_disjoint += 1
                overlapping = self.sites.overlaps[index]
        return n_disjoint

    def allowed_with(self, mask: Mask) -> tuple[int, ...]:
        """Return the free sites that a mask does not remove and that do not overlap with its sites, ascending."""
        if not self.has_overlaps:
            return tuple(index for index in self.free if index not in mask)
        excluded = set(mask).union(*(self.sites.overlaps[index] for index in mask))
        return tuple(index for index in self.free if index not in excluded)

    def completed(self, mask: Mask, order: Iterable[int]) -> Mask:
        """Add sites to a mask until it is a solution.

        Args:
            mask: A legal mask of at most `n_remove` sites, which can be completed.
            order: Free sites in the order in which to add them. A site is left out if it overlaps with those before it,
                or if too few others would be left.

        Returns:
            A mask of `n_remove` sites, or of fewer if the order has too few.
        """
        if not self.has_overlaps:
            added = [index for index in order if index not in mask]
            return mask | added[: self.n_remove - len(mask)]
        for index in order:
            if len(mask) == self.n_remove:
                break
            if index in self.allowed_with(mask):
                longer = mask | [index]
                if len(longer) + self.most_disjoint(self.allowed_with(longer)) >= self.n_remove:
                    mask = longer
        return mask

    def is_legal(self, mask: Mask) -> bool:
        """Return whether the sites are free and do not overlap, and something of the space remains."""
        return (
            len(mask) * len(self.sites[0].halves) < len(self._halves)
            and set(mask) <= set(self.free)
            and self._are_disjoint(mask)
        )

    def _are_disjoint(self, indices: Collection[int]) -> bool:
        """Return whether no two of these sites overlap."""
        return all(self.sites.overlaps[index].isdisjoint(indices) for index in indices)

    def is_solution(self, mask: Mask) -> bool:
        """Return whether the mask is legal and removes exactly `n_remove` sites."""
        return len(mask) == self.n_remove and self.is_legal(mask)

    # The same for masks of the model.

    def size_of(self, mask: Mask) -> int:
        """Return the size of a mask of the model, as ``remove=`` counts it."""
        return self.space.size_of(mask)

    def is_solved_by(self, mask: Mask) -> bool:
        """Return whether a mask of the model is the mask of a solution."""
        indices = self.sites.indices_of(mask)
        return indices is not None and self.is_solution(indices)

    def extends(self, mask: Mask, masks: Iterable[Mask]) -> bool:
        """Return whether some masks are those of all children of a mask.

        Args:
            mask: A mask of the model.
            masks: Masks of the model.

        Returns:
            Whether they remove all that one site more than the mask can remove.
        """
        indices = self.sites.indices_of(mask)
        assert indices is not None, f"{mask} is no mask of {self.sites}"
        return set(masks) == {*map(self.sites.mask_of, self.children([indices]))}


def _protected_halves(protect: Sequence[int | str], n_layers: int, model: str) -> list[Half]:
    """Return the halves that the user protects.

    Raises:
        UserError: A layer lies outside the model, or a text is not a half.
    """
    halves: list[Half] = []
    for part in protect:
        layer = Half.parse(part).layer if isinstance(part, str) else part
        if not -n_layers <= layer < n_layers:
            raise UserError(
                f"protect={list(protect)} names layer {layer}, but {model} has layers 0 … {n_layers - 1}; "
                f"use indices from {-n_layers} to {n_layers - 1}"
            )
        halves += [Half.parse(part)] if isinstance(part, str) else Mask.of(layer % n_layers).all_halves
    return halves


def _nothing_to_remove(
    space: Space, total: int, protect: Sequence[int | str], model: str, limits: PlaceLimits
) -> UserError:
    """Return the error of a problem without a site that may go: because of `protect`, or of the target."""
    if not limits.reasons:
        return UserError(f"protect={list(protect)} keeps all {space.count(total)} of {model}; protect fewer")
    protected = f" with protect={list(protect)}" if protect else ""
    remedy = "protect fewer, or use another target" if protect else "use another target, or none"
    return UserError(
        f"the target leaves no {space.noun} of {model} that may go{protected}: {'; '.join(limits.reasons)}; {remedy}"
    )


def _sizes(remove: int | str, possible: Sequence[int], model: str, limits: PlaceLimits) -> range:
    """Return the numbers of layers that the user names, ascending; with groups, the multiples of their size.

    Args:
        remove: As in `Problem.of_model`.
        possible: The numbers of layers that may go.
        model: As in `Problem.of_model`.
        limits: The limits of the target.

    Returns:
        The numbers, at least one.

    Raises:
        UserError: There is no multiple, or `remove` is no number or range.
    """
    group = limits.group
    numbers = range(group, possible[-1] + 1, group) if remove == AUTO else sizes_of(remove)
    multiples = range(-(-numbers[0] // group) * group, numbers[-1] + 1, group)
    if multiples:
        return multiples
    below = max((number for number in possible if number < numbers[0]), default=None)
    above = min((number for number in possible if number > numbers[-1]), default=None)
    nearest = " or ".join(str(number) for number in (below, above) if number is not None)
    problem = "is no multiple" if len(numbers) == 1 else "has no multiple"
    raise UserError(
        f"remove={remove} {problem} of {group}, and the target allows only groups of {group} layers of {model} "
        f"({'; '.join(limits.reasons)}); use remove={nearest}"
    )


def _enumerated(numbers: Sequence[int]) -> str:
    """Return numbers for a sentence: ``4``, ``4 or 8``, or ``4, 8 … 24``."""
    if len(numbers) > 2:
        return f"{numbers[0]}, {numbers[1]} … {numbers[-1]}"
    return " or ".join(map(str, numbers))


def sizes_of(remove: int | str) -> range:
    """Return the numbers of layers to remove: the number 5, or each number of the range ``"1..9"``.

    Raises:
        UserError: The text is not such a range.
    """
    if isinstance(remove, int):
        return range(remove, remove + 1)
    ends = re.fullmatch(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})", remove)
    if ends is None:
        numbers = [int(number) for number in re.findall(r"[0-9]{1,9}", remove)]
        is_several = len(numbers) > 1 and re.fullmatch(r"\[.*\]|[0-9]+ ?[^0-9e]+ ?[0-9]+", remove)
        remedy = f"a range: write remove={min(numbers)}..{max(numbers)}" if is_several else "a range such as 1..9"
        raise UserError(f"remove={remove} should be a valid integer, or {remedy}")
    first, last = map(int, ends.groups())
    if first > last:
        raise UserError(f"remove={remove} runs backwards; use {last}..{first}")
    if first < 1:
        raise UserError(f"remove={remove} begins below 1; use 1..{max(last, 1)}")
    return range(first, last + 1)
