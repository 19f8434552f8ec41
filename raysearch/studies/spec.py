"""What a search is made of: plain, validated values, built from the configuration (see `raysearch.config`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raysearch.assessment.spec import AssessSpec
from raysearch.errors import UserError
from raysearch.evaluation.spec import JudgeSpec, identity_of
from raysearch.mask import Mask
from raysearch.problem import sizes_of
from raysearch.searchers.base import Searcher
from raysearch.tracking.options import TrackingOptions


@dataclass(frozen=True)
class ScoreSpec:
    """Masks that the user already has, and how to judge them."""

    judge: JudgeSpec
    masks: Sequence[Mask]


@dataclass(frozen=True)
class SearchSpec:
    """One search.

    Args:
        judge: How masks are judged.
        searcher: The algorithm.
        searcher_name: Its name in ``conf/searcher/``, for people.
        remove: M, how many layers go; or a range, ``"1..9"``, of which each number is searched.
        protect: Layers that stay; negative indices count from the end.
        seed: Of the searcher's random numbers.
        tracking: Where the search is recorded for people.
        config: The resolved configuration, plain values without secrets, for the record and for ``raysearch resume``.
    """

    judge: JudgeSpec
    searcher: Searcher
    searcher_name: str
    remove: int | str
    protect: Sequence[int]
    seed: int
    tracking: TrackingOptions
    config: Mapping[str, Any]

    @property
    def sizes(self) -> range:
        """The numbers of layers that are asked for."""
        return sizes_of(self.remove)

    def elsewhere(self) -> SearchSpec:
        """The same search, whatever folder a process that runs it is in."""
        judge = dataclasses.replace(self.judge, ledger=self.judge.ledger.resolve())
        tracking = dataclasses.replace(self.tracking, folder=self.tracking.folder.resolve())
        return dataclasses.replace(self, judge=judge, tracking=tracking)

    def run_id(self, calibration_fingerprint: str) -> str:
        """The search's name: the same for the same command on the same text and model, so that it can be taken up."""
        identity = {
            "calibration": calibration_fingerprint,
            "searcher": identity_of(self.searcher),
            "remove": self.remove,
            "protect": sorted(self.protect),
            "seed": self.seed,
        }
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        return f"{self.searcher_name}-m{str(self.remove).replace('..', '-')}-{digest[:8]}"


@dataclass(frozen=True)
class Cell:
    """A search's place in a study.

    Args:
        model: The label of its model.
        calibration: That of its objective and data.
        searcher: That of its searcher and options.
        search: The search.
    """

    model: str
    calibration: str
    searcher: str
    search: SearchSpec

    @property
    def labels(self) -> dict[str, str]:
        """What it is called, by what a table of searches has columns of."""
        return {
            "model": self.model,
            "calibration": self.calibration,
            "searcher": self.searcher,
            "remove": str(self.search.remove),
            "seed": str(self.search.seed),
        }

    def __str__(self) -> str:
        return f"{self.searcher}, M={self.search.remove}, seed {self.search.seed}, {self.calibration}, {self.model}"


@dataclass(frozen=True)
class Budget:
    """When a search is ended before its own end; None for never.

    Args:
        seconds: Wall-clock, of one process.
        evaluations: Masks that the searcher has asked for.

    Raises:
        UserError: A number is not positive.
    """

    seconds: float | None = None
    evaluations: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.limits.items():
            if value <= 0:
                raise UserError(f"study.stop.{name}={value} ends every search at once; use more, or null for no limit")

    @property
    def limits(self) -> dict[str, float]:
        """Those that are set, by what a search reports."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclass(frozen=True)
class StudyOptions:
    """How a study goes about its searches; none of this changes what a search finds, but `stop`.

    Args:
        name: For people, and the beginning of its id.
        concurrency: Searches at the same time, or ``auto``: as many as there are replicas, at most 4.
        retries: How often a search that failed is tried again.
        stop: The budget of each search.

    Raises:
        UserError: A number is out of range, or the name cannot name a folder.
    """

    name: str
    concurrency: int | Literal["auto"] = "auto"
    retries: int = 1
    stop: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]{1,100}", self.name) or self.name.startswith("."):
            raise UserError(f"study.name={self.name} cannot name a folder; use at most 100 letters, digits, - and _")
        if self.concurrency != "auto" and self.concurrency < 1:
            raise UserError(f"study.concurrency={self.concurrency} runs nothing; use 1 or more, or auto")
        if self.retries < 0:
            raise UserError(f"study.retries={self.retries} is negative; use 0 or more")


@dataclass(frozen=True)
class StudySpec:
    """A grid of searches.

    Args:
        options: How it goes about them.
        cells: The searches, in order.
        assess: What the masks are assessed by that the searches find; None for nothing.
        config: The resolved configuration, plain values without secrets, for the record.
        words: What the user typed, without secrets.

    Raises:
        UserError: Searches would be recorded in different places.
    """

    options: StudyOptions
    cells: Sequence[Cell]
    assess: AssessSpec | None
    config: Mapping[str, Any]
    words: Sequence[str]

    def __post_init__(self) -> None:
        if len({(cell.search.tracking, cell.search.judge.ledger) for cell in self.cells}) > 1:
            raise UserError(
                "study.grid has searches recorded in different places, and a study has one; take store, ledger and "
                "tracking out of its axes, and say them beside it"
            )

    @property
    def study_id(self) -> str:
        """The study's name: the same for the same searches, wherever and however they are run."""
        outside = ("store", "ledger", "cluster", "tracking", "choices")  # choices name what the other keys hold
        searches = [
            [cell.labels, {key: value for key, value in cell.search.config.items() if key not in outside}]
            for cell in self.cells
        ]
        whole = json.dumps([searches, self.options.stop.limits], sort_keys=True)
        return f"{self.options.name}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"

    @property
    def tracking(self) -> TrackingOptions:
        """Where it is recorded for people to look at."""
        return self.cells[0].search.tracking

    @property
    def ledger(self) -> Path:
        """Where it is remembered."""
        return self.cells[0].search.judge.ledger
