"""The record of one search: its header, its trials, its rounds, its result.

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

#: What a process tells of its own work.
_WORK = (
    *("evaluations", "layer_forwards", "layer_tokens", "seconds", "searcher_seconds", "busy_share", "pool", "ended"),
    *("versions", "git_commit", "trials", "rounds"),
)


@dataclass(frozen=True, kw_only=True)
class SearchHeader:
    """A search before its first round.

    Args:
        search_id: The search's own name, the same whenever the same command is given: ``greedy-m5-3fa2c1d0``.
        model: The model as the user named it.
        choices: The chosen file of each group of ``conf/``: ``searcher``, ``data``, ``objective`` …
        config: The resolved configuration, nested, plain values only.
        data: What the samples of each calibration are, plain values: where they are from, how many, and
            ``evaluation_split`` where they are kept for evaluation.
        fingerprints: Hex digests by subject: ``calibration``, ``model``, ``text``, and ``parts`` where it is weighted.
        versions: Version by package: raysearch, torch, transformers, ray, mlflow, python.
        git_commit: The commit of the working folder, when it is a git checkout.
        dtype: Of the weights in memory, e.g. ``bfloat16``; empty in records of searches that did not note it.
        n_remove: M; before the result of ``remove=auto`` the most that may go.
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
    dtype: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None


