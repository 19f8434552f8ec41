"""The result of one search: its header, trials, rounds and mask.

Losses are in the unit of the header's measure, seconds are wall-clock, layers are 0-based.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from html import escape
from shlex import quote
from typing import TYPE_CHECKING, Any

from pydantic import SerializationInfo, SerializerFunctionWrapHandler, model_serializer, model_validator

from raysearch.core.json import NumberOrNan, plain
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure, readout_text
from raysearch.core.scale import Scale, scales_text
from raysearch.core.site import Sites
from raysearch.core.space import LAYERS, Space
from raysearch.core.trial import Trial, best_by_size
from raysearch.figures.search import Plots
from raysearch.searching.recommendation import Recommendation
from raysearch.searching.refinement import Refinement
from raysearch.searching.separation import Separation
from raysearch.searching.settings import SearchSettings
from raysearch.searching.stages import StagedResult
from raysearch.searching.target import TargetLimits
from raysearch.searching.work import SearchWork
from raysearch.text.numbers import added

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class SampleCounts:
    """The size of all calibrations of a search.

    Args:
        n_tokens: The scored tokens.
        n_samples: The samples.
    """

    n_tokens: int
    n_samples: int


@dataclass(frozen=True)
class ParameterCounts:
    """The parameters of a model.

    Args:
        parameters: The parameters of the dense model.
        parameters_removed: The parameters of what is removed.
    """

    parameters: int
    parameters_removed: int

    @property
    def removed_share(self) -> float:
        """The removed parameters as a share of all."""
        return self.parameters_removed / self.parameters if self.parameters else 0.0


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
        layer_kinds: The kind of each layer, as in `Site`; empty in old records, for layers of one kind.
        labels: The labels of the search in its study, by axis, or of a stage in the whole search; else empty.
        parent: The tracker's id of the study, or of the whole search of a stage, if it has one.
        target: What the target leaves of the masks; None without a target.
        space: What the masks remove; whole layers in old records without it.
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
    layer_kinds: tuple[int, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    target: TargetLimits | None = None
    space: Space = LAYERS

    @property
    def sites(self) -> Sites:
        """The layers of the dense model; records do not contain the sizes of their halves, which are all 1 here."""
        return Sites.of_layers([2] * self.n_layers, self.layer_kinds or None, [1] * self.n_layers)

    @property
    def space_sites(self) -> Sites:
        """The sites that the searcher removes; they are groups of layers if the target allows only these."""
        sites = self.space.select(self.sites)
        return sites if self.group == 1 else sites.in_groups(self.group)

    @property
    def group(self) -> int:
        """The number of layers that can only be removed together; 1 if the target, or no target, allows all masks."""
        return 1 if self.target is None else self.target.limits.group

    @property
    def settings(self) -> SearchSettings:
        """The values of `config` that are read."""
        return SearchSettings(self.config)


@dataclass(frozen=True)
class RoundSummary:
    """The state of a search after a round. Counts include all rounds so far, in this process.

    If a search is resumed, evaluations of an earlier process are in the ledger, and so count as cached.

    Args:
        round: The number of the round, 1-based.
        n_requested: How many evaluations the searcher has requested.
        n_computed: How many of them were computed.
        round_best_loss: The lowest loss of a mask of this round, without the dense model; None if none has a loss.
        best_loss: The lowest loss so far of a mask of the size M; None if there is none.
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


#: The parts of a result whose values are keys of the result in JSON.
_PARTS = {"work": SearchWork, "samples": SampleCounts, "size": ParameterCounts}
#: The value of a remark: a number, a text, or a number for each layer, or for each group that the target allows.
RemarkValue = NumberOrNan | str | list[NumberOrNan]


