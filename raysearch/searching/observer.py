"""The base class of all that watch searches and studies: the terminal's display, trackers, and users' observers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from raysearch.core.formatting import size
from raysearch.core.hub import is_asked
from raysearch.models.devices import has_instructions
from raysearch.models.loading import describe
from raysearch.models.source import is_hub_id
from raysearch.searching.settings import PlaceSettings

if TYPE_CHECKING:  # imports that an observer does not need
    from raysearch.calibration.calibration import Calibration
    from raysearch.core.mask import Mask
    from raysearch.evaluation.progress import Progress
    from raysearch.evaluation.spec import EvaluationSpec
    from raysearch.models.spec import ModelInfo, ModelSpec
    from raysearch.searching.forecast import SearchForecast
    from raysearch.searching.record import SearchRecord
    from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult
    from raysearch.searching.trial import Trial

_LARGE = 10**7  # bytes; a file of this size takes some seconds to read


@dataclass(frozen=True)
class StudyHeader:
    """The facts of a study before its first search.

    Args:
        study_id: The id of the study; the same command gives the same id.
        config: The resolved configuration, plain values only.
        cells: A description of each search, in order.
        done: The numbers of the searches that are done already, 0-based.
        recorded: The labels of each search that is done, by the tracker's id of the search.
    """

    study_id: str
    config: Mapping[str, Any]
    cells: Sequence[str]
    done: Sequence[int] = ()
    recorded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def places(self) -> PlaceSettings:
        """Where the study is recorded."""
        return PlaceSettings(self.config)


@dataclass(frozen=True)
class RecoveryHeader:
    """The facts of a recovery.

    Args:
        recovery_id: The id of the recovery; the same command gives the same id.
        mask: The removed layers; none for a dense model that was trained as a control.
        way: The study's label of the recovery method; empty if there is none.
        settings: The data and the options of the training, by dotted key of the configuration.
    """

    recovery_id: str
    mask: Mask
    way: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class LossPoint:
    """The loss of a training at one step.

    Args:
        step: The number of the step.
        tokens: The number of tokens that the model was trained on so far.
        loss: The loss on the rows of the step, in nats per token; None if only held-out rows were measured.
        held_out: The loss on the held-out rows, in nats per token; None if they were not measured.
    """

    step: int
    tokens: int
    loss: float | None
    held_out: float | None


class Observer:
    """Watches a search or a study. Every method except `warn` does nothing; a subclass overrides the methods it needs.

    A search calls `search_started` once, then for each round `progress`, a `trial` for each mask and one `round_done`,
    then `search_ended`. A resumed search repeats all earlier calls. The searches of a study run in other processes, so
    the observer of a study gets `cell_started`, `cell_updated` and `cell_ended` instead. Losses are in the unit of the
    header's measure, seconds are wall-clock, layers and cells are numbered from 0.
    """

    def search_started(self, header: SearchHeader, expected: SearchForecast | None = None) -> None:
        """A search starts, or is resumed under the same `header.search_id`.

        Args:
            header: The facts of the search.
            expected: The forecast of its cost; None in a study, which has a forecast for all searches.
        """

    def reading(self, line: str) -> None:
        """Data that take some time to read are read before the search; the line describes them."""

    def progress(self, progress: Progress) -> None:
        """A unit of the current round is done."""

    def trial(self, trial: Trial) -> None:
        """A mask was scored."""

    def round_done(self, summary: RoundSummary) -> None:
        """A round is complete."""

    def search_ended(self, result: SearchResult | None, failure: str | None = None, stopped: bool = False) -> None:
        """The search has ended: with a result, with a failure, or (with neither) by an interrupt of the user.

        Args:
            result: The result, if there is one.
            failure: The cause of a failure.
            stopped: Whether its budget was spent before it had a result, which is not a failure.
        """

    def study_started(self, header: StudyHeader) -> None:
        """A study starts, or is resumed under the same `header.study_id`."""

    def cell_started(self, cell: int) -> None:
        """A search of the study starts, or starts again."""

    def cell_updated(self, cell: int, n_rounds: int, n_requested: int, best_loss: float | None) -> None:
        """A search of the study has finished a round.

        Args:
            cell: The number of the search.
            n_rounds: The number of rounds so far.
            n_requested: The number of masks that the searcher has requested so far.
            best_loss: The lowest loss so far of a mask of the final size; None if there is none.
        """

    def cell_ended(self, cell: int, failure: str | None) -> None:
        """A search of the study has ended.

        Args:
            cell: The number of the search.
            failure: The cause, if it failed for good; else None.
        """

    def replicas_awaited(self, awaited: bool) -> None:
        """Every second while searches of a study run: whether they have work and no replica is ready."""

    def assessing(self, line: str) -> None:
        """An assessment has progressed; the line describes its progress."""

    def assessed(self, assessments: Sequence[tuple[SearchRecord, Mapping[str, float]]]) -> None:
        """The masks of searches were assessed. Each search comes with its numbers by name: ``assess/piqa/dense``."""

    def answered(self, answers: Sequence[tuple[SearchRecord, Mapping[str, str]]]) -> None:
        """The masks of searches have generated answers.

        Args:
            answers: The searches; each with JSON Lines by task, a line for each item, which has the answers of the
                pruned and the dense model.
        """

    def recovered(
        self, search: SearchRecord, header: RecoveryHeader, points: Sequence[LossPoint], numbers: Mapping[str, float]
    ) -> None:
        """A pruned model of a search was recovered.

        Args:
            search: The search.
            header: The facts of the recovery.
            points: The losses of the training, in order.
            numbers: The costs of the training and the assessed numbers, by name.
        """

    def study_stopped(self, run_id: str | None, search_ids: Sequence[str]) -> None:
        """The user, or the death of Ray, stopped a study.

        Args:
            run_id: The tracker's id of the study, if it has one.
            search_ids: The searches of the study that have stopped with it.
        """

    def study_reported(
        self, run_id: str | None, totals: Mapping[str, float], files: Sequence[Path], ended: bool
    ) -> None:
        """The report of a study was written.

        Args:
            run_id: The tracker's id of the study, if it has one.
            totals: The numbers of the study as a whole, by name.
            files: The files and folders of the report.
            ended: Whether the study has ended.
        """

    def recording(self, line: str) -> None:
        """The program waits for a tracker, which has progressed; the line describes its progress."""

    def warn(self, message: str) -> None:
        """A problem that stops nothing, as a sentence. This method issues a Python warning, unless it is overridden."""
        warnings.warn(message, stacklevel=2)


class Tracker(Observer):
    """Records a search or a study for users to look at. This class records nothing: ``tracking=none``.

    If a history is repeated, a tracker writes only the parts that it has not yet written. It never stops a search: it
    reports its own problems, as sentences, by the `warn` of another observer, from any thread.

    Attributes:
        run_id: The tracker's id of the search or the study; None until there is one.
        receipt: A digest of the search's trials and of the place where the tracker has written all of them; None while
            something is not written.
    """

    run_id: str | None = None
    receipt: str | None = None

    @override
    def warn(self, message: str) -> None:
        """Do nothing: warnings go to other observers."""

    def resume(self, run_id: str, receipt: str) -> None:
        """Adopt the id and the receipt of an earlier record of this search; called before `search_started`.

        A search that ends with the same receipt needs no writing.

        Args:
            run_id: The tracker's id of the search.
            receipt: The earlier receipt.
        """

    def close(self) -> str | None:
        """Write all pending records, and return `run_id`. Closing twice is harmless."""
        return self.run_id


class Observers(Observer):
    """Passes every call to several observers, in order.

    Args:
        observers: The observers.
    """

    def __init__(self, *observers: Observer) -> None:
        def pass_on(event: str, *args: Any) -> None:
            for observer in observers:
                getattr(observer, event)(*args)

        for event in (name for name in vars(Observer) if not name.startswith("_")):
            setattr(self, event, partial(pass_on, event))


class Prefixed(Observers):
    """Passes every call to an observer, with a prefix before warnings and lines on assessments.

    Args:
        prefix: The prefix, which shows whom the line is about.
        observer: The observer.
    """

    def __init__(self, prefix: str, observer: Observer) -> None:
        def pass_on(event: str, line: str) -> None:
            getattr(observer, event)(prefix + line)

        super().__init__(observer)
        for event in ("assessing", "warn"):
            setattr(self, event, partial(pass_on, event))


def describe_model(model: ModelSpec, observer: Observer) -> ModelInfo:
    """Return the sizes of a model (`raysearch.models.loading.describe`).

    Args:
        model: The model.
        observer: Gets a line if the hub is asked, which may be slow.
    """
    if is_hub_id(model) and is_asked():
        observer.reading(f"reading model={model.name} from the Hugging Face hub, or its copy on this machine")
    return describe(model)


def tell_of_large_files(spec: EvaluationSpec, observer: Observer) -> None:
    """Report data that take some time to read: large files, and data of the hub, which may not answer.

    Args:
        spec: The calibrations with their data.
        observer: Gets a line for each file and each data set of the hub.
    """
    sources = [calibration.data.rows for calibration in spec.calibrations]
    for name in dict.fromkeys(source.name for source in sources if source.path is None):
        if name is not None:
            observer.reading(f"reading data.name={name} from the Hugging Face hub, or its copy on this machine")
    for path in dict.fromkeys(source.path for source in sources):
        with suppress(OSError):  # reading the file will raise the error
            if path is not None and (n_bytes := Path(path).expanduser().stat().st_size) >= _LARGE:
                observer.reading(f"reading and tokenising data.path={path} ({size(n_bytes)})")


def warn_of_unknown(calibrations: Sequence[Calibration], observer: Observer) -> None:
    """Warn of texts with tokens that are unknown to the model's tokenizer.

    Args:
        calibrations: The calibrations; their descriptions have the share of unknown tokens if it is large.
        observer: Gets a warning for each source.
    """
    shares: dict[str, float] = {}
    for description in (calibration.description for calibration in calibrations):
        source = str(description.get("path") or description.get("name") or description.get("source"))
        shares[source] = max(description.get("unknown", 0.0), shares.get(source, 0.0))
    for source, share in shares.items():
        if share:
            observer.warn(
                f"{share:.0%} of the tokens of {source} are unknown to the model's tokenizer, so losses say little; "
                "use a text that it was made for, or the tokenizer that the model was trained with"
            )


def warn_of_dtype(info: ModelInfo, observer: Observer) -> None:
    """Warn if the model runs on the CPU in a dtype for which the CPU has no instructions.

    Args:
        info: The model.
        observer: Gets the warning.
    """
    if info.model.device == "cpu" and has_instructions(info.dtype) is False:
        observer.warn(
            f"this machine's CPU has no instructions for {info.dtype} and takes longer than in float32; "
            "model.dtype=float32 is faster on it, in more memory"
        )


def warn_of_export(info: ModelInfo, observer: Observer) -> None:
    """Warn if no pruned version of the model can be exported.

    Args:
        info: The model.
        observer: Gets the warning.
    """
    if info.unwritable is not None:
        observer.warn(
            f"transformers does not write weights that are quantised by {info.unwritable}, so the result of this "
            "search cannot be exported from this checkpoint; search the model before quantisation"
        )


def repeat(result: SearchResult, observer: Observer, rounds: int | None = None) -> None:
    """Repeat the calls of a finished search to an observer.

    Args:
        result: The search.
        observer: The observer.
        rounds: How many rounds are repeated; None for all rounds and the end.
    """
    observer.search_started(result)
    for trials, summary in result.by_round[:rounds]:
        for trial in trials:
            observer.trial(trial)
        observer.round_done(summary)
    if rounds is None:
        observer.search_ended(result)
