"""One search for several numbers of layers: ``remove=1..9``."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from raysearch.core.problem import Problem
from raysearch.searchers.base import Round, Searcher, SearchGenerator


def for_sizes(searcher: Searcher, sizes: range) -> Searcher:
    """Return the searcher, if it passes through all sizes on its way to the largest; else one that runs it for each."""
    return searcher if len(sizes) == 1 or searcher.nested else EachSize(searcher, sizes)


@dataclass(frozen=True)
class EachSize(Searcher):
    """Runs a searcher for each number of layers as if for that alone; its result is the mask of the largest.

    Args:
        sizes: The numbers of layers, ascending; the last is the problem's own.
    """

    searcher: Searcher
    sizes: range

    @override
    def search(self, problem: Problem, rng: np.random.Generator) -> SearchGenerator:
        searches = [self.searcher.search(replace(problem, n_remove=size), deepcopy(rng)) for size in self.sizes]
        requests = [next(search) for search in searches]  # a size it refuses is refused before anything is computed
        found = problem.dense
        for search, request in zip(searches, requests, strict=True):
            try:
                while True:
                    if isinstance(request, Round):  # all sizes share the error budget of screening
                        request = replace(request, of=len(self.sizes) * request.of)
                    request = search.send((yield request))
            except StopIteration as stop:
                found = stop.value
        return found
