"""Assesses the mask of one search, and records the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysearch.assessment.assess import assess_masks, check_tasks, read_assessable
from raysearch.assessment.recorded import record_assessments
from raysearch.assessment.results import SearchAssessment
from raysearch.assessment.spec import AssessSpec
from raysearch.ledger.ledger import Ledger
from raysearch.search.observer import Observer
from raysearch.search.record import SearchRecord
from raysearch.search.spec import SearchSpec


def assess_search(
    run: SearchRecord, ledger: Ledger, search: SearchSpec, spec: AssessSpec, remove: int | None, observer: Observer
) -> SearchAssessment:
    """Assess a search's mask beside the dense model, and record both.

    Args:
        run: The search's record.
        ledger: Where that is.
        search: What it was made of, built from `run.config`, with the cluster that is to compute this.
        spec: What to assess.
        remove: The best mask of so many layers; None for the mask that the search found.
        observer: Watches, and records.

    Raises:
        UserError: The search has not finished, has no such mask, its model has changed since, or something named is
            not there.
        EvaluationError: Something failed for good.
    """
    mask = run.best_of_size(remove).mask
    evaluation = search.evaluation
    what = read_assessable(spec, evaluation.model, evaluation.cluster, evaluation.ledger)
    run.check_weights(what.texts.model_fingerprint)
    check_tasks(what, ledger)
    assessments = assess_masks(what, ledger, [mask], on_progress=observer.assessing)
    if mask == run.found.mask:
        record_assessments(ledger, [run], assessments.named, observer)
    files = {source.name: source.folder for source in what.sources if source.folder is not None}
    of_texts = {name: one.detail["data"] for name, one in assessments.by_mask[mask].items() if "data" in one.detail}
    overlaps = tuple(name for name, text in of_texts.items() if any(_overlap(text, one) for one in run.found.data))
    return SearchAssessment(run.search_id, evaluation.model.name, mask, assessments, files, overlaps)


def _overlap(text: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two descriptions of samples are of the same rows, and of parts that may overlap."""
    same_rows = all(text.get(key) == other.get(key) for key in ("source", "path", "name", "config", "split"))
    return same_rows and {text.get("part"), other.get("part")} != {"held_out", "rest"}
