"""All that a search tells its tracker, in one piece: as the ledger keeps it, and as it is told again."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.search.observer import Observer
from raysearch.search.result import RoundSummary, SearchHeader, SearchResult, Trial


@dataclass(frozen=True)
class SearchHistory:
    """All that a search tells its tracker.

    Args:
        header: Told first.
        rounds: Each round's trials and summary; the dense model is the first trial of the first round.
        result: Told last.
    """

    header: SearchHeader
    rounds: tuple[tuple[tuple[Trial, ...], RoundSummary], ...]
    result: SearchResult

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial in order."""
        return tuple(trial for trials, _ in self.rounds for trial in trials)

    def tell(self, observer: Observer, rounds: int | None = None) -> None:
        """Starts, and tells the first `rounds` rounds; all of them, and the result, where that is None."""
        observer.search_started(self.header)
        for trials, summary in self.rounds[:rounds]:
            for trial in trials:
                observer.trial(trial)
            observer.round_done(summary)
        if rounds is None:
            observer.search_ended(self.result)


def as_record(header: SearchHeader, result: SearchResult) -> dict[str, Any]:
    """What the ledger keeps of a search that has just ended: `SearchResult.as_json`, trials, rounds, and the rest."""
    return {
        **result.as_json(),
        "trials": [{**asdict(trial), "mask": list(trial.mask)} for trial in result.trials],
        "rounds": [
            {**asdict(summary), "round_best": None if summary.round_best is None else list(summary.round_best)}
            for summary in result.rounds
        ],
        "told": {
            "ended": time.time(),
            "versions": dict(header.versions),
            "git_commit": header.git_commit,
            "labels": dict(header.labels),
            "parent": header.parent,
        },
    }


def read_record(config: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[SearchHistory, float]:
    """What a search told, and when it began, in seconds since the epoch.

    Args:
        config: Its resolved configuration.
        record: What `as_record` made of it.
    """
    trials = [Trial(**{**trial, "mask": Mask.of(*trial["mask"])}) for trial in record["trials"]]
    summaries = [
        RoundSummary(**{**one, "round_best": None if one["round_best"] is None else Mask.of(*one["round_best"])})
        for one in record["rounds"]
    ]
    shared = {key: record[key] for key in ("search_id", "model", "n_layers", "data", "fingerprints")}
    measure = Measure(**record["measure"])
    result = SearchResult(
        **shared,
        **{
            key: record[key]
            for key in (
                *("dense_loss", "loss", "delta_error", "seconds", "busy_share", "n_tokens", "n_samples", "parameters"),
                *("parameters_removed", "statistics", "complete", "pool", "mlflow_run_id"),
            )
        },
        **record["evaluations"],
        **{f"layer_forwards_{kind}": value for kind, value in record["layer_forwards"].items()},
        removed=tuple(record["removed"]),
        removal_order=None if record["removal_order"] is None else tuple(record["removal_order"]),
        measure=measure,
        layer_tokens=record["layer_tokens"]["run"],
        layer_tokens_by_row=record["layer_tokens"]["by_row"],
        packed=record["layer_tokens"]["packed"],
        searcher_s=record["searcher_seconds"],
        remarks={name: _number(value) for name, value in record["remarks"].items()},
        trials=trials,
        rounds=summaries,
    )
    told = record["told"]
    header = SearchHeader(
        **shared,
        **{key: told[key] for key in ("versions", "git_commit", "labels", "parent")},
        choices=config["choices"],
        config=config,
        measure=measure,
        n_remove=len(result.removed),
    )
    by_round = defaultdict[int, list[Trial]](list)
    for trial in trials:
        by_round[max(trial.round, 1)].append(trial)  # the dense model's is 0
    rounds = tuple((tuple(by_round[summary.round]), summary) for summary in summaries)
    return SearchHistory(header, rounds, result), told["ended"] - result.seconds


def _number(value: Any) -> Any:
    """A remark as it was before JSON, which has no word for what is infinite or no number at all."""
    if isinstance(value, list):
        return [*map(_number, value)]
    return math.nan if value is None else value
