"""The specification of a study: its searches, its budget, how it goes about them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from raysearch.assessment.spec import AssessSpec
from raysearch.core.digest import digest
from raysearch.core.formatting import count, listed
from raysearch.core.options import Options
from raysearch.errors import UserError, did_you_mean
from raysearch.recovery.spec import RecoverSpec
from raysearch.searching.spec import SearchSpec
from raysearch.studies.record import CellRecord


@dataclass(frozen=True)
class Cell:
    """A search's place in a study, with the labels of its parts; that of its draw is empty where the study has one."""

    model: str
    calibration: str
    searcher: str
    search: SearchSpec
    draw: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """Its labels, by the columns of a table of searches."""
        return cell_labels(self, self.search.remove, self.search.seed)

    def __str__(self) -> str:
        draw = f", draw {self.draw}" if self.draw else ""
        searcher = f"{self.searcher}, M={self.search.remove}, seed {self.search.seed}{draw}"
        return f"{searcher}, {self.calibration}, {self.model}"


def cell_labels(cell: Cell | CellRecord, remove: object, seed: int) -> dict[str, str]:
    """Return what a study calls a search, as `Cell.labels`."""
    labels = {"model": cell.model, "calibration": cell.calibration, "searcher": cell.searcher, "remove": str(remove)}
    return {**labels, "seed": str(seed), **({"draw": cell.draw} if cell.draw else {})}


@dataclass(frozen=True)
class StopCriteria(Options):
    """When a search is ended before its own end; None for never.

    Args:
        seconds: Wall-clock, of one process.
        evaluations: Masks that the searcher has asked for.
    """

    section = "study.stop"

    seconds: PositiveFloat | None = None
    evaluations: PositiveInt | None = None

    @property
    def limits(self) -> dict[str, float]:
        """Those that are set, by what a search reports."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Margin(Options):
    """The differences below which two masks are as good as each other; None for none that anybody has said.

    Args:
        loss: Of losses, in the unit of the calibration, and of logarithms of perplexities, in nats per token.
        points: Of accuracies, in percentage points.
    """

    section = "study.margin"

    loss: PositiveFloat | None = None
    points: PositiveFloat | None = None


@dataclass(frozen=True)
class StudyOptions(Options):
    """How a study goes about its searches; none of this changes what a search finds, but `stop`.

    Args:
        name: For people, and the beginning of its id.
        concurrency: Searches at the same time, or ``auto``: as many as there are replicas, at most 4.
        retries: How often a search that failed is tried again.
        stop: The budget of each search.
        margin: What the report takes for as good.
        contrasts: Pairs of searchers that the study is to tell apart, by their labels: ``greedy - one_shot``.
        unpruned: Whether the dense model is trained in all ways in which masks are recovered, as a control.

    Raises:
        UserError: A contrast is misread, or the name cannot name a folder.
    """

    section = "study"

    name: str
    concurrency: PositiveInt | Literal["auto"] = "auto"
    retries: NonNegativeInt = 1
    stop: StopCriteria = field(default_factory=StopCriteria)
    margin: Margin = field(default_factory=Margin)
    contrasts: Sequence[str] = ()
    unpruned: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[\w.-]{1,100}", self.name) or self.name.startswith("."):
            raise UserError(f"study.name={self.name} cannot name a folder; use at most 100 letters, digits, - and _")
        for contrast in self.contrasts:
            sides_of(contrast)

    def check_contrasts(self, searchers: Iterable[str]) -> None:
        """Refuse a contrast of searchers that the study does not have."""
        known = {*searchers}
        for contrast in self.contrasts:
            for searcher in sides_of(contrast):
                if searcher not in known:
                    near = did_you_mean(searcher, known)
                    raise UserError(f"study.contrasts has {contrast}, and no searcher is called {searcher}; {near}")


@dataclass(frozen=True)
class StudySpec:
    """A grid of searches.

    Args:
        assess: What the masks are assessed by that the searches find; None for nothing.
        store: The folder it writes to; its ledger is there or elsewhere.
        config: The resolved configuration, plain values without secrets, for the record.
        words: What the user typed after ``raysearch study``, without secrets.
        notes: What to tell the user about the searches.
        recoveries: The ways in which each mask is trained again, by their labels.
    """

    options: StudyOptions
    cells: Sequence[Cell]
    assess: AssessSpec | None
    store: Path
    config: Mapping[str, Any]
    words: Sequence[str]
    notes: Sequence[str] = ()
    recoveries: Mapping[str, RecoverSpec] = field(default_factory=dict)

    @property
    def study_id(self) -> str:
        """The study's id: the same for the same searches, wherever and however they are run."""
        outside = ("store", "ledger", "cluster", "tracking", "refine", "choices")  # choices name what other keys hold
        searches = [
            [cell.labels, {key: value for key, value in cell.search.config.items() if key not in outside}]
            for cell in self.cells
        ]
        return f"{self.options.name}-{digest([searches, self.options.stop.limits], 8)}"

    @property
    def ledger(self) -> Path:
        """Where it is remembered."""
        return self.cells[0].search.evaluation.ledger


def sides_of(contrast: str) -> tuple[str, str]:
    """Return the labels of the two searchers of a contrast, or refuse it."""
    sides = [side.strip() for side in contrast.split(" - ")]
    if len(sides) != 2 or not all(sides) or sides[0] == sides[1]:
        raise UserError(
            f"study.contrasts has {contrast}, which is not two searchers; write it as in 'greedy - one_shot'"
        )
    return sides[0], sides[1]


def one_seed_each(cells: Sequence[Cell]) -> tuple[list[Cell], list[str]]:
    """Drop searches that repeat another, whose searcher draws no random numbers; return the others, and notes."""
    kept: list[Cell] = []
    idle: dict[str, None] = {}
    for cell in cells:
        if not cell.search.searcher.stochastic and any(_same_but_seed(cell, other) for other in kept):
            idle[cell.searcher] = None
        else:
            kept.append(cell)
    if not idle:
        return kept, []
    left_out = count(len(cells) - len(kept), "search is", "searches are")
    return kept, [f"no random numbers decide what {', '.join(idle)} finds, so one seed is run and {left_out} left out"]


def drawn_once(cells: Sequence[Cell]) -> list[str]:
    """Return a warning where searches are compared on one draw of a calibration's samples."""
    compared = len({cell.searcher for cell in cells}) > 1 or len({cell.calibration for cell in cells}) > 1
    draws: dict[str, set[str]] = {}
    for cell in cells:
        draws.setdefault(cell.calibration, set()).add(cell.draw)
    once = [calibration for calibration, of in draws.items() if len(of) == 1]
    if not compared or not once:
        return []
    which = "each calibration" if len(once) == len(draws) else listed(once)
    drawn = f"{which} {'is' if len(once) in (1, len(draws)) else 'are'} drawn once"
    return [f"{drawn}, so what other samples would give is not measured; study.grid.draw=[0,1,2] draws more"]


def _same_but_seed(one: Cell, other: Cell) -> bool:
    def rest(cell: Cell) -> tuple[Any, ...]:
        return cell.labels | {"seed": ""}, cell.search.searcher, cell.search.protect, cell.search.evaluation

    return one.search.seed != other.search.seed and rest(one) == rest(other)
