"""The Python API: what the command line does, returning objects."""

from raysearch.api.assessing import assess, assess_study
from raysearch.api.calibrating import inspect, sweep
from raysearch.api.searching import score, search
from raysearch.api.studying import report, study, sync

__all__ = ["assess", "assess_study", "inspect", "report", "score", "search", "study", "sweep", "sync"]
