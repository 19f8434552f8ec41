"""The result of one search: its header, trials, rounds and mask.

Losses are in the unit of the header's measure, seconds are wall-clock, layers are 0-based.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from shlex import quote
from typing import TYPE_CHECKING, Any

from pydantic import SerializationInfo, SerializerFunctionWrapHandler, model_serializer

from raysearch.core.formatting import added
from raysearch.core.json import NumberOrNan, plain
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure, readout_text
from raysearch.core.paths import option_of
from raysearch.searching.figures import Plots
from raysearch.searching.recommendation import Recommendation
from raysearch.searching.separation import Separation
from raysearch.searching.trial import Trial, best_by_size

if TYPE_CHECKING:
    import pandas as pd

#: The fields of a result that describe the work of the process, and not the mask.
_WORK = (
    "evaluations",
    "layer_forwards",
    "layer_tokens",
    "seconds",
    "searcher_seconds",
    "busy_share",
    "pool",
    "ended",
    "versions",
    "git_commit",
    "trials",
    "rounds",
)


@dataclass(frozen=True, kw_only=True)
class SearchHeader:
    """The facts of a search before its first round.

    Args:
        search_id: The id of the search; the same command gives the same id: ``greedy-m5-3fa2c1d0``.
        model: The model as the user named it.
        choices: The chosen file of each group of ``conf/``: ``searcher``, ``data``, ``objective`` …
        config: The resolved configuration, nested, plain values only.
        measure: The unit of the losses.
        data: A description of the samples of each calibration, plain values: their source, their number, and
            ``evaluation_split`` if they are reserved for evaluation.
        fingerprints: Hex digests: ``calibration``, ``model``, ``text``, and ``parts`` if losses are weighted.
        versions: The version of each package: raysearch, torch, transformers, ray, mlflow, python.
        git_commit: The commit of the working folder, if it is a git checkout.
        n_layers: N, the layers of the dense model.
        n_remove: M; for ``remove=auto``, before the result, the largest number that may be removed.
        dtype: The type of the weights in memory, such as ``bfloat16``; empty in old records without it.
        labels: The labels of the search in its study, by axis; empty without a study.
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
    dtype: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None


@dataclass(frozen=True)
class RoundSummary:
    """The state of a search after a round. Counts include all rounds so far, in this process.

    If a search is resumed, evaluations of an earlier process are in the ledger, and so count as cached.

    Args:
        round: The number of the round, 1-based.
        n_requested: How many evaluations the searcher has requested.
        n_computed: How many of them were computed.
        round_best_loss: The lowest loss of a mask of this round, without the dense model; None if none has a loss.
        best_loss: The lowest loss so far of a mask that removes M layers; None if there is none.
        layer_forwards_computed: The computed layer-forwards, in passes of one layer over the whole calibration.
        layer_forwards_naive: The layer-forwards of a full forward for each requested mask, in the same unit.
        seconds: The time since this process started the search.
        busy_share: The share of the replicas' time in which they computed, 0 … 1.
        round_best: The mask of `round_best_loss`.
    """

    round: int
    n_requested: int
    n_computed: int
    round_best_loss: float | None
    best_loss: float | None
    layer_forwards_computed: float
    layer_forwards_naive: float
    seconds: float
    busy_share: float
    round_best: Mask | None = None

    @property
    def n_cached(self) -> int:
        """How many evaluations were in the ledger."""
        return self.n_requested - self.n_computed

    @property
    def best_of_round(self) -> str:
        """The best mask of the round and its loss, ``{17} 3.7726``; empty if none has a loss."""
        if self.round_best is None or self.round_best_loss is None:
            return ""
        return f"{self.round_best} {self.round_best_loss:.4f}"


@dataclass(frozen=True)
class EvaluationCounts:
    """The numbers of evaluations of a search.

    Args:
        requested: Requested by the searcher.
        computed: Computed by this process.
        cached: Found in the ledger.
        screened: Dropped or accepted by screening before they were complete.
    """

    requested: int
    computed: int
    cached: int
    screened: int = 0


