"""The record of one search: its header, its trials, its rounds, its result.

Losses are in the unit of the header's measure, seconds are wall-clock, layers are 0-based.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from raysearch.core.estimate import finite
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure


@dataclass(frozen=True)
class SearchHeader:
    """What is known of a search before its first round.

    Args:
        search_id: The search's own name, the same whenever the same command is given: ``greedy-m5-3fa2c1d0``.
        model: The model as the user named it.
        choices: The chosen file of each group of ``conf/``: ``searcher``, ``data``, ``objective`` …
        config: The resolved configuration, nested, plain values only.
        measure: What losses are counted in.
        data: What the samples of each calibration are, plain values: where they are from, how many, and
            ``evaluation_split`` where they are kept for evaluation.
        fingerprints: Hex digests by subject: ``calibration``, ``model``, ``text``.
        versions: Version by package: raysearch, torch, transformers, ray, mlflow, python.
        git_commit: The commit of the working folder, when it is a git checkout.
        n_layers: N.
        n_remove: M.
        labels: What the search is called in its study, by axis; empty where it is part of none.
        parent: The tracker's id of the study, if it has one.
    """

    search_id: str
    model: str
    choices: Mapping[str, str]
    config: Mapping[str, Any]
    measure: Measure
    data: Sequence[Mapping[str, Any]]
    fingerprints: Mapping[str, str]
    versions: Mapping[str, str]
    git_commit: str | None
    n_layers: int
    n_remove: int
    labels: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None


@dataclass(frozen=True)
class Trial:
    """A mask as one search saw it.

    Args:
        index: Its place in the order of proposal, 0-based; the dense model is told first, as trial 0 of round 0.
        round: The round that proposed it, 1-based; 0 for the dense model.
        mask: The removed layers.
        loss: In the measure's unit; None if the evaluation failed.
        delta: Loss minus the dense model's; None if the evaluation failed.
        failure: The cause, if it failed.
        answered: Whether the ledger knew it, so that nothing was run for it.
        parts: The loss on each calibration by its name, where there are several; without those that failed.
    """

    index: int
    round: int
    mask: Mask
    loss: float | None
    delta: float | None
    failure: str | None
    answered: bool
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundSummary:
    """Where a search stands after a round; counts are over the search up to here, as this process sees it.

    When a search is taken up again, what an earlier process computed is answered by the ledger, and counts as that.

    Args:
        round: The round just done, 1-based.
        asked: Evaluations asked for by the searcher.
        run: Those that were computed; the rest the ledger answered.
        round_best_loss: The lowest loss of this round; None if all failed.
        best_loss: The lowest loss so far of a mask that removes M layers; None before there is one.
        layer_forwards_run: Layer-forwards computed, in passes of one layer over the whole calibration.
        layer_forwards_naive: What a full forward per mask asked would have computed, in the same unit.
        seconds: Since this process started the search.
        busy_share: Share of replica time spent computing, 0 … 1.
        round_best: The mask of the round's lowest loss; None if all failed.
    """

    round: int
    asked: int
    run: int
    round_best_loss: float | None
    best_loss: float | None
    layer_forwards_run: float
    layer_forwards_naive: float
    seconds: float
    busy_share: float
    round_best: Mask | None = None


@dataclass(frozen=True)
class SearchResult:
    """What a search found, with its evidence.

    Args:
        search_id: Names the search for ``raysearch export``, ``show`` and ``resume``.
        model: The model as the user named it.
        n_layers: N, the layers of the dense model.
        removed: The removed layers, 0-based, ascending.
        removal_order: The order of removal, if each round extended the best mask of the one before (greedy); else None.
        measure: What losses are counted in.
        dense_loss: The loss with nothing removed.
        loss: The loss with the layers removed.
        delta_error: Standard error of the difference of the two, by the choice of samples; None where there is none.
        asked: Evaluations the searcher asked for.
        run: Those computed.
        answered: Those the ledger knew.
        layer_forwards_run: Passes of one layer over the whole calibration.
        layer_forwards_alone: The same on an empty ledger: all of the search's work, whoever did it.
        layer_forwards_naive: What a full forward per mask asked would have run.
        layer_tokens: Tokens that went through layers, padding included, counted once a layer.
        layer_tokens_by_row: The same with a row for each choice, without padding.
        packed: Whether choices shared their prompt; None where there are no choices, or nothing was run.
        seconds: Wall-clock, this process only.
        searcher_s: Of these, what the searcher itself took between an answer and its next request.
        busy_share: Share of replica time spent computing, 0 … 1.
        pool: How each replica fared, what had to be asked again, and seconds spent waiting for a replica.
        n_tokens: Scored tokens of all calibrations.
        n_samples: Samples of all calibrations.
        parameters: Of the dense model.
        parameters_removed: Of the removed layers.
        data: What the samples are, as in the header.
        fingerprints: Hex digests by subject, as in the header.
        statistics: The names of what it measured of the dense model, in order.
        remarks: What the searcher put on the record, by name: a number, a text, or one number for each layer.
        complete: Whether the searcher came to its end; else this is the best mask so far when its budget was spent.
        mlflow_run_id: The parent run, if the tracker wrote one.
        trials: Every mask the search saw, in order.
        rounds: Where it stood after each round.
    """

    search_id: str
    model: str
    n_layers: int
    removed: tuple[int, ...]
    removal_order: tuple[int, ...] | None
    measure: Measure
    dense_loss: float
    loss: float
    delta_error: float | None
    asked: int
    run: int
    answered: int
    layer_forwards_run: float
    layer_forwards_alone: float
    layer_forwards_naive: float
    layer_tokens: int
    layer_tokens_by_row: int
    packed: bool | None
    seconds: float
    searcher_s: float
    busy_share: float
    n_tokens: int
    n_samples: int
    parameters: int
    parameters_removed: int
    data: Sequence[Mapping[str, Any]]
    fingerprints: Mapping[str, str]
    statistics: Sequence[str] = ()
    remarks: Mapping[str, float | str | list[float]] = field(default_factory=dict)
    pool: Mapping[str, Any] = field(default_factory=dict)
    complete: bool = True
    mlflow_run_id: str | None = None
    trials: Sequence[Trial] = field(default=(), repr=False)
    rounds: Sequence[RoundSummary] = field(default=(), repr=False)

    @property
    def mask(self) -> Mask:
        """The removed layers as a mask."""
        return Mask(self.removed)

    @property
    def dense_readout(self) -> float:
        """The dense loss as people read it, e.g. its perplexity."""
        return self.measure.read(self.dense_loss)

    @property
    def readout(self) -> float:
        """The loss as people read it, e.g. its perplexity."""
        return self.measure.read(self.loss)

    @property
    def path(self) -> tuple[Trial, ...]:
        """The best trial of each number of layers that the search scored, from 1 up to M."""
        return best_by_size(self.trials, len(self.removed))

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return {
            "search_id": self.search_id,
            "model": self.model,
            "n_layers": self.n_layers,
            "removed": list(self.removed),
            "removal_order": None if self.removal_order is None else list(self.removal_order),
            "measure": asdict(self.measure),
            "dense_loss": self.dense_loss,
            "loss": self.loss,
            "delta_error": self.delta_error,
            **plain_readout(self.measure, self.dense_loss, "dense_"),
            **plain_readout(self.measure, self.loss),
            "path": [
                {
                    "n_removed": len(trial.mask),
                    "removed": list(trial.mask),
                    "loss": trial.loss,
                    **plain_readout(self.measure, trial.loss),
                }
                for trial in self.path
                if trial.loss is not None
            ],
            "remarks": finite(self.remarks),
            "statistics": list(self.statistics),
            "complete": self.complete,
            "n_tokens": self.n_tokens,
            "n_samples": self.n_samples,
            "evaluations": {"asked": self.asked, "run": self.run, "answered": self.answered},
            "layer_forwards": {
                "run": self.layer_forwards_run,
                "alone": self.layer_forwards_alone,
                "naive": self.layer_forwards_naive,
            },
            "layer_tokens": {"run": self.layer_tokens, "by_row": self.layer_tokens_by_row, "packed": self.packed},
            "parameters": self.parameters,
            "parameters_removed": self.parameters_removed,
            "busy_share": self.busy_share,
            "pool": dict(self.pool),
            "seconds": self.seconds,
            "searcher_seconds": self.searcher_s,
            "data": [dict(one) for one in self.data],
            "fingerprints": dict(self.fingerprints),
            "mlflow_run_id": self.mlflow_run_id,
        }


def named_readout(measure: Measure, loss: float, prefix: str = "") -> dict[str, float]:
    """What people read a loss as, under its name: ``{"perplexity": 41.1}``; nothing where there is no readout."""
    return {} if measure.readout is None else {prefix + measure.readout: measure.read(loss)}


def plain_readout(measure: Measure, loss: float, prefix: str = "") -> dict[str, float | None]:
    """`named_readout` as JSON can say it."""
    plain: dict[str, float | None] = finite(named_readout(measure, loss, prefix))
    return plain


def uses_evaluation_split(data: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any calibration's samples, as described in the header, are kept for evaluation."""
    return any(one.get("evaluation_split") for one in data)


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """The trials that have a loss, lowest first; ties in mask order, as searchers break them."""
    scored = [(trial.loss, trial.mask, trial.index, trial) for trial in trials if trial.loss is not None]
    return [trial for *_, trial in sorted(scored, key=lambda item: item[:3])]


def best_by_size(trials: Iterable[Trial], at_most: int) -> tuple[Trial, ...]:
    """The best trial of each number of layers from 1 to `at_most`, ascending."""
    best: dict[int, Trial] = {}
    for trial in ranked(trials):
        best.setdefault(len(trial.mask), trial)
    return tuple(best[size] for size in sorted(best) if 1 <= size <= at_most)
