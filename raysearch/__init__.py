"""raysearch finds which Transformer layers of a decoder LLM to remove so that the least quality is lost.

>>> import raysearch
>>> search = raysearch.search(model="smollm2-135m", searcher="greedy", remove=5)
>>> search.layers, search.result.readout
>>> search.export("pruned")
>>> raysearch.open("mlruns").search("latest").result
"""

from raysearch.api.functions import config, forecast, inspect, plan, score, search, study, sweep
from raysearch.api.search_handle import Search
from raysearch.api.store import Store
from raysearch.api.store import open_store as open
from raysearch.api.study_handle import Study
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.core.versions import VERSION as __version__
from raysearch.errors import EvaluationError, UserError
from raysearch.searchers.base import Remark, Round, Scores, Searcher
from raysearch.searching.observer import Observer

__all__ = [
    "EvaluationError",
    "Mask",
    "Measure",
    "Observer",
    "Problem",
    "Remark",
    "Round",
    "Scores",
    "Search",
    "Searcher",
    "Statistic",
    "Store",
    "Study",
    "UserError",
    "__version__",
    "config",
    "forecast",
    "inspect",
    "open",
    "plan",
    "score",
    "search",
    "study",
    "sweep",
]
