"""The results of an assessment: the numbers of masks and of the dense model, each with its description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import model_serializer

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.json import plain
from raysearch.core.mask import Mask


@dataclass(frozen=True)
class Result:
    """One number of one mask, with its details.

    Args:
        metric: The metric.
        estimate: The number; infinite if the model's loss is not finite.
        retention: The number divided by the dense model's; None if that is not finite, or 0.
        extent: The data on which it was measured, as a text: ``600 items``.
        detail: Further plain values: every metric of lm-eval, the loss in nats, each repeat …
        items: The contribution of each window, document or item to the number, or to the logarithm of a perplexity;
            empty if it is not known. The differences of the items of two masks have the error of the difference of
            their numbers.
        expected: The right answers, if texts were generated.
    """

    metric: Metric
    estimate: Estimate
    retention: Estimate | None
    extent: str
    detail: Mapping[str, Any]
    items: tuple[float, ...] = ()
    expected: tuple[str, ...] = ()

    @model_serializer
    def _write(self) -> dict[str, Any]:
        """Return the fields as JSON, with the numbers of the metric, the estimate and the retention on one level."""
        retention = self.retention or Estimate(float("nan"))
        return {
            **asdict(self.metric),
            "value": self.estimate.value,
            "error": self.estimate.error,
            "retention": retention.value,
            "retention_error": retention.error,
            "extent": self.extent,
            "detail": self.detail,
        }


@dataclass(frozen=True)
class Assessments:
    """The results of masks of one model; the first is always the dense model, ``Mask()``.

    Args:
        by_mask: The results by mask and by the name of the metric, in the order of the tables' columns.
        computed: The number of newly computed numbers; the others were in the ledger.
    """

    by_mask: Mapping[Mask, Mapping[str, Result]]
    computed: int

    @property
    def metrics(self) -> Sequence[Metric]:
        """The metrics of every mask: perplexities, accuracies, speed."""
        return [result.metric for result in self.by_mask[Mask()].values()]

    @property
    def values(self) -> Mapping[Mask, Mapping[str, Estimate]]:
        """The numbers, by mask and by the name of the metric."""
        return {
            mask: {name: result.estimate for name, result in results.items()} for mask, results in self.by_mask.items()
        }

    def named(self, mask: Mask) -> dict[str, float]:
        """Return a mask's numbers, the dense model's and their ratios, by the names that MLflow shows."""
        numbers: dict[str, float] = {}
        for name, result in self.by_mask[mask].items():
            numbers |= named_estimate(name, "pruned", result.estimate)
            if name in self.by_mask[Mask()]:  # a server of the pruned model may be the only one
                numbers |= named_estimate(name, "dense", self.by_mask[Mask()][name].estimate)
            numbers |= named_estimate(name, "retention", result.retention)
        return numbers


def named_estimate(name: str, kind: str, estimate: Estimate | None) -> dict[str, float]:
    """Return a number of a metric, and its standard error if known, by the names that MLflow shows.

    Args:
        name: The name of the metric.
        kind: ``dense``, ``pruned`` or ``recovered`` for the number of that model, or ``retention``.
        estimate: The number; None for none.

    Returns:
        For example ``{"assess/hellaswag/pruned": 31.2, "assess/hellaswag/pruned_se": 1.4}``.
    """
    if estimate is None:
        return {}
    key = f"assess/{name}/{kind}"
    numbers = {key: estimate.value}
    if estimate.error is not None:
        numbers[f"{key}_se"] = estimate.error
    return numbers


@dataclass(frozen=True)
class SearchAssessment:
    """The results of a search's mask and of the dense model.

    Args:
        search_id: The id of the search.
        model: The model as the user named it.
        mask: The mask.
        assessments: The results of the mask and of the dense model.
        task_files: The folders of task files by task, for lm-eval's ``--include_path``.
        overlaps: The names of the texts whose data the search's calibration used as well, in whole or in part.
    """

    search_id: str
    model: str
    mask: Mask
    assessments: Assessments
    task_files: Mapping[str, Path]
    overlaps: tuple[str, ...] = ()

    @property
    def dense(self) -> Mapping[str, Result]:
        """The results of the dense model, by the name of the metric."""
        return self.assessments.by_mask[Mask()]

    @property
    def pruned(self) -> Mapping[str, Result]:
        """The results of the mask, by the name of the metric."""
        return self.assessments.by_mask[self.mask]

    @model_serializer
    def _write(self) -> dict[str, Any]:
        """Return the fields as JSON, with the results of the two models on one level."""
        return {
            "search_id": self.search_id,
            "model": self.model,
            "removed": self.mask.parts,
            "dense": plain(self.dense, dict[str, Result]),
            "pruned": plain(self.pruned, dict[str, Result]),
            "computed": self.assessments.computed,
            "task_files": self.task_files,
            "overlaps": self.overlaps,
        }
