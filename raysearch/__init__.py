"""raysearch finds which Transformer layers of a decoder LLM to remove so that the least is lost.

>>> import raysearch
>>> result = raysearch.search(model="smollm2-135m", searcher="greedy", remove=5)
>>> result.removed, result.readout
"""

from raysearch.api import assess, assess_study, inspect, report, score, search, study, sweep, sync
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.errors import EvaluationError, UserError

__all__ = [
    "EvaluationError",
    "Mask",
    "Problem",
    "UserError",
    "assess",
    "assess_study",
    "inspect",
    "report",
    "score",
    "search",
    "study",
    "sweep",
    "sync",
]
