"""The space of legal masks: the sites of the model, the number of sites to remove, and the protected sites.

    S* = argmin over |S| = n_remove of L(D; f with the layers S removed)

(Kim et al. 2026, arXiv 2604.24938, equation 1.)

If a target allows only groups of layers, legal masks have whole groups. A searcher then gets the problem of the groups
(`Problem.of_groups`), and everything else has masks of layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from raysearch.core.mask import Mask
from raysearch.core.place_limits import PlaceLimits
from raysearch.core.site import Sites
from raysearch.errors import UserError

AUTO = "auto"  #: in place of a number of layers to remove: as many as a budget allows


@dataclass(frozen=True)
class Problem:
    """Remove `n_remove` of a model's sites, none of them protected.

    Args:
        sites: The sites of the dense model, N of them.
        n_remove: M, the number of sites that a final mask removes; 1 … N-1, without the protected sites.
        protected: The indices of the sites that must stay. `create` and `of_sites` take layers, also negative ones.
        group: Sites are removed in groups of so many, aligned at the first. `n_remove` is then a multiple of it, and
            `protected` has whole groups, and the sites after the last whole group.
    """

    sites: Sites
    n_remove: int
    protected: frozenset[int] = field(default_factory=frozenset)
    group: int = 1

    @classmethod
    def create(cls, n_layers: int, remove: int | str, protect: Sequence[int] = (), model: str = "the model") -> Problem:
        """Return the problem of a model with layers of one size.

        Args:
            n_layers: N, the number of layers of the dense model.
            remove: As in `of_sites`.
            protect: As in `of_sites`.
            model: As in `of_sites`.

        Returns:
            The problem: N equal layers, M and the protected layers.

        Raises:
            UserError: As in `of_sites`.
        """
        return cls.of_sites(Sites.of_equal_layers(n_layers), remove, protect, model)

    @classmethod
    def of_sites(
        cls,
        sites: Sites,
        remove: int | str,
        protect: Sequence[int] = (),
        model: str = "the model",
        limits: PlaceLimits | None = None,
    ) -> Problem:
        """Return the problem of the user's numbers, after checking them against the model.

        Args:
            sites: The sites of the dense model.
            remove: M, or a range of numbers (see `sizes_of`), of which the largest counts; `AUTO` for the largest M.
                With groups, M is a multiple of their size, and the multiples in a range count.
            protect: Layers that must stay; a negative index counts from the end, so ``[0, -1]`` are the first and the
                last layer.
            model: The name of the model, for messages.
            limits: The limits of the search's target; None for none.

        Returns:
            The problem: the sites, M and the indices of the protected sites.

        Raises:
            UserError: A protected index lies outside the model, there are too few layers to remove, or M is no multiple
                of the size of the groups.
        """
        limits = limits or PlaceLimits()
        n_layers = sites.n_layers
        for layer in protect:
            if not -n_layers <= layer < n_layers:
                raise UserError(
                    f"protect={list(protect)} names layer {layer}, but {model} has layers 0 … {n_layers - 1}; "
                    f"use indices from {-n_layers} to {n_layers - 1}"
                )
        if n_layers == 1:
            raise UserError(f"remove={remove} leaves no layer of {model}, which has one; use a model of two or more")
        of_user = _whole_groups(sites.in_layers(layer % n_layers for layer in protect), len(sites), limits.group)
        protected = of_user | _whole_groups(limits.protected, len(sites), limits.group)
        most = min(len(sites) - len(protected), len(sites) - 1)
        possible = [
            size for size in range(limits.group, most + 1, limits.group) if n_layers - size not in limits.refused_depths
        ]
        if not possible:
            raise _nothing_to_remove(sites, protect, model, limits)
        sizes = _sizes(remove, possible, model, limits)
        remedy = f"use 1..{most}" if len(possible) == most else f"use {_enumerated(possible)}"
        if sizes[0] < 1:
            raise UserError(f"remove={remove} removes nothing; {remedy} for the {n_layers} layers of {model}")
        if sizes[-1] > most:
            kept = "kept by the target or protect" if limits.reasons else "protected"
            condition = f" with {len(protected)} {kept}" if protected else ""
            problem = "leaves no layer" if sizes[-1] >= n_layers else "is more than can go"
            raise UserError(f"remove={remove} {problem} of the {n_layers} that {model} has{condition}; {remedy}")
        allowed = [size for size in sizes if size in possible]
        if not allowed or allowed != list(sizes[: len(allowed)]):  # smaller sizes would be results of the search, too
            raise UserError(
                f"remove={remove} leaves {model} with a number of layers that the target does not allow "
                f"({'; '.join(limits.reasons)}); {remedy}"
            )
        return cls(sites, allowed[-1], protected, limits.group)

    @cached_property
    def of_groups(self) -> Problem:
        """The problem that a searcher gets: its sites are the groups; this problem itself if there are no groups."""
        if self.group == 1:
            return self
        groups = self.sites.in_groups(self.group)
        protected = frozenset(site // self.group for site in self.protected)
        return Problem(groups, self.n_remove // self.group, protected)

    @property
    def noun(self) -> str:
        """The name of a site in a sentence: ``layer``, or ``group`` if the sites are groups of layers."""
        return "layer" if self.sites.n_layers == len(self.sites) else "group"

    @property
    def dense(self) -> Mask:
        """The empty mask, which removes nothing."""
        return Mask()

    @property
    def free(self) -> tuple[int, ...]:
        """The indices of the sites that may be removed, ascending."""
        return tuple(index for index in range(len(self.sites)) if index not in self.protected)

    @property
    def singles(self) -> tuple[Mask, ...]:
        """Every legal mask of one site, or of one group, ascending: the single-layer ablations."""
        starts = self.free[:: self.group]
        return tuple(Mask(tuple(range(start, start + self.group))) for start in starts)

    @property
    def n_solutions(self) -> int:
        """The number of legal masks of `n_remove` sites."""
        return math.comb(len(self.free) // self.group, self.n_remove // self.group)

    def children(self, parents: Iterable[Mask]) -> tuple[Mask, ...]:
        """Return all legal masks that remove one site, or one group, more than a parent, each once, in order."""
        singles = self.singles
        return tuple(
            sorted({parent | single for parent in parents for single in singles if single.layers[0] not in parent})
        )

    def is_legal(self, mask: Mask) -> bool:
        """Return whether the mask fits the model, has whole groups, and keeps protected sites and at least one site."""
        n_groups = len({site // self.group for site in mask})
        return len(mask) < len(self.sites) and set(mask) <= set(self.free) and len(mask) == self.group * n_groups

    def is_solution(self, mask: Mask) -> bool:
        """Return whether the mask is legal and removes exactly `n_remove` sites."""
        return len(mask) == self.n_remove and self.is_legal(mask)


def _whole_groups(sites: Iterable[int], n_sites: int, size: int) -> frozenset[int]:
    """Return all sites of the groups of some sites, and the sites after the last whole group."""
    groups = {site // size for site in sites}
    n_whole = n_sites // size
    return frozenset(site for site in range(n_sites) if site // size in groups or site // size >= n_whole)


def _nothing_to_remove(sites: Sites, protect: Sequence[int], model: str, limits: PlaceLimits) -> UserError:
    """Return the error of a problem without a layer that may go: because of `protect`, or of the target."""
    if not limits.reasons:
        return UserError(f"protect={list(protect)} keeps all {sites.n_layers} layers of {model}; protect fewer")
    protected = f" with protect={list(protect)}" if protect else ""
    remedy = "protect fewer, or use another target" if protect else "use another target, or none"
    return UserError(
        f"the target leaves no layer of {model} that may go{protected}: {'; '.join(limits.reasons)}; {remedy}"
    )


def _sizes(remove: int | str, possible: Sequence[int], model: str, limits: PlaceLimits) -> range:
    """Return the numbers of layers that the user names, ascending; with groups, the multiples of their size.

    Args:
        remove: As in `Problem.of_sites`.
        possible: The numbers of layers that may go.
        model: As in `Problem.of_sites`.
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
