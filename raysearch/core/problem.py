"""The space of legal masks: the sites of the model, the number of sites to remove, and the protected sites.

    S* = argmin over |S| = n_remove of L(D; f with the layers S removed)

(Kim et al. 2026, arXiv 2604.24938, equation 1.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from raysearch.core.mask import Mask
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
    """

    sites: Sites
    n_remove: int
    protected: frozenset[int] = field(default_factory=frozenset)

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
        cls, sites: Sites, remove: int | str, protect: Sequence[int] = (), model: str = "the model"
    ) -> Problem:
        """Return the problem of the user's numbers, after checking them against the model.

        Args:
            sites: The sites of the dense model.
            remove: M, or a range of numbers (see `sizes_of`), of which the largest counts; `AUTO` for the largest M.
            protect: Layers that must stay; a negative index counts from the end, so ``[0, -1]`` are the first and the
                last layer.
            model: The name of the model, for messages.

        Returns:
            The problem: the sites, M and the indices of the protected sites.

        Raises:
            UserError: A protected index lies outside the model, or there are too few layers to remove.
        """
        n_layers = sites.n_layers
        for layer in protect:
            if not -n_layers <= layer < n_layers:
                raise UserError(
                    f"protect={list(protect)} names layer {layer}, but {model} has layers 0 … {n_layers - 1}; "
                    f"use indices from {-n_layers} to {n_layers - 1}"
                )
        protected = sites.in_layers(layer % n_layers for layer in protect)
        most = min(len(sites) - len(protected), len(sites) - 1)
        if n_layers == 1:
            raise UserError(f"remove={remove} leaves no layer of {model}, which has one; use a model of two or more")
        if most < 1:
            raise UserError(f"protect={list(protect)} keeps all {n_layers} layers of {model}; protect fewer")
        sizes = range(1, most + 1) if remove == AUTO else sizes_of(remove)
        if sizes[0] < 1:
            raise UserError(f"remove={remove} removes nothing; use 1..{most} for the {n_layers} layers of {model}")
        if sizes[-1] > most:
            condition = f" with {len(protected)} protected" if protected else ""
            problem = "leaves no layer" if sizes[-1] >= n_layers else "is more than can go"
            raise UserError(f"remove={remove} {problem} of the {n_layers} that {model} has{condition}; use 1..{most}")
        return cls(sites, sizes[-1], protected)

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
        """Every legal mask of one site, ascending: the single-layer ablations."""
        return tuple(Mask.of(site) for site in self.free)

    @property
    def n_solutions(self) -> int:
        """The number of legal masks of `n_remove` sites."""
        return math.comb(len(self.free), self.n_remove)

    def children(self, parents: Iterable[Mask]) -> tuple[Mask, ...]:
        """Return all legal masks that remove one site more than a parent, each once, in the order of masks."""
        return tuple(sorted({parent | [site] for parent in parents for site in self.free if site not in parent}))

    def is_legal(self, mask: Mask) -> bool:
        """Return whether the mask fits the model and keeps every protected site and at least one site."""
        return len(mask) < len(self.sites) and set(mask) <= set(self.free)

    def is_solution(self, mask: Mask) -> bool:
        """Return whether the mask is legal and removes exactly `n_remove` sites."""
        return len(mask) == self.n_remove and self.is_legal(mask)


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