@dataclass(frozen=True, kw_only=True)
class SearchResult(SearchHeader):
    """The mask of a search and all of its evidence, which suffices to repeat the search to a tracker.

    Args:
        removed: The removed layers, 0-based, ascending; the name of a half, such as ``17a``, in place of its layer if
            the other half stays.
        removal_order: The order of removal, if each round extended the best mask of the last round (greedy); else None.
        dense_loss: The loss of the dense model.
        loss: The loss with these removed.
        delta_error: The standard error of `loss` minus `dense_loss` from the choice of samples; None if there is none.
        work: The work of the process that ran the search.
        samples: The size of the calibrations.
        size: The size of the model, and of what was removed.
        delta_errors: The `delta_error` of the best mask of each size, by that size.
        statistics: The names of the measured statistics of the dense model, in order.
        remarks: The remarks of the searcher, by name.
        recommendation: The recommended size, for ``remove=auto``; else None.
        refinement: The best masks before and after a short recovery, for ``refine=recover``; else None. `removed` is
            then the best mask after the recovery, and `loss` its loss before.
        staged: The stages of a search that removes layers and recovers the model in turns, for ``heal=recover``; else
            None. `removed` are then the layers of all stages, in the numbering of the original model, and `loss` is
            the original model's loss without them, before any recovery.
        separation: How many other masks are not significantly worse; None if that is not known.
        complete: Whether the searcher came to its end; if not, `removed` is the best mask when the budget was spent.
        mlflow_run_id: MLflow's id of the run, if the tracker wrote one.
        mlflow_receipt: The receipt of the tracker (`raysearch.searching.observer.Tracker.receipt`).
        trials: All trials, in order.
        rounds: The summary of each round.
    """

    removed: tuple[int | str, ...]
    removal_order: tuple[int | str, ...] | None
    dense_loss: float
    loss: float
    delta_error: float | None
    work: SearchWork
    samples: SampleCounts
    size: ParameterCounts
    delta_errors: Mapping[int, float] = field(default_factory=dict)
    statistics: tuple[str, ...] = ()
    remarks: Mapping[str, RemarkValue] = field(default_factory=dict)
    recommendation: Recommendation | None = None
    refinement: Refinement | None = None
    staged: StagedResult | None = None
    separation: Separation | None = None
    complete: bool = True
    mlflow_run_id: str | None = None
    mlflow_receipt: str | None = None
    trials: tuple[Trial, ...] = field(default=(), repr=False)
    rounds: tuple[RoundSummary, ...] = field(default=(), repr=False)

    @property
    def mask(self) -> Mask:
        """The removed layers and halves as a mask."""
        return Mask.of(*self.removed)

    @property
    def scales(self) -> tuple[Scale, ...]:
        """The factors of the cuts of the mask; empty if masks are not repaired by them."""
        return next((trial.scales for trial in self.trials if trial.mask == self.mask), ())

    @property
    def n_removed(self) -> int:
        """The size of the mask, as ``remove=`` counts it."""
        return self.space.size_of(self.mask)

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
        """The best trial of each size from 1 to M, or of all sizes for ``remove=auto``.

        For M it is the trial of the result. This need not have the lowest loss: a short recovery may have chosen it, or
        several losses are equal.
        """
        largest = self.n_removed if self.recommendation is None else self.recommendation.sizes[-1].n_removed
        of_result = [trial for trial in self.trials if trial.mask == self.mask and trial.loss is not None][:1]
        trials = (*best_by_size(self.trials, largest, self.space), *of_result)
        best = {self.space.size_of(trial.mask): trial for trial in trials}
        return dict(sorted(best.items()))

    @property
    def path(self) -> tuple[Trial, ...]:
        """The trials of `best_by_size`, ascending."""
        return tuple(self.best_by_size.values())

    def with_work_of(self, earlier: SearchResult | None) -> SearchResult:
        """Return the result, with the work of an earlier, equal result if all of this one came from the ledger."""
        if earlier is None or self.work.evaluations.computed or len(earlier.trials) != len(self.trials):
            return self
        if (earlier.removed, earlier.complete) != (self.removed, self.complete):
            return self
        return replace(
            self,
            work=earlier.work,
            versions=earlier.versions,
            git_commit=earlier.git_commit,
            trials=earlier.trials,
            rounds=earlier.rounds,
        )

    @property
    def by_round(self) -> tuple[tuple[tuple[Trial, ...], RoundSummary], ...]:
        """The trials and the summary of each round; the dense model is the first trial of the first round."""
        trials = defaultdict[int, list[Trial]](list)
        for trial in self.trials:
            trials[max(trial.round, 1)].append(trial)  # the dense model has round 0
        return tuple((tuple(trials[summary.round]), summary) for summary in self.rounds)

    def to_frame(self) -> pd.DataFrame:
        """Return the trials as a table (`trials_frame`)."""
        return trials_frame(self.trials, self.measure, self.space)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the mask of the search, and a table of the best mask of each size."""
        unit = escape(self.measure.unit)
        delta = added(self.loss - self.dense_loss, self.delta_error)
        sentence = f"removed {self.sites.text(self.mask)}, loss over dense {delta} {unit}"
        columns = (self.space.plural, "removed", f"loss ({unit})", self.measure.readout)
        head = "".join(f"<th>{name}</th>" for name in columns if name)
        rows = ""
        for mask, loss in [(Mask(), self.dense_loss), *((trial.mask, trial.loss) for trial in self.path)]:
            assert loss is not None, "best masks have a loss"
            readouts = [readout_text(self.measure, value) for value in named_readout(self.measure, loss).values()]
            cells = [self.space.size_of(mask), mask, f"{loss:.4f}", *readouts]
            rows += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        title = f"<b>{escape(self.search_id)}</b> on {escape(self.model)}: {sentence}"
        notes = self.warnings if self.separation is None else [str(self.separation), *self.warnings]
        if self.scales:
            title += f"<br>Scaled at its cuts: {escape(scales_text(self.scales))}"
        title += "".join(f"<br>{escape(note)}" for note in notes)
        return f"<p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def __str__(self) -> str:
        """Return the result in a few lines."""
        parts = [f"{self.search_id}: removed {self.sites.text(self.mask)} of {self.model}"]
        parts.append(f"loss over dense {added(self.loss - self.dense_loss, self.delta_error)} {self.measure.unit}")
        if self.measure.readout is not None:
            readouts = (readout_text(self.measure, readout) for readout in (self.dense_readout, self.readout))
            parts.append(f"{self.measure.readout} {' -> '.join(readouts)}")
        if self.scales:
            parts.append(f"scaled at its cuts: {scales_text(self.scales)}")
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
        remedy = f"measure it on other data: raysearch assess {self.search_id}{self.settings.places.ledger_option}"
        if self.choices["objective"] != "perplexity" or self.settings.is_repaired:
            masks = f"masks=[[],[{','.join(map(str, self.removed))}]]"
            repair = f" repair={self.settings.repair}" if self.settings.is_repaired else ""
            model = self.settings.model_path if self.choices.get("model") == "custom" else self.model
            remedy = f"compare perplexities: raysearch score {quote(f'model={model}')} {quote(masks)}{repair}"
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
        return Plots(self.trials, self.sites, self.mask, self.measure, self.space)

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, values: Any) -> Any:
        """Collect the values of each part; in JSON, all of them are keys of the result."""
        if not isinstance(values, dict):
            return values
        nested = dict(values)
        for part, part_class in _PARTS.items():
            names = [field.name for field in fields(part_class) if field.name in nested]
            nested[part] = {name: nested.pop(name) for name in names}
        return nested

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Write the values, those of parts as keys of the result; for users, add the readouts and the best masks."""
        values: dict[str, Any] = {}
        for name, value in write(self).items():
            values |= value if name in _PARTS else {name: value}
        if info.round_trip:
            return values
        path = [
            {"n_removed": size, "removed": trial.mask.parts, "loss": trial.loss}
            | named_readout(self.measure, trial.loss)
            | ({"scales": plain(trial.scales)} if trial.scales else {})
            for size, trial in self.best_by_size.items()
            if trial.loss is not None
        ]
        readouts = named_readout(self.measure, self.dense_loss, "dense_{}") | named_readout(self.measure, self.loss)
        return {**values, **readouts, "path": path}


