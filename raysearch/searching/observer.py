"""The base classes of all that watch searches and studies: displays, trackers, and observers of users."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, assert_never, final

from typing_extensions import override

from raysearch.core.hub import is_asked
from raysearch.models.devices import has_instructions
from raysearch.models.loading import describe
from raysearch.models.source import is_hub_id
from raysearch.searching.events import (
    AnswersGenerated,
    AssessmentProgressed,
    CellEnded,
    CellProgressed,
    CellStarted,
    Event,
    MaskRecovered,
    MasksAssessed,
    ReadingStarted,
    RecordingProgressed,
    ReplicasPolled,
    RoundEnded,
    RoundProgressed,
    SearchEnded,
    SearchStarted,
    StudyReported,
    StudyStarted,
    StudyStopped,
    TrialScored,
    WarningRaised,
)
from raysearch.text.numbers import size

if TYPE_CHECKING:
    from raysearch.calibration.calibration import Calibration
    from raysearch.evaluation.progress import Progress
    from raysearch.evaluation.spec import EvaluationSpec
    from raysearch.models.spec import ModelInfo, ModelSpec
    from raysearch.searching.result import SearchResult

_LARGE = 10**7  # bytes; a file of this size takes some seconds to read


class Observer:
    """Watches a search or a study: it gets every event. A subclass overrides the ``on_…`` methods that it needs.

    A search sends one `SearchStarted`, then for each round `RoundProgressed`, a `TrialScored` for each mask and one
    `RoundEnded`, then `SearchEnded`. A resumed search sends all earlier events again. The searches of a study run in
    other processes, so the observer of a study gets `CellStarted`, `CellProgressed` and `CellEnded` instead.

    Events come one after another, except warnings: a tracker sends these from its own thread. An observer must not
    change what an event contains.
    """

    def on_event(self, event: Event) -> None:
        """Pass an event to the method of its class. Override it to handle all events alike.

        Args:
            event: The event.
        """
        match event:
            case SearchStarted():
                self.on_search_started(event)
            case ReadingStarted():
                self.on_reading_started(event)
            case RoundProgressed():
                self.on_round_progressed(event)
            case TrialScored():
                self.on_trial_scored(event)
            case RoundEnded():
                self.on_round_ended(event)
            case SearchEnded():
                self.on_search_ended(event)
            case StudyStarted():
                self.on_study_started(event)
            case CellStarted():
                self.on_cell_started(event)
            case CellProgressed():
                self.on_cell_progressed(event)
            case CellEnded():
                self.on_cell_ended(event)
            case ReplicasPolled():
                self.on_replicas_polled(event)
            case AssessmentProgressed():
                self.on_assessment_progressed(event)
            case MasksAssessed():
                self.on_masks_assessed(event)
            case AnswersGenerated():
                self.on_answers_generated(event)
            case MaskRecovered():
                self.on_mask_recovered(event)
            case StudyStopped():
                self.on_study_stopped(event)
            case StudyReported():
                self.on_study_reported(event)
            case RecordingProgressed():
                self.on_recording_progressed(event)
            case WarningRaised():
                self.on_warning_raised(event)
            case _:
                assert_never(event)

    def on_search_started(self, event: SearchStarted) -> None:
        """Handle the start of a search."""

    def on_reading_started(self, event: ReadingStarted) -> None:
        """Handle that data are read which take some time."""

    def on_round_progressed(self, event: RoundProgressed) -> None:
        """Handle the progress of a round."""

    def on_trial_scored(self, event: TrialScored) -> None:
        """Handle a scored mask."""

    def on_round_ended(self, event: RoundEnded) -> None:
        """Handle the end of a round."""

    def on_search_ended(self, event: SearchEnded) -> None:
        """Handle the end of a search."""

    def on_study_started(self, event: StudyStarted) -> None:
        """Handle the start of a study."""

    def on_cell_started(self, event: CellStarted) -> None:
        """Handle the start of a search of a study."""

    def on_cell_progressed(self, event: CellProgressed) -> None:
        """Handle a finished round of a search of a study."""

    def on_cell_ended(self, event: CellEnded) -> None:
        """Handle the end of a search of a study."""

    def on_replicas_polled(self, event: ReplicasPolled) -> None:
        """Handle whether the searches of a study wait for replicas."""

    def on_assessment_progressed(self, event: AssessmentProgressed) -> None:
        """Handle the progress of an assessment, a timing or a recovery."""

    def on_masks_assessed(self, event: MasksAssessed) -> None:
        """Handle the numbers of assessed masks."""

    def on_answers_generated(self, event: AnswersGenerated) -> None:
        """Handle generated answers."""

    def on_mask_recovered(self, event: MaskRecovered) -> None:
        """Handle the end of a recovery."""

    def on_study_stopped(self, event: StudyStopped) -> None:
        """Handle that a study was stopped."""

    def on_study_reported(self, event: StudyReported) -> None:
        """Handle the report of a study."""

    def on_recording_progressed(self, event: RecordingProgressed) -> None:
        """Handle the progress of a tracker for which the program waits."""

    def on_warning_raised(self, event: WarningRaised) -> None:
        """Handle a warning: by default, issue a Python warning."""
        warnings.warn(event.message, stacklevel=4)  # the caller of `warn`

    # Short forms for those who send the events that many functions send.

    @final
    def warn(self, message: str) -> None:
        """Send `WarningRaised`."""
        self.on_event(WarningRaised(message))

    @final
    def reading(self, line: str) -> None:
        """Send `ReadingStarted`."""
        self.on_event(ReadingStarted(line))

    @final
    def progress(self, progress: Progress) -> None:
        """Send `RoundProgressed`."""
        self.on_event(RoundProgressed(progress))

    @final
    def assessing(self, line: str) -> None:
        """Send `AssessmentProgressed`."""
        self.on_event(AssessmentProgressed(line))

    @final
    def recording(self, line: str) -> None:
        """Send `RecordingProgressed`."""
        self.on_event(RecordingProgressed(line))


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
    def on_warning_raised(self, event: WarningRaised) -> None:
        """Do nothing: warnings are for other observers."""

    def resume(self, run_id: str, receipt: str) -> None:
        """Adopt the id and the receipt of an earlier record of this search; called before it starts.

        A search that ends with the same receipt needs no writing.

        Args:
            run_id: The tracker's id of the search.
            receipt: The earlier receipt.
        """

    def close(self) -> str | None:
        """Write all pending records, and return `run_id`. Closing twice is harmless."""
        return self.run_id


class Observers(Observer):
    """Passes every event to several observers, in order.

    Args:
        observers: The observers.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    @override
    def on_event(self, event: Event) -> None:
        for observer in self._observers:
            observer.on_event(event)


