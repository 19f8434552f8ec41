"""The results of an assessment: numbers beside those of the dense model, and what each of them is."""

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
    """One number of one mask, with all that is known of it.

    Args:
        metric: What it is.
        estimate: The number; infinite where the model's loss is not finite.
        retention: It divided by the dense model's, where that is finite and not 0.
        extent: What it was taken over, for people: ``600 items``.
        detail: All else, plain values: every metric of lm-eval, the loss in nats, each repeat …
        items: What each window, document or item adds to the number, or to the logarithm of a perplexity; empty where
            that is not known. The differences of two masks' items have the error of the difference of their numbers.
        expected: The right answers, where texts were generated.
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
        """Lay the metric, the estimate and the retention out as numbers side by side."""
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
    """The results of masks of one model; the dense model, ``Mask()``, is always among them, and first.

    Args:
        by_mask: By mask, by the name of the metric, in the order of the tables' columns.
        computed: How many numbers were computed now; the ledger knew the others.
    """

    by_mask: Mapping[Mask, Mapping[str, Result]]
    computed: int

    @property
    def metrics(self) -> Sequence[Metric]:
        """The metrics of every mask: perplexities, accuracies, speed."""
        return [result.metric for result in self.by_mask[Mask()].values()]

    @property
    def values(self) -> Mapping[Mask, Mapping[str, Estimate]]:
        """The numbers alone."""
        return {
            mask: {name: result.estimate for name, result in results.items()} for mask, results in self.by_mask.items()
        }

    def named(self, mask: Mask) -> dict[str, float]:
        """Return a mask's numbers, the dense model's and what is left of those, by the names that MLflow shows."""
        named: dict[str, float] = {}
        for name, result in self.by_mask[mask].items():
            named |= named_estimate(name, "pruned", result.estimate)
            named |= named_estimate(name, "dense", self.by_mask[Mask()][name].estimate)
            named |= named_estimate(name, "retention", result.retention)
        return named


def named_estimate(name: str, of: str, estimate: Estimate | None) -> dict[str, float]:
    """Return a number of a metric, and its standard error if known, by the names that MLflow shows.

    That of the ``dense``, ``pruned`` or ``recovered`` model, or the ``retention``:
    ``{"assess/hellaswag/pruned": 31.2, "assess/hellaswag/pruned_se": 1.4}``.
    """
    if estimate is None:
        return {}
    key = f"assess/{name}/{of}"
    return {key: estimate.value} | ({} if estimate.error is None else {f"{key}_se": estimate.error})


@dataclass(frozen=True)
class SearchAssessment:
    """The results of a search's mask beside the dense model.

    Args:
        model: The model as the user named it.
        assessments: Of the mask and of the dense model.
        task_files: Folders of task files by task, as lm-eval's ``--include_path`` takes them.
        overlaps: The texts that the search's calibration was drawn from as well, in whole or in part.
    """

    search_id: str
    model: str
    mask: Mask
    assessments: Assessments
    task_files: Mapping[str, Path]
    overlaps: tuple[str, ...] = ()

    @property
    def dense(self) -> Mapping[str, Result]:
        """Of the dense model, by metric."""
        return self.assessments.by_mask[Mask()]

    @property
    def pruned(self) -> Mapping[str, Result]:
        """Of the mask, by metric."""
        return self.assessments.by_mask[self.mask]

    @model_serializer
    def _write(self) -> dict[str, Any]:
        """Lay the two models' numbers side by side."""
        return {
            "search_id": self.search_id,
            "model": self.model,
            "removed": self.mask.layers,
            "dense": plain(self.dense, dict[str, Result]),
            "pruned": plain(self.pruned, dict[str, Result]),
            "computed": self.assessments.computed,
            "task_files": self.task_files,
            "overlaps": self.overlaps,
        }