@dataclass(frozen=True)
class RoundSummary:
    """Where a search stands after a round; counts are over the search up to here, as this process sees it.

    When a search is taken up again, the ledger knows what an earlier process computed, so that counts as cached.

    Args:
        round: The round just done, 1-based.
        n_requested: Evaluations requested by the searcher, of which `n_computed` were computed.
        round_best_loss: The lowest of this round, but for the dense model; None if no mask of it has a loss.
        best_loss: The lowest loss so far of a mask that removes M layers; None before there is one.
        layer_forwards_computed: In passes of one layer over the whole calibration.
        layer_forwards_naive: What a full forward per mask requested would have computed, in the same unit.
        seconds: Since this process started the search.
        busy_share: Share of replica time spent computing, 0 … 1.
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
        """Evaluations that the ledger knew."""
        return self.n_requested - self.n_computed

    @property
    def best_of_round(self) -> str:
        """The best mask of the round and its loss, ``{17} 3.7726``; empty if none has a loss."""
        known = self.round_best is not None and self.round_best_loss is not None
        return f"{self.round_best} {self.round_best_loss:.4f}" if known else ""


@dataclass(frozen=True)
class EvaluationCounts:
    """The evaluations that a searcher requested, this process computed, and the ledger knew.

    Of all, `screened` were dropped or accepted before they were complete.
    """

    requested: int
    computed: int
    cached: int
    screened: int = 0


@dataclass(frozen=True)
class LayerForwards:
    """The cost of a search, in passes of one layer over the whole calibration.

    Args:
        computed: By this process.
        alone: The same on an empty ledger: all of the search's work, whoever did it.
        naive: What a full forward per mask requested would have cost.
        naive_computed: What one for each of the masks that this process computed would have cost.
    """

    computed: float
    alone: float
    naive: float
    naive_computed: float = 0.0

    @property
    def whole(self) -> float:
        """All work of the search: `computed`, or `alone` where the ledger knew a part of it."""
        return max(self.computed, self.alone)  # replicas that share a round run some layers twice


@dataclass(frozen=True)
class LayerTokens:
    """Tokens that went through layers, counted once a layer.

    Args:
        computed: Padding included.
        by_row: The same with a row for each choice, without padding.
        packed: Whether choices shared their prompt; None where there are no choices, or nothing was computed.
    """

    computed: int
    by_row: int
    packed: bool | None


@dataclass(frozen=True)
class RefinedMask:
    """A mask's losses before and after a short recovery, on the search's own calibration.

    Args:
        steps: Steps of the training that were taken.
        tokens: Tokens that the model was trained on.
        seconds: Of the recovery, in the process that did it.
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
        refinement_id: Its name; what is kept of it lies beside the ledger, in ``recoveries/``.
        masks: The lowest loss before first.
        rows: Rows that each was trained and followed on, none of them of the calibration.
        left_out: Rows that were left out, by the reason.
        rank_correlation: Spearman's, of the losses before and after; None for fewer than three masks, and where it is
            undefined.
    """

    refinement_id: str
    masks: tuple[RefinedMask, ...]
    rows: int
    left_out: Mapping[str, int]
    rank_correlation: float | None

    @property
    def best(self) -> RefinedMask:
        """The mask of the lowest loss after the recovery; of ties the first."""
        return min(self.masks, key=lambda one: (one.recovered_loss, one.mask))


#: A number, a text, or one number for each layer.
RemarkValue = NumberOrNan | str | list[NumberOrNan]


@dataclass(frozen=True, kw_only=True)
class SearchResult(SearchHeader):
    """The mask that a search found and all of its evidence, enough to repeat the search to a tracker.

    Args:
        removed: The removed layers, 0-based, ascending.
        removal_order: The order of removal, if each round extended the best mask of the one before (greedy); else None.
        loss: The loss with the layers removed.
        delta_error: Standard error of its difference from the dense loss, by the choice of samples; None where there
            is none.
        delta_errors: The same of the best mask of each number of layers, by that number.
        seconds: Wall-clock, this process only.
        searcher_seconds: Of these, what the searcher itself took between an answer and its next request.
        busy_share: Share of replica time spent computing, 0 … 1.
        n_tokens: Scored tokens of all calibrations.
        parameters: Of the dense model.
        parameters_removed: Of the removed layers.
        statistics: The names of what it measured of the dense model, in order.
        remarks: What the searcher put on the record, by name.
        pool: How each replica fared, what had to be asked again, and seconds spent waiting for a replica.
        recommendation: The number of layers that a budget allows, for ``remove=auto``; else None.
        refinement: Its best masks before and after a short recovery, for ``refine=recover``, where `removed` is the
            best after it, and `loss` that mask's before; else None.
        separation: Which other masks are not significantly worse; None where that is not known.
        complete: Whether the searcher came to its end; else this is the best mask so far when its budget was spent.
        ended: When, in seconds since the epoch.
        mlflow_run_id: The parent run, if the tracker wrote one.
        mlflow_receipt: As `raysearch.searching.observer.Tracker.receipt`.
        trials: Every mask the search saw, in order.
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
        """The dense loss as people read it, e.g. its perplexity."""
        return self.measure.read(self.dense_loss)

    @property
    def readout(self) -> float:
        """The loss as people read it, e.g. its perplexity."""
        return self.measure.read(self.loss)

    @property
    def best_by_size(self) -> dict[int, Trial]:
        """The best trial of each number of layers that the search scored, from 1 to M; all for ``remove=auto``.

        For M it is that of the result, which need not have the lowest loss: after a short recovery, or of equal ones.
        """
        most = len(self.removed) if self.recommendation is None else self.recommendation.sizes[-1].n_removed
        found = [trial for trial in self.trials if trial.mask == self.mask and trial.loss is not None][:1]
        best = {len(trial.mask): trial for trial in (*best_by_size(self.trials, most), *found)}
        return dict(sorted(best.items()))

    @property
    def path(self) -> tuple[Trial, ...]:
        """The trials of `best_by_size`, ascending."""
        return tuple(self.best_by_size.values())

    @property
    def began(self) -> float:
        """When this process began it, in seconds since the epoch."""
        return self.ended - self.seconds

    def with_work_of(self, earlier: SearchResult | None) -> SearchResult:
        """Return the result with the work of an earlier one that found the same, if all of this is from the ledger."""
        if earlier is None or self.evaluations.computed or len(earlier.trials) != len(self.trials):
            return self
        if (earlier.removed, earlier.complete) != (self.removed, self.complete):
            return self
        return replace(self, **{name: getattr(earlier, name) for name in _WORK})

    @property
    def by_round(self) -> tuple[tuple[tuple[Trial, ...], RoundSummary], ...]:
        """Each round's trials and summary; the dense model is the first trial of the first round."""
        trials = defaultdict[int, list[Trial]](list)
        for trial in self.trials:
            trials[max(trial.round, 1)].append(trial)  # the dense model's is 0
        return tuple((tuple(trials[summary.round]), summary) for summary in self.rounds)

    def to_frame(self) -> pd.DataFrame:
        """Return the trials as a table, a row for each mask in the order of proposal; the dense model comes first.

        Its columns are the fields of `Trial`, the number of removed layers, the readout by its name, and the loss on
        each calibration where there are several. A mask has no loss if it failed or was screened; then it has an
        estimate with bounds.
        """
        import pandas as pd

        rows = []
        for trial in self.trials:
            read = {} if trial.loss is None else named_readout(self.measure, trial.loss)
            whole = {name: value for name, value in vars(trial).items() if name not in ("parts", "screened", "mask")}
            bounds = {} if trial.screened is None else vars(trial.screened)
            rows.append({"mask": str(trial.mask), "n_removed": len(trial.mask), **whole, **read})
            rows[-1] |= {"screened": bool(bounds)} | {f"screened_{name}": value for name, value in bounds.items()}
            rows[-1] |= {f"loss on {name}": loss for name, loss in trial.parts.items()}
        return pd.DataFrame(rows).set_index("index")

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what was found, and the best mask of each number of layers."""
        unit = escape(self.measure.unit)
        delta = added(self.loss - self.dense_loss, self.delta_error)
        said = f"removed {self.mask} of {self.n_layers} layers (0-based), loss over dense {delta} {unit}"
        columns = ("layers", "removed", f"loss ({unit})", self.measure.readout)
        head = "".join(f"<th>{name}</th>" for name in columns if name)
        rows = ""
        for mask, loss in [(Mask(), self.dense_loss), *((trial.mask, trial.loss) for trial in self.path)]:
            assert loss is not None, "best masks have one"
            readouts = [readout_text(self.measure, value) for value in named_readout(self.measure, loss).values()]
            cells = [len(mask), mask, f"{loss:.4f}", *readouts]
            rows += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        title = f"<b>{escape(self.search_id)}</b> on {escape(self.model)}: {said}"
        notes = [*([] if self.separation is None else [str(self.separation)]), *self.warnings]
        title += "".join(f"<br>{escape(note)}" for note in notes)
        return f"<p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def __str__(self) -> str:
        """Return what was found in a few lines."""
        parts = [f"{self.search_id}: removed {self.mask} of {self.n_layers} layers (0-based) of {self.model}"]
        parts.append(f"loss over dense {added(self.loss - self.dense_loss, self.delta_error)} {self.measure.unit}")
        if self.measure.readout is not None:
            readouts = (readout_text(self.measure, readout) for readout in (self.dense_readout, self.readout))
            parts.append(f"{self.measure.readout} {' -> '.join(readouts)}")
        lines = [", ".join(parts), *([] if self.separation is None else [str(self.separation)])]
        return "\n".join([*lines, *self.warnings])

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before the mask is used, in sentences; empty if there is nothing."""
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
        return [
            f"Warning: without {self.mask} the loss is lower than the dense model's{f', {below}' if below else ''}; "
            f"these samples do not show what the mask costs. Before you use it, {remedy}"
        ]

    @property
    def plot(self) -> Plots:
        """Its figures, as Matplotlib axes: ``result.plot.path()``, ``.masks()``, ``.progress()``, ``.trials()``."""
        return Plots(self.trials, self.n_layers, self.mask, self.measure)

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Add, for people and programs to read, how losses read and the best mask of each size."""
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
    """Return a result as ``--json`` prints it: without its configuration, trials and rounds."""
    long = ("config", "choices", "trials", "rounds")
    return {name: value for name, value in plain(replace(result, config={})).items() if name not in long}


def named_readout(measure: Measure, loss: float, name: str = "{}") -> dict[str, float]:
    """Return the readout of a loss by its name: ``{"perplexity": 41.1}``; nothing where there is no readout."""
    return {} if measure.readout is None else {name.format(measure.readout): measure.read(loss)}


def uses_evaluation_split(data: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether any calibration's samples, as described in the header, are kept for evaluation."""
    return any(one.get("evaluation_split") for one in data)