class Prefixed(Observer):
    """Passes every event to an observer, with a prefix before warnings and lines on assessments.

    Args:
        prefix: The prefix, which shows whom the line is about.
        observer: The observer.
    """

    def __init__(self, prefix: str, observer: Observer) -> None:
        self._prefix = prefix
        self._observer = observer

    @override
    def on_event(self, event: Event) -> None:
        match event:
            case AssessmentProgressed(line):
                event = replace(event, line=self._prefix + line)
            case WarningRaised(message):
                event = replace(event, message=self._prefix + message)
        self._observer.on_event(event)


def describe_model(model: ModelSpec, observer: Observer) -> ModelInfo:
    """Return the sizes of a model (`raysearch.models.loading.describe`).

    Args:
        model: The model.
        observer: Gets a line if the hub is asked, which may be slow.

    Returns:
        The number of layers, their sizes, and the other facts that a search needs.
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
    """Send the events of a finished search again.

    Args:
        result: The search.
        observer: The observer.
        rounds: How many rounds are repeated; None for all rounds and the end.
    """
    observer.on_event(SearchStarted(result))
    for trials, summary in result.by_round[:rounds]:
        for trial in trials:
            observer.on_event(TrialScored(trial))
        observer.on_event(RoundEnded(summary))
    if rounds is None:
        observer.on_event(SearchEnded(result))