@dataclass(frozen=True)
class LayerForwards:
    """The cost of a search, in passes of one layer over the whole calibration.

    Args:
        computed: The layer-forwards of this process.
        alone: The layer-forwards of the whole search with an empty ledger.
        naive: The layer-forwards of a full forward for each requested mask.
        naive_computed: The layer-forwards of a full forward for each mask that this process computed.
    """

    computed: float
    alone: float
    naive: float
    naive_computed: float = 0.0

    @property
    def whole(self) -> float:
        """All work of the search: `computed`, or `alone` if a part of it was in the ledger."""
        # `computed` may be larger, since replicas that share a round run some layers twice.
        return max(self.computed, self.alone)


@dataclass(frozen=True)
class LayerTokens:
    """The number of tokens that layers computed, once per layer.

    Args:
        computed: The tokens, with padding.
        by_row: The tokens without padding, if each choice had a row.
        packed: Whether choices shared their prompt; None if there are no choices, or nothing was computed.
    """

    computed: int
    by_row: int
    packed: bool | None


@dataclass(frozen=True)
class RefinedMask:
    """The losses of a mask before and after a short recovery, on the calibration of the search.

    Args:
        mask: The mask.
        loss: The loss before the recovery.
        recovered_loss: The loss after it.
        steps: The steps of the training.
        tokens: The number of tokens that the model was trained on.
        seconds: The time of the recovery, in the process that did it.
    """

    mask: Mask
    loss: float
    recovered_loss: float
    steps: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Refinement:
    """The best masks of a search before and after the same short recovery.

    Args:
        refinement_id: Its id; its files are next to the ledger, in ``recoveries/``.
        masks: The masks, lowest loss before the recovery first.
        rows: The number of rows for training and for held-out losses; none is in the calibration.
        left_out: The number of rows that were left out, by reason.
        rank_correlation: Spearman's rank correlation of the losses before and after; None if it is undefined, or for
            fewer than three masks.
    """

    refinement_id: str
    masks: tuple[RefinedMask, ...]
    rows: int
    left_out: Mapping[str, int]
    rank_correlation: float | None

    @property
    def best(self) -> RefinedMask:
        """The mask with the lowest loss after the recovery; of equal losses the first in mask order."""
        return min(self.masks, key=lambda refined: (refined.recovered_loss, refined.mask))


#: The value of a remark: a number, a text, or a number for each layer.
RemarkValue = NumberOrNan | str | list[NumberOrNan]