def in_brief(result: SearchResult) -> dict[str, Any]:
    """Return a result as ``--json`` prints it, without its configuration, trials and rounds."""
    long = ("config", "choices", "trials", "rounds")
    return {name: value for name, value in plain(replace(result, config={})).items() if name not in long}


def trials_frame(trials: Iterable[Trial], measure: Measure, space: Space = LAYERS) -> pd.DataFrame:
    """Return trials as a table, a row for each mask in the order of proposal; the dense model comes first.

    The columns are the fields of `Trial`, the size of the mask, the readout under its name, and the loss on
    each calibration if there are several. A failed mask has no loss. A screened mask has no loss, but an estimate with
    bounds.

    Args:
        trials: The trials of a search; at least one.
        measure: The unit of their losses.
        space: What sizes count.

    Returns:
        The table, whose index is the index of the trial.
    """
    import pandas as pd

    rows = []
    for trial in trials:
        readout = {} if trial.loss is None else named_readout(measure, trial.loss)
        not_plain = ("parts", "screened", "mask", "scales")
        fields = {name: value for name, value in vars(trial).items() if name not in not_plain}
        bounds = {} if trial.screened is None else vars(trial.screened)
        row = {"mask": str(trial.mask), "n_removed": space.size_of(trial.mask), **fields, **readout}
        row |= {"screened": bool(bounds)} | {f"screened_{name}": value for name, value in bounds.items()}
        row |= {f"loss on {name}": loss for name, loss in trial.parts.items()}
        row |= {"scales": scales_text(trial.scales)} if trial.scales else {}
        rows.append(row)
    return pd.DataFrame(rows).set_index("index")


def named_readout(measure: Measure, loss: float, name: str = "{}") -> dict[str, float]:
    """Return the readout of a loss under its name: ``{"perplexity": 41.1}``; empty if there is no readout.

    Args:
        measure: The unit of the loss.
        loss: The loss.
        name: The format of the name, such as ``dense_{}``.

    Returns:
        A mapping with one entry, or an empty one.
    """
    return {} if measure.readout is None else {name.format(measure.readout): measure.read(loss)}


def uses_evaluation_split(data: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the samples of any calibration, described as in `SearchHeader.data`, are an evaluation split."""
    return any(description.get("evaluation_split") for description in data)
