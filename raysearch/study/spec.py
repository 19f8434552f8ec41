"""The specification of a study: its searches, its budget, how it goes about them."""

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
from raysearch.search.spec import SearchSpec


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
        """Its labels, by the columns of a table of searches."""
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
        store: The folder it writes to; its ledger is there or elsewhere.
        config: The resolved configuration, plain values without secrets, for the record.
        words: What the user typed after ``raysearch study``, without secrets.
    """

    options: StudyOptions
    cells: Sequence[Cell]
    assess: AssessSpec | None
    store: Path
    config: Mapping[str, Any]
    words: Sequence[str]

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
    def ledger(self) -> Path:
        """Where it is remembered."""
        return self.cells[0].search.evaluation.ledger
