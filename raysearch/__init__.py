"""raysearch finds which Transformer layers of a decoder LLM to remove so that the least is lost.

>>> import raysearch
>>> result = raysearch.search(model="smollm2-135m", searcher="greedy", remove=5)
>>> result.removed, result.readout
"""

# The rooms of these names come first: imported later, they would take the place of the functions.
from raysearch import search as _search_room, study as _study_room  # noqa: F401  # isort: skip
from raysearch.api import assess, inspect, report, score, search, study, sweep, sync
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import EvaluationError, UserError

__all__ = [
    "EvaluationError",
    "Mask",
    "Problem",
    "UserError",
    "assess",
    "inspect",
    "report",
    "score",
    "search",
    "study",
    "sweep",
    "sync",
]
