"""raysearch finds which Transformer layers of a decoder LLM to remove so that the least quality is lost.

>>> import raysearch
>>> result = raysearch.search(model="smollm2-135m", searcher="greedy", remove=5)
>>> result.removed, result.readout
"""

from raysearch.api import (
    assess,
    assessed,
    check_ledger,
    clean_ledger,
    config,
    evaluated,
    export,
    export_gguf,
    export_ledger,
    export_recovered,
    export_recovered_gguf,
    forecast,
    inspect,
    load,
    merge_ledgers,
    plan,
    recommend,
    recover,
    recoveries,
    recovery_cost,
    report,
    resume,
    score,
    search,
    searches,
    show,
    study,
    sweep,
    sync,
    ui,
)
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
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
    "Searcher",
    "Statistic",
    "UserError",
    "assess",
    "assessed",
    "check_ledger",
    "clean_ledger",
    "config",
    "evaluated",
    "export",
    "export_gguf",
    "export_ledger",
    "export_recovered",
    "export_recovered_gguf",
    "forecast",
    "inspect",
    "load",
    "merge_ledgers",
    "plan",
    "recommend",
    "recover",
    "recoveries",
    "recovery_cost",
    "report",
    "resume",
    "score",
    "search",
    "searches",
    "show",
    "study",
    "sweep",
    "sync",
    "ui",
]
