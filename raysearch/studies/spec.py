"""The specification of a study: its searches, their budget, and how it runs them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from raysearch.assessment.spec import AssessSpec
from raysearch.core.digest import digest
from raysearch.core.options import Options
from raysearch.core.space import Space
from raysearch.errors import UserError
from raysearch.recovery.spec import RecoverySpec
from raysearch.searching.spec import SearchSpec
from raysearch.studies.study_record import CellRecord
from raysearch.text.numbers import count
from raysearch.text.sentences import did_you_mean, listed


@dataclass(frozen=True)
class Cell:
    """A search's place in a study.

    Args:
        model: The label of its model.
        calibration: The label of its objective and data.
        searcher: The label of its searcher and options.
        search: The search.
        draw: The label of the draw of its samples; empty if the study has only one draw.
    """

    model: str
    calibration: str
    searcher: str
    search: SearchSpec
    draw: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """Its labels, by the column of a table of searches."""
        return cell_labels(self, self.search.remove, self.search.seed)

    def __str__(self) -> str:
        draw = f", draw {self.draw}" if self.draw else ""
        searcher = f"{self.searcher}, M={self.search.remove}, seed {self.search.seed}{draw}"
        return f"{searcher}, {self.calibration}, {self.model}"


def cell_labels(cell: Cell | CellRecord, remove: object, seed: int) -> dict[str, str]:
    """Return the labels of a search, as in `Cell.labels`.

    Args:
        cell: The search's place in a study.
        remove: The numbers of layers that it removes.
        seed: The seed of its searcher.

    Returns:
        The label of each axis, by the name of the axis.
    """
    labels = {"model": cell.model, "calibration": cell.calibration, "searcher": cell.searcher}
    labels |= {"remove": str(remove), "seed": str(seed)}
    if cell.draw:
        labels["draw"] = cell.draw
    return labels


@dataclass(frozen=True)
class StopCriteria(Options):
    """The budget of a search, which ends it early; None for no limit.

    Args:
        seconds: Wall-clock time of one process.
        evaluations: How many masks the searcher has proposed.
    """

    section = "study.stop"

    seconds: PositiveFloat | None = None
    evaluations: PositiveInt | None = None

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by the name of the value that a search reports."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Margin(Options):
    """The differences below which two masks count as equally good; None if the user gave none.

    Args:
        loss: The margin of losses, in the unit of the calibration, and of logarithms of perplexities, in nats per
            token.
        points: The margin of accuracies, in percentage points.
    """

    section = "study.margin"

    loss: PositiveFloat | None = None
    points: PositiveFloat | None = None


@dataclass(frozen=True)
class StudyOptions(Options):
    """How a study runs its searches. Of these options, only `stop` changes the mask that a search finds.

    Args:
        name: The name of the study; its id begins with it.
        concurrency: Searches that run at the same time, or ``auto``: the number of replicas, at most 4.
        retries: How often a search that failed is tried again.
        stop: The budget of each search.
        margin: The differences that the report counts as equal.
        contrasts: Pairs of searchers that the report compares, by their labels: ``greedy - one_shot``.
        unpruned: Whether the dense model is trained by every recovery method too, as a control.

    Raises:
        UserError: A contrast is not two searchers, or the name cannot be used for a folder.
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
        labels = {*searchers}
        for contrast in self.contrasts:
            for searcher in sides_of(contrast):
                if searcher not in labels:
                    near = did_you_mean(searcher, labels)
                    raise UserError(f"study.contrasts has {contrast}, and no searcher is called {searcher}; {near}")


