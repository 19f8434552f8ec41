"""The tests of the contract of trackers, and searches to record.

A tracker is tested by a subclass:

    class TestMyTracker(TrackerSuite):
        def make_tracker(self, folder, warn):
            return MyTracker(folder, warn)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY, Measure
from raysearch.core.trial import Trial
from raysearch.searching.events import (
    RoundEnded,
    SearchEnded,
    SearchStarted,
    StudyHeader,
    StudyReported,
    StudyStarted,
    StudyStopped,
    TrialScored,
)
from raysearch.searching.observer import Tracker, repeat
from raysearch.searching.result import ParameterCounts, RemarkValue, RoundSummary, SampleCounts, SearchResult
from raysearch.searching.work import EvaluationCounts, LayerForwards, LayerTokens, SearchWork

MARGIN = Measure("nats per answer token", "sample", "margin")
ACCURACY = Measure("errors per item", "sample", "accuracy")
KL = Measure("nats per token", "token")


def search_of(
    rounds: Iterable[Iterable[Mask]],
    loss: Callable[[Mask], float],
    n_layers: int,
    n_remove: int,
    search_id: str,
    measure: Measure = PERPLEXITY,
) -> SearchResult:
    """Return the result of a search.

    Args:
        rounds: The masks of each round.
        loss: The loss of each mask.
        n_layers: N, the number of layers of the model.
        n_remove: M, the number of layers to remove.
        search_id: The id of the search.
        measure: The unit of the losses.
    """
    dense_loss = loss(Mask())
    trials = [Trial(0, 0, Mask(), dense_loss, 0.0, None, cached=False)]
    summaries = []
    for number, masks in enumerate(rounds, start=1):
        begin = len(trials)
        for mask in masks:
            value = loss(mask)
            trials.append(Trial(len(trials), number, mask, value, value - dense_loss, None, cached=False))
        solution_losses = [trial.loss for trial in trials if trial.loss is not None and len(trial.mask) == n_remove]
        best = min(solution_losses, default=None)
        best_of_round = min(trial.loss for trial in trials[begin:] if trial.loss is not None)
        naive = float(len(trials) * n_layers)
        summaries.append(
            RoundSummary(number, len(trials), len(trials), best_of_round, best, naive / 2, naive, 2.5 * number, 0.9)
        )
    solutions = [trial for trial in trials if len(trial.mask) == n_remove and trial.loss is not None]
    final = min(solutions, key=lambda trial: (trial.loss, trial.mask))
    assert final.loss is not None
    return SearchResult(
        search_id=search_id,
        model="tiny",
        choices={"searcher": "greedy", "data": "wikitext", "objective": "perplexity", "cluster": "local"},
        config={
            "searcher": {"type": "beam", "width": 1},
            "model": {"name": "tiny", "path": "tiny"},
            "remove": n_remove,
            "seed": 0,
        },
        measure=measure,
        data=[{"source": "hub", "name": "wikitext", "split": "train", "samples": 64, "n_tokens": 8192}],
        fingerprints={"calibration": "c" * 16, "model": "m" * 16},
        versions={"raysearch": "0.1.0", "python": "3.11"},
        git_commit="0123abc",
        n_layers=n_layers,
        n_remove=n_remove,
        removed=final.mask.layers,
        removal_order=final.mask.layers,
        dense_loss=dense_loss,
        loss=final.loss,
        delta_error=0.0125,
        work=SearchWork(
            evaluations=EvaluationCounts(len(trials), len(trials), 0),
            layer_forwards=LayerForwards(
                summaries[-1].layer_forwards_computed, 527.0, summaries[-1].layer_forwards_naive
            ),
            layer_tokens=LayerTokens(300_000, 400_000, True if measure.per == "sample" else None),
            seconds=2.5 * len(summaries),
            searcher_seconds=0.25,
            busy_share=0.9,
            ended=1_700_000_000.0,
        ),
        samples=SampleCounts(n_tokens=8192, n_samples=64),
        size=ParameterCounts(parameters=1000, parameters_removed=250),
        remarks={"gap": 0.031, "solver": "proven", "ablation": [loss(Mask.of(layer)) for layer in range(n_layers)]},
        trials=tuple(trials),
        rounds=tuple(summaries),
    )


def small_search(search_id: str = "greedy-m2-00000000", measure: Measure = PERPLEXITY) -> SearchResult:
    """Return the result of a greedy search that removed two of four layers, with invented losses, some below 0.

    Args:
        search_id: The id of the search.
        measure: The unit of the losses.
    """
    singles = [Mask.of(layer) for layer in range(4)]
    pairs = [Mask.of(0, layer) for layer in (1, 2, 3)]
    return search_of([singles, pairs], lambda mask: 0.1 * sum(mask) - 0.05, 4, 2, search_id, measure)


class TrackerSuite(ABC):
    """The contract of `raysearch.searching.observer.Tracker`, as tests."""

    @abstractmethod
    def make_tracker(self, folder: Path, warn: Callable[[str], None]) -> Tracker:
        """Return a tracker that works.

        Args:
            folder: Where it records; a second tracker for the same folder finds the records of the first.
            warn: Receives each warning.
        """

    def make_unreachable(self, folder: Path, warn: Callable[[str], None]) -> Tracker:
        """Return a tracker whose backend does not answer. Do not override this if there is no backend.

        Args:
            folder: Where it would record.
            warn: Receives each warning.
        """
        pytest.skip("this tracker has no backend that could be missing")

    def test_a_search_is_recorded_and_closed(self, tmp_path: Path) -> None:
        """Start, rounds, result and close are recorded; closing twice is harmless."""
        warnings: list[str] = []
        tracker = self.make_tracker(tmp_path, warnings.append)
        repeat(small_search(), tracker)
        name = tracker.close()
        assert warnings == [], warnings
        assert tracker.close() == name, "closing twice is harmless"

    def test_a_tracker_without_a_search_closes(self, tmp_path: Path) -> None:
        """A search may end before it starts."""
        assert self.make_tracker(tmp_path, pytest.fail).close() is None

    @pytest.mark.parametrize("failure", [None, "out of memory on every replica"], ids=["interrupted", "failed"])
    def test_a_search_without_a_result_is_recorded_again(self, tmp_path: Path, failure: str | None) -> None:
        """After a failure or an interruption, the tracker receives the search again from its beginning."""
        warnings: list[str] = []
        search = small_search()
        first = self.make_tracker(tmp_path, warnings.append)
        repeat(search, first, rounds=1)
        first.on_event(SearchEnded(None, failure))
        name = first.close()
        second = self.make_tracker(tmp_path, warnings.append)
        repeat(search, second)
        assert second.close() == name, "a resumed search continues in its run"
        assert warnings == [], warnings

    @pytest.mark.parametrize("measure", [MARGIN, ACCURACY, KL], ids=["margin", "accuracy", "no readout"])
    def test_losses_of_every_measure_are_recorded(self, tmp_path: Path, measure: Measure) -> None:
        """Losses may be negative, may be shares, may have no readout, and may have parts."""
        warnings: list[str] = []
        search = small_search(measure=measure)
        tracker = self.make_tracker(tmp_path, warnings.append)
        tracker.on_event(SearchStarted(search))
        for trial in search.trials:
            tracker.on_event(TrialScored(replace(trial, parts={"perplexity on c4": 2.5, "a@b " * 100: -0.5})))
        tracker.on_event(RoundEnded(search.rounds[-1]))
        tracker.on_event(SearchEnded(search))
        tracker.close()
        assert warnings == [], warnings

    def test_odd_values_are_recorded(self, tmp_path: Path) -> None:
        """Infinite losses, long texts, odd remarks, failed trials and rounds without a loss are data."""
        warnings: list[str] = []
        search = small_search()
        tracker = self.make_tracker(tmp_path, warnings.append)
        config: dict[str, Any] = {"text": "x" * 10_000, "none": None, "list": [1, 2], "empty": {}, "a@b": "é"}
        tracker.on_event(SearchStarted(replace(search, config=config)))
        tracker.on_event(TrialScored(Trial(0, 0, Mask(), 2.8, 0.0, None, cached=True)))
        tracker.on_event(TrialScored(Trial(1, 1, Mask.of(0), float("inf"), float("inf"), None, cached=False)))
        tracker.on_event(
            TrialScored(Trial(2, 1, Mask.of(1), None, None, "the replica died 3 times: " + "x" * 10_000, cached=False))
        )
        tracker.on_event(RoundEnded(RoundSummary(1, 3, 2, None, None, 0.0, 0.0, 0.0, 0.0)))
        remarks: dict[str, RemarkValue] = {
            "gap": float("nan"),
            "a@b" * 100: "x" * 10_000,
            "list": [1.0, float("inf")] * 1000,
            "none": [],
        }
        tracker.on_event(
            SearchEnded(replace(search, removal_order=None, loss=float("inf"), trials=(), remarks=remarks))
        )
        tracker.close()
        assert warnings == [], warnings

    def test_a_study_is_recorded_as_a_whole(self, tmp_path: Path) -> None:
        """Start, a search, a report and a stop are recorded; so is the end after the study is resumed."""
        report = tmp_path / "report.html"
        report.write_text("<!DOCTYPE html>")
        header = StudyHeader("study-1", {"study": {"name": "x"}}, ["greedy"])
        files = [report]
        warnings: list[str] = []
        for ended in (False, True):
            tracker = self.make_tracker(tmp_path, warnings.append)
            tracker.on_event(StudyStarted(header))
            name = tracker.run_id
            search = self.make_tracker(tmp_path, warnings.append)
            repeat(replace(small_search(), parent=name or ""), search)
            search.close()
            tracker.on_event(StudyReported(name, {"searches/done": 1.0}, files, ended))
            if not ended:
                tracker.on_event(StudyStopped(name, []))
            assert tracker.close() == name
        assert warnings == [], warnings

    def test_an_unreachable_backend_causes_one_warning(self, tmp_path: Path) -> None:
        """The search continues; one warning reports that it was not recorded."""
        warnings: list[str] = []
        tracker = self.make_unreachable(tmp_path, warnings.append)
        repeat(small_search(), tracker)
        tracker.close()
        assert len(warnings) == 1
