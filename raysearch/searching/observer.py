"""The one class that watches searches and studies: the terminal's, a tracker's, and a user's own derive from it."""

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

if TYPE_CHECKING:  # an observer needs none of what these bring along
    from raysearch.calibration.calibration import Calibration
    from raysearch.core.mask import Mask
    from raysearch.evaluation.progress import Progress
    from raysearch.evaluation.spec import EvaluationSpec
    from raysearch.models.spec import ModelInfo, ModelSpec
    from raysearch.searching.forecast import SearchForecast
    from raysearch.searching.record import SearchRecord
    from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult
    from raysearch.searching.trial import Trial

_LARGE = 10**7  # bytes of a file that is read for some seconds


@dataclass(frozen=True)
class StudyHeader:
    """The facts of a study before its first search.

    Args:
        study_id: The same whenever the same command is given.
        config: The resolved configuration, plain values only.
        cells: Its searches in words, in order.
        done: The numbers of those that are done already.
        recorded: Of these, the labels of each in the study, by the tracker's id of it.
    """

    study_id: str
    config: Mapping[str, Any]
    cells: Sequence[str]
    done: Sequence[int] = ()
    recorded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class RecoveryHeader:
    """The facts of a recovery.

    Args:
        recovery_id: The same whenever the same command is given.
        mask: The layers that are gone; none for a dense model that was trained as a control.
        way: A study's label of how it was trained; empty for none.
        settings: What it was trained on, and how, by dotted key of the configuration.
    """

    recovery_id: str
    mask: Mask
    way: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class LossPoint:
    """The loss of a training at one step.

    Args:
        tokens: Those that the model was trained on so far.
        loss: Nats per token of the step's rows; None where the held-out rows were measured alone.
        held_out: Nats per token of the held-out rows; None where they were not measured.
    """

    step: int
    tokens: int
    loss: float | None
    held_out: float | None


class Observer:
    """Watches a search or a study. Every method does nothing, except `warn`; a subclass overrides what it needs.

    A search calls `search_started` once, then for each round `progress`, its `trial`s and one `round_done`, then
    `search_ended`. Taken up again, it tells its whole history again. The searches of a study run in processes of their
    own, so there its observer gets `cell_started`, `cell_updated` and `cell_ended` instead. Losses are in the unit of
    the header's measure, seconds are wall-clock, layers and cells are numbered from 0.
    """

    def search_started(self, header: SearchHeader, expected: SearchForecast | None = None) -> None:
        """A search begins, or goes on under the same `header.search_id`.

        `expected` is its cost; None where a study has told that of all its searches.
        """

    def reading(self, line: str) -> None:
        """Much data is read before the search begins; the line says what."""

    def progress(self, progress: Progress) -> None:
        """A unit of the current round is done."""

    def trial(self, trial: Trial) -> None:
        """A mask was scored."""

    def round_done(self, summary: RoundSummary) -> None:
        """A round is complete."""

    def search_ended(self, result: SearchResult | None, failure: str | None = None, stopped: bool = False) -> None:
        """The search ended: with a result, with a failure and its cause, or (neither) interrupted by the user.

        `stopped` says that its budget was spent before it had a result, which is no failure.
        """

    def study_started(self, header: StudyHeader) -> None:
        """A study begins, or goes on under the same `header.study_id`."""

    def cell_started(self, cell: int) -> None:
        """A search of the study begins, or begins anew."""

    def cell_updated(self, cell: int, n_rounds: int, n_requested: int, best_loss: float | None) -> None:
        """A search of the study has done so many rounds, and scored so many masks."""

    def cell_ended(self, cell: int, failure: str | None) -> None:
        """A search of the study came to its end, or failed for good."""

    def replicas_awaited(self, awaited: bool) -> None:
        """Whether searches of the study have work and no replica is ready; told every second while they run."""

    def assessing(self, line: str) -> None:
        """An assessment has come further; the line says how far."""

    def assessed(self, found: Sequence[tuple[SearchRecord, Mapping[str, float]]]) -> None:
        """The masks of these searches were assessed; the numbers by name, such as ``assess/piqa/dense``."""

    def answered(self, found: Sequence[tuple[SearchRecord, Mapping[str, str]]]) -> None:
        """The masks of these searches have answered; by task JSON Lines, an item each, beside the dense model's."""

    def recovered(
        self, search: SearchRecord, header: RecoveryHeader, points: Sequence[LossPoint], numbers: Mapping[str, float]
    ) -> None:
        """A search's model was trained again: the losses in order; its costs and assessed numbers, by name."""

    def study_stopped(self, run_id: str | None, search_ids: Sequence[str]) -> None:
        """The user, or the death of Ray, stopped a study; `run_id` is the tracker's id of it, if it has one.

        `search_ids` are its searches that nobody runs any more.
        """

    def study_reported(
        self, run_id: str | None, totals: Mapping[str, float], files: Sequence[Path], ended: bool
    ) -> None:
        """A study's report was written: its files and folders, and the numbers of the study as a whole, by name.

        `run_id` is the tracker's id of the study, if it has one; `ended` says whether it has come to its end.
        """

    def recording(self, line: str) -> None:
        """A tracker that is waited for has come further; the line says how far."""

    def warn(self, message: str) -> None:
        """Something went wrong that stops nothing, in a sentence; a Python warning if this is not overridden."""
        warnings.warn(message, stacklevel=2)