@dataclass(frozen=True, kw_only=True)
class SearchResult(SearchHeader):
    """The mask of a search and all of its evidence, which suffices to repeat the search to a tracker.

    Args:
        removed: The removed layers, 0-based, ascending.
        removal_order: The order of removal, if each round extended the best mask of the last round (greedy); else None.
        dense_loss: The loss of the dense model.
        loss: The loss with the layers removed.
        delta_error: The standard error of `loss` minus `dense_loss` from the choice of samples; None if there is none.
        evaluations: The numbers of evaluations.
        layer_forwards: The cost of the search.
        layer_tokens: The number of tokens that layers computed.
        seconds: The wall-clock time of this process.
        searcher_seconds: The part of `seconds` that the searcher took between an answer and its next request.
        busy_share: The share of the replicas' time in which they computed, 0 … 1.
        n_tokens: The scored tokens of all calibrations.
        n_samples: The samples of all calibrations.
        parameters: The parameters of the dense model.
        parameters_removed: The parameters of the removed layers.
        delta_errors: The `delta_error` of the best mask of each number of layers, by that number.
        statistics: The names of the measured statistics of the dense model, in order.
        remarks: The remarks of the searcher, by name.
        pool: The use of each replica, the number of repeated units, and the seconds without a replica.
        recommendation: The recommended number of layers, for ``remove=auto``; else None.
        refinement: The best masks before and after a short recovery, for ``refine=recover``; else None. `removed` is
            then the best mask after the recovery, and `loss` its loss before.
        separation: How many other masks are not significantly worse; None if that is not known.
        complete: Whether the searcher came to its end; if not, `removed` is the best mask when the budget was spent.
        ended: The time of the end, in seconds since the epoch.
        mlflow_run_id: MLflow's id of the run, if the tracker wrote one.
        mlflow_receipt: The receipt of the tracker (`raysearch.searching.observer.Tracker.receipt`).
        trials: All trials, in order.
        rounds: The summary of each round.
    """

    removed: tuple[int, ...]
    removal_order: tuple[int, ...] | None
    dense_loss: float
    loss: float
    delta_error: float | None
    evaluations: EvaluationCounts
    layer_forwards: LayerForwards
    layer_tokens: LayerTokens
    seconds: float
    searcher_seconds: float
    busy_share: float
    n_tokens: int
    n_samples: int
    parameters: int
    parameters_removed: int
    delta_errors: Mapping[int, float] = field(default_factory=dict)
    statistics: tuple[str, ...] = ()
    remarks: Mapping[str, RemarkValue] = field(default_factory=dict)
    pool: Mapping[str, Any] = field(default_factory=dict)
    recommendation: Recommendation | None = None
    refinement: Refinement | None = None
    separation: Separation | None = None
    complete: bool = True
    ended: float = 0.0
    mlflow_run_id: str | None = None
    mlflow_receipt: str | None = None
    trials: tuple[Trial, ...] = field(default=(), repr=False)
    rounds: tuple[RoundSummary, ...] = field(default=(), repr=False)

    @property
    def mask(self) -> Mask:
        """The removed layers as a mask."""
        return Mask(self.removed)

    @property
    def dense_readout(self) -> float:
        """The readout of the dense loss, such as its perplexity."""
        return self.measure.read(self.dense_loss)

    @property
    def readout(self) -> float:
        """The readout of the loss, such as its perplexity."""
        return self.measure.read(self.loss)

    @property
    def best_by_size(self) -> dict[int, Trial]:
        """The best trial of each number of layers from 1 to M, or of all numbers for ``remove=auto``.

        For M it is the trial of the result. This need not have the lowest loss: a short recovery may have chosen it, or
        several losses are equal.
        """
        largest = len(self.removed) if self.recommendation is None else self.recommendation.sizes[-1].n_removed
        of_result = [trial for trial in self.trials if trial.mask == self.mask and trial.loss is not None][:1]
        best = {len(trial.mask): trial for trial in (*best_by_size(self.trials, largest), *of_result)}
        return dict(sorted(best.items()))

    @property
    def path(self) -> tuple[Trial, ...]:
        """The trials of `best_by_size`, ascending."""
        return tuple(self.best_by_size.values())

    @property
    def began(self) -> float:
        """When this process began the search, in seconds since the epoch."""
        return self.ended - self.seconds

    def with_work_of(self, earlier: SearchResult | None) -> SearchResult:
        """Return the result, with the work of an earlier, equal result if all of this one came from the ledger."""
        if earlier is None or self.evaluations.computed or len(earlier.trials) != len(self.trials):
            return self
        if (earlier.removed, earlier.complete) != (self.removed, self.complete):
            return self
        return replace(self, **{name: getattr(earlier, name) for name in _WORK})

    @property
    def by_round(self) -> tuple[tuple[tuple[Trial, ...], RoundSummary], ...]:
        """The trials and the summary of each round; the dense model is the first trial of the first round."""
        trials = defaultdict[int, list[Trial]](list)
        for trial in self.trials:
            trials[max(trial.round, 1)].append(trial)  # the dense model has round 0
        return tuple((tuple(trials[summary.round]), summary) for summary in self.rounds)

    def to_frame(self) -> pd.DataFrame:
        """Return the trials as a table (`trials_frame`)."""
        return trials_frame(self.trials, self.measure)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the mask of the search, and a table of the best mask of each number of layers."""
        unit = escape(self.measure.unit)
        delta = added(self.loss - self.dense_loss, self.delta_error)
        sentence = f"removed {self.mask} of {self.n_layers} layers (0-based), loss over dense {delta} {unit}"
        columns = ("layers", "removed", f"loss ({unit})", self.measure.readout)
        head = "".join(f"<th>{name}</th>" for name in columns if name)
        rows = ""
        for mask, loss in [(Mask(), self.dense_loss), *((trial.mask, trial.loss) for trial in self.path)]:
            assert loss is not None, "best masks have a loss"
            readouts = [readout_text(self.measure, value) for value in named_readout(self.measure, loss).values()]
            cells = [len(mask), mask, f"{loss:.4f}", *readouts]
            rows += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        title = f"<b>{escape(self.search_id)}</b> on {escape(self.model)}: {sentence}"
        notes = self.warnings if self.separation is None else [str(self.separation), *self.warnings]
        title += "".join(f"<br>{escape(note)}" for note in notes)
        return f"<p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def __str__(self) -> str:
        """Return the result in a few lines."""
        parts = [f"{self.search_id}: removed {self.mask} of {self.n_layers} layers (0-based) of {self.model}"]
        parts.append(f"loss over dense {added(self.loss - self.dense_loss, self.delta_error)} {self.measure.unit}")
        if self.measure.readout is not None:
            readouts = (readout_text(self.measure, readout) for readout in (self.dense_readout, self.readout))
            parts.append(f"{self.measure.readout} {' -> '.join(readouts)}")
        lines = [", ".join(parts)]
        if self.separation is not None:
            lines.append(str(self.separation))
        return "\n".join([*lines, *self.warnings])

    @property
    def warnings(self) -> list[str]:
        """Warnings that a user must read before using the mask, as sentences."""
        if self.loss >= self.dense_loss:
            return []
        below = None if self.separation is None else self.separation.below_dense
        remedy = f"measure it on other data: raysearch assess {self.search_id}{option_of(self.config)}"
        if self.choices["objective"] != "perplexity":
            masks = f"masks=[[],{[*self.removed]}]".replace(" ", "")
            model = self.config["model"]["path"] if self.choices.get("model") == "custom" else self.model
            remedy = f"compare perplexities: raysearch score {quote(f'model={model}')} {quote(masks)}"
        if below != "beyond noise":
            remedy = f"take more samples (data.samples), and {remedy}"
        significance = f", {below}" if below else ""
        return [
            f"Warning: without {self.mask} the loss is lower than the dense model's{significance}; "
            f"these samples do not show what the mask costs. Before you use it, {remedy}"
        ]

    @property
    def plot(self) -> Plots:
        """The figures as Matplotlib axes: ``result.plot.path()``, ``.masks()``, ``.progress()``, ``.trials()``."""
        return Plots(self.trials, self.n_layers, self.mask, self.measure)

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Write the fields; in JSON for users, add the readouts and the best mask of each size."""
        fields: dict[str, Any] = write(self)
        if info.round_trip:
            return fields
        path = [
            {"n_removed": len(trial.mask), "removed": list(trial.mask), "loss": trial.loss}
            | named_readout(self.measure, trial.loss)
            for trial in self.path
            if trial.loss is not None
        ]
        readouts = named_readout(self.measure, self.dense_loss, "dense_{}") | named_readout(self.measure, self.loss)
        return {**fields, **readouts, "path": path}


