"""The events of searches and studies: one frozen class for each, whose fields say what has happened.

Losses are in the unit of the header's measure, seconds are wall-clock, layers and cells are numbered from 0. New fields
have defaults, so observers of your own continue to work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from raysearch.searching.settings import PlaceSettings

if TYPE_CHECKING:  # imports that an observer does not need
    from raysearch.core.mask import Mask
    from raysearch.core.trial import Trial
    from raysearch.evaluation.progress import Progress
    from raysearch.searching.forecast import SearchForecast
    from raysearch.searching.result import RoundSummary, SearchHeader, SearchResult
    from raysearch.searching.search_record import SearchRecord


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
        method_label: The study's label of the recovery method; empty if there is none.
        settings: The data and the options of the training, by dotted key of the configuration.
        n_remove: The size of the mask, as ``remove=`` counts it.
    """

    recovery_id: str
    mask: Mask
    method_label: str
    settings: Mapping[str, Any]
    n_remove: int


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


@dataclass(frozen=True)
class SearchStarted:
    """A search starts, or is resumed under the same id.

    Args:
        header: The facts of the search.
        expected: The forecast of its cost; None in a study, which has a forecast for all searches.
    """

    header: SearchHeader
    expected: SearchForecast | None = None


@dataclass(frozen=True)
class ReadingStarted:
    """Data that take some time to read are read before a search.

    Args:
        line: A description of the data.
    """

    line: str


@dataclass(frozen=True)
class RoundProgressed:
    """A unit of the current round is done.

    Args:
        progress: The progress of the round, or what it waits for.
    """

    progress: Progress


@dataclass(frozen=True)
class TrialScored:
    """A mask was scored.

    Args:
        trial: The mask with its loss, its estimate or the cause of its failure.
    """

    trial: Trial


@dataclass(frozen=True)
class RoundEnded:
    """All masks of a round were scored.

    Args:
        summary: The state of the search after the round.
    """

    summary: RoundSummary


@dataclass(frozen=True)
class SearchEnded:
    """A search has ended: with a result, with a failure, or (with neither) by an interrupt of the user.

    Args:
        result: The result, if there is one.
        failure: The cause, if there is no result for another reason than an interrupt.
        stopped: Whether its budget was spent before it had a result, which is not a failure.
    """

    result: SearchResult | None
    failure: str | None = None
    stopped: bool = False


@dataclass(frozen=True)
class StudyStarted:
    """A study starts, or is resumed under the same id.

    Args:
        header: The facts of the study.
    """

    header: StudyHeader


@dataclass(frozen=True)
class CellStarted:
    """A search of a study starts, or starts again.

    Args:
        cell: The number of the search.
    """

    cell: int


@dataclass(frozen=True)
class CellProgressed:
    """A search of a study has finished a round.

    Args:
        cell: The number of the search.
        n_rounds: The number of rounds so far.
        n_requested: The number of masks that the searcher has requested so far.
        best_loss: The lowest loss so far of a mask of the final size; None if there is none.
    """

    cell: int
    n_rounds: int
    n_requested: int
    best_loss: float | None


@dataclass(frozen=True)
class CellEnded:
    """A search of a study has ended.

    Args:
        cell: The number of the search.
        failure: The cause, if it failed for good; else None.
    """

    cell: int
    failure: str | None = None


@dataclass(frozen=True)
class ReplicasPolled:
    """The searches of a study are running; this event comes every second.

    Args:
        awaited: Whether the searches have work and no replica is ready.
    """

    awaited: bool


@dataclass(frozen=True)
class AssessmentProgressed:
    """An assessment, a timing or a recovery has progressed.

    Args:
        line: A description of the progress; the part before a colon is the stage.
    """

    line: str


@dataclass(frozen=True)
class MasksAssessed:
    """The masks of searches were assessed.

    Args:
        assessments: The searches; each with its numbers by name: ``assess/piqa/dense``.
    """

    assessments: Sequence[tuple[SearchRecord, Mapping[str, float]]]


@dataclass(frozen=True)
class AnswersGenerated:
    """The masks of searches have generated answers.

    Args:
        answers: The searches; each with JSON Lines by task, a line for each item, which has the answers of the pruned
            and the dense model.
    """

    answers: Sequence[tuple[SearchRecord, Mapping[str, str]]]


@dataclass(frozen=True)
class MaskRecovered:
    """A pruned model of a search was recovered.

    Args:
        search: The search.
        header: The facts of the recovery.
        points: The losses of the training, in order.
        numbers: The costs of the training and the assessed numbers, by name.
    """

    search: SearchRecord
    header: RecoveryHeader
    points: Sequence[LossPoint]
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class StudyStopped:
    """The user, or the death of Ray, stopped a study.

    Args:
        run_id: The tracker's id of the study, if it has one.
        search_ids: The searches of the study that have stopped with it.
    """

    run_id: str | None
    search_ids: Sequence[str]


@dataclass(frozen=True)
class StudyReported:
    """The report of a study was written.

    Args:
        run_id: The tracker's id of the study, if it has one.
        totals: The numbers of the study as a whole, by name.
        files: The files and folders of the report.
        ended: Whether the study has ended.
    """

    run_id: str | None
    totals: Mapping[str, float]
    files: Sequence[Path]
    ended: bool


@dataclass(frozen=True)
class RecordingProgressed:
    """The program waits for a tracker, which has progressed.

    Args:
        line: A description of the progress.
    """

    line: str


@dataclass(frozen=True)
class WarningRaised:
    """There is a problem that stops nothing.

    Args:
        message: The problem, as a sentence.
    """

    message: str


#: All events.
Event: TypeAlias = (
    SearchStarted
    | ReadingStarted
    | RoundProgressed
    | TrialScored
    | RoundEnded
    | SearchEnded
    | StudyStarted
    | CellStarted
    | CellProgressed
    | CellEnded
    | ReplicasPolled
    | AssessmentProgressed
    | MasksAssessed
    | AnswersGenerated
    | MaskRecovered
    | StudyStopped
    | StudyReported
    | RecordingProgressed
    | WarningRaised
)