class Tracker(Observer):
    """Where a search or a study is recorded for people to look at. This one records nothing: ``tracking=none``.

    A tracker writes what it has not yet written of a history that is repeated. It never stops a search: what goes
    wrong inside it is its own to report, in a sentence, through the `warn` that it was made with, from any thread.

    Attributes:
        run_id: The tracker's id of the search or the study; None until there is one.
        receipt: A digest of a search's trials and of the place where the tracker has written all of them; None while
            something is not written.
    """

    run_id: str | None = None
    receipt: str | None = None

    @override
    def warn(self, message: str) -> None:
        """Do nothing; warnings are for those who watch."""

    def resume(self, run_id: str, receipt: str) -> None:
        """Take the id and the receipt that the tracker gave for this search before; called before `search_started`.

        A search that ends with the same receipt needs no writing.
        """

    def close(self) -> str | None:
        """Write out what is pending, and return `run_id`. Closing twice is harmless."""
        return self.run_id


class Observers(Observer):
    """Several observers as one: each gets every call, in order."""

    def __init__(self, *observers: Observer) -> None:
        def tell(event: str, *args: Any) -> None:
            for one in observers:
                getattr(one, event)(*args)

        for event in (name for name in vars(Observer) if not name.startswith("_")):
            setattr(self, event, partial(tell, event))


class Prefixed(Observers):
    """An observer that is told of whom each line and warning is."""

    def __init__(self, prefix: str, observer: Observer) -> None:
        def tell(event: str, line: str) -> None:
            getattr(observer, event)(prefix + line)

        super().__init__(observer)
        for event in ("assessing", "warn"):
            setattr(self, event, partial(tell, event))


def describe_model(model: ModelSpec, observer: Observer) -> ModelInfo:
    """Return a model's sizes, as `raysearch.models.loading.describe`; tell if the hub is asked, which may be slow."""
    if is_hub_id(model) and is_asked():
        observer.reading(f"reading model={model.name} from the Hugging Face hub, or its copy on this machine")
    return describe(model)


def tell_of_large_files(spec: EvaluationSpec, observer: Observer) -> None:
    """Tell, once for each, of data that take a while to read: of large files, and of the hub, which may not answer."""
    for name in dict.fromkeys(one.data.rows.name for one in spec.calibrations if one.data.rows.path is None):
        if name is not None:
            observer.reading(f"reading data.name={name} from the Hugging Face hub, or its copy on this machine")
    for path in dict.fromkeys(one.data.rows.path for one in spec.calibrations):
        with suppress(OSError):  # which is explained where it is read
            if path is not None and (n_bytes := Path(path).expanduser().stat().st_size) >= _LARGE:
                observer.reading(f"reading and tokenising data.path={path} ({size(n_bytes)})")


def warn_of_unknown(calibrations: Sequence[Calibration], observer: Observer) -> None:
    """Warn, once for each source, of texts that are mostly unknown to the model's tokenizer."""
    shares: dict[str, float] = {}
    for one in (calibration.description for calibration in calibrations):
        source = str(one.get("path") or one.get("name") or one.get("source"))
        shares[source] = max(one.get("unknown", 0.0), shares.get(source, 0.0))
    for source, share in shares.items():
        if share:
            observer.warn(
                f"{share:.0%} of the tokens of {source} are unknown to the model's tokenizer, so losses say little; "
                "use a text that it was made for, or the tokenizer that the model was trained with"
            )


def warn_of_dtype(info: ModelInfo, observer: Observer) -> None:
    """Warn of a dtype that this machine's CPU has no instructions for, where the model runs on it."""
    if info.model.device == "cpu" and has_instructions(info.dtype) is False:
        observer.warn(
            f"this machine's CPU has no instructions for {info.dtype} and takes longer than in float32; "
            "model.dtype=float32 is faster on it, in more memory"
        )


def warn_of_export(info: ModelInfo, observer: Observer) -> None:
    """Warn of a model that cannot be exported without any of its layers."""
    if info.unwritable is not None:
        observer.warn(
            f"transformers does not write weights that are quantised by {info.unwritable}, so what this search finds "
            "cannot be exported from this checkpoint; search the model as it was before"
        )


def repeat(result: SearchResult, observer: Observer, rounds: int | None = None) -> None:
    """Give an observer a search again, as it went: so many rounds, or all of them and the result."""
    observer.search_started(result)
    for trials, summary in result.by_round[:rounds]:
        for trial in trials:
            observer.trial(trial)
        observer.round_done(summary)
    if rounds is None:
        observer.search_ended(result)