@dataclass(frozen=True)
class StudySpec:
    """A grid of searches.

    Args:
        options: How the study runs its searches.
        cells: The searches, in the study's order.
        assess: How the masks that the searches find are assessed; None for no assessment.
        store: The folder to which the study writes; the ledger may be elsewhere.
        config: The resolved configuration to be recorded: plain values without secrets.
        words: The arguments of the command ``raysearch study``, without secrets.
        notes: Notes on the searches for the user.
        recoveries: The recovery methods by which each mask is trained, by their labels.

    Raises:
        UserError: Masks are repaired before they are evaluated, and an assessment or a recovery does not take them.
    """

    options: StudyOptions
    cells: Sequence[Cell]
    assess: AssessSpec | None
    store: Path
    config: Mapping[str, Any]
    overrides: Sequence[str]
    notes: Sequence[str] = ()
    recoveries: Mapping[str, RecoverySpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        repaired = [cell.search.evaluation.repair for cell in self.cells if cell.search.evaluation.repair != "none"]
        if repaired and (self.assess is not None or self.recoveries):
            option = "study.recover" if self.assess is None else "assess"
            raise UserError(
                f"{option} does not take masks of searches with repair={repaired[0]}; leave it out, or put them in a "
                "study of their own"
            )

    @property
    def study_id(self) -> str:
        """The study's id. It depends on the searches and their budget, not on where and how they run."""
        recoveries = ("refine", "heal", "schedule")  # a study has none of these
        ignored = ("store", "ledger", "cluster", "tracking", *recoveries, "choices")  # choices only name other values
        searches = []
        for cell in self.cells:
            search = cell.search
            unset = [key for key, is_set in (("target", search.target), ("repair", search.is_repaired)) if not is_set]
            config = {key: value for key, value in search.config.items() if key not in (*ignored, *unset)}
            searches.append([cell.labels, config])
        return f"{self.options.name}-{digest([searches, self.options.stop.limits], 8)}"

    @property
    def ledger(self) -> Path:
        """The ledger that records the study."""
        return self.cells[0].search.evaluation.ledger


def sides_of(contrast: str) -> tuple[str, str]:
    """Return the labels of the two searchers of a contrast.

    Raises:
        UserError: The contrast is not two different searchers.
    """
    sides = [side.strip() for side in contrast.split(" - ")]
    if len(sides) != 2 or not all(sides) or sides[0] == sides[1]:
        raise UserError(
            f"study.contrasts has {contrast}, which is not two searchers; write it as in 'greedy - one_shot'"
        )
    return sides[0], sides[1]


def one_seed_each(cells: Sequence[Cell]) -> tuple[list[Cell], list[str]]:
    """Leave out searches that differ from an earlier one only in the seed, if their searcher does not use the seed.

    Returns:
        The remaining searches, and a note for the user if some were left out.
    """
    distinct: list[Cell] = []
    deterministic: dict[str, None] = {}  # the labels of the searchers
    for cell in cells:
        if not cell.search.searcher.stochastic and any(_same_but_seed(cell, earlier) for earlier in distinct):
            deterministic[cell.searcher] = None
        else:
            distinct.append(cell)
    if not deterministic:
        return distinct, []
    searchers = ", ".join(deterministic)
    dropped = count(len(cells) - len(distinct), "search is", "searches are")
    return distinct, [f"no random numbers decide what {searchers} finds, so one seed is run and {dropped} left out"]


def with_shared_models(cells: Sequence[Cell]) -> list[Cell]:
    """Let searches of one model share its replicas: it has halves for all of them if it has halves for one."""
    models = {cell.search.evaluation.model for cell in cells}
    shared = []
    for cell in cells:
        evaluation = cell.search.evaluation
        with_halves = replace(evaluation.model, halves=True)
        if with_halves in models:
            evaluation = replace(evaluation, model=with_halves)
        shared.append(replace(cell, search=replace(cell.search, evaluation=evaluation)))
    return shared


def counted_differently(cells: Sequence[Cell]) -> list[str]:
    """Return a warning if M counts parts of different sizes in searches that a study compares, else nothing."""
    spaces: dict[tuple[str, int | str], dict[str, Space]] = {}
    for cell in cells:
        spaces.setdefault((cell.model, cell.search.remove), {})[cell.search.space.name] = cell.search.space
    for (_, remove), by_name in spaces.items():
        if len({space.n_halves for space in by_name.values()}) > 1:
            counted = listed([space.plural for space in by_name.values()])
            return [
                f"M={remove} counts {counted}, which are not of one size; compare them at the M that removes as many "
                "parameters"
            ]
    return []


def drawn_once(cells: Sequence[Cell]) -> list[str]:
    """Return a warning if a study compares searches on a single draw of a calibration's samples, else nothing."""
    compared = len({cell.searcher for cell in cells}) > 1 or len({cell.calibration for cell in cells}) > 1
    draws: dict[str, set[str]] = {}
    for cell in cells:
        draws.setdefault(cell.calibration, set()).add(cell.draw)
    single = [calibration for calibration, labels in draws.items() if len(labels) == 1]
    if not compared or not single:
        return []
    if len(single) == len(draws):
        subject = "each calibration is"
    else:
        subject = f"{listed(single)} {'is' if len(single) == 1 else 'are'}"
    consequence = "so what other samples would give is not measured"
    return [f"{subject} drawn once, {consequence}; study.grid.draw=[0,1,2] draws more"]


def _same_but_seed(first: Cell, second: Cell) -> bool:
    def without_seed(cell: Cell) -> tuple[Any, ...]:
        search = cell.search
        return cell.labels | {"seed": ""}, search.searcher, search.protect, search.target, search.evaluation

    return first.search.seed != second.search.seed and without_seed(first) == without_seed(second)