def in_brief(result: SearchResult) -> dict[str, Any]:
    """Return a result as ``--json`` prints it, without its configuration, trials and rounds."""
    long = ("config", "choices", "trials", "rounds")
    return {name: value for name, value in plain(replace(result, config={})).items() if name not in long}


def trials_frame(trials: Iterable[Trial], measure: Measure) -> pd.DataFrame:
    """Return trials as a table, a row for each mask in the order of proposal; the dense model comes first.

    The columns are the fields of `Trial`, the number of removed layers, the readout under its name, and the loss on
    each calibration if there are several. A failed mask has no loss. A screened mask has no loss, but an estimate with
    bounds.

    Args:
        trials: The trials of a search; at least one.
        measure: The unit of their losses.
    """
    import pandas as pd

    rows = []
    for trial in trials:
        readout = {} if trial.loss is None else named_readout(measure, trial.loss)
        fields = {name: value for name, value in vars(trial).items() if name not in ("parts", "screened", "mask")}
        bounds = {} if trial.screened is None else vars(trial.screened)
        row = {"mask": str(trial.mask), "n_removed": len(trial.mask), **fields, **readout}
        row |= {"screened": bool(bounds)} | {f"screened_{name}": value for name, value in bounds.items()}
        row |= {f"loss on {name}": loss for name, loss in trial.parts.items()}
        rows.append(row)
    return pd.DataFrame(rows).set_index("index")


def named_readout(measure: Measure, loss: float, name: str = "{}") -> dict[str, float]:
    """Return the readout of a loss under its name: ``{"perplexity": 41.1}``; empty if there is no readout.

    Args:
        measure: The unit of the loss.
        loss: The loss.
        name: The format of the name, such as ``dense_{}``.
    """
    return {} if measure.readout is None else {name.format(measure.readout): measure.read(loss)}


def uses_evaluation_split(data: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the samples of any calibration, described as in `SearchHeader.data`, are an evaluation split."""
    return any(description.get("evaluation_split") for description in data)
