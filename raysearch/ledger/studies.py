"""The studies a ledger knows: which searches each is made of. What those found stands with the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from raysearch.ledger.checksum import sealed_json
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.naming import find, named


@dataclass(frozen=True)
class CellRecord:
    """A search's place in a study.

    Args:
        model: The label of its model.
        calibration: That of its objective and data.
        searcher: That of its searcher and options.
        remove: M, how many layers go.
        seed: Of the searcher's random numbers.
        search_id: The search.
        layer_forwards_shared: What it adds to the study, see `raysearch.study.sharing`.
        error_to_best: Standard error of its loss over the lowest one found on the same calibration for the same M, by
            the choice of samples; None where there is none.
    """

    model: str
    calibration: str
    searcher: str
    remove: int
    seed: int
    search_id: str
    layer_forwards_shared: float = 0.0
    error_to_best: float | None = None


@dataclass(frozen=True)
class StudyRecord:
    """A study as the ledger remembers it.

    Args:
        study_id: Its name.
        config: Its resolved configuration.
        cells: Its searches, in order.
        facts: What a reader must know to trust it, by subject, as it was when it ran.
        assessed: By the label of a model: what ``metrics`` its masks were assessed by, and the numbers ``by_mask``.
        updated: When the record last changed, ISO 8601, UTC.
        mlflow_run_id: Its MLflow run, if it was recorded.
    """

    study_id: str
    config: Mapping[str, Any]
    cells: Sequence[CellRecord]
    facts: Mapping[str, str]
    assessed: Mapping[str, Any]
    updated: str
    mlflow_run_id: str | None = None


def write_study(
    ledger: Ledger,
    study_id: str,
    config: Mapping[str, Any],
    cells: Sequence[CellRecord],
    facts: Mapping[str, str],
    assessed: Mapping[str, Any],
    mlflow_run_id: str | None = None,
) -> None:
    """Records what a study is made of, and what its masks were assessed at."""
    now = datetime.now(UTC).isoformat(sep=" ", timespec="microseconds")
    whole: dict[str, Any] = {"cells": [asdict(cell) for cell in cells], "facts": facts, "assessed": assessed}
    whole["mlflow_run_id"] = mlflow_run_id
    with ledger.transaction() as connection:
        connection.execute(
            "INSERT OR REPLACE INTO studies VALUES (?, ?, ?, ?)",
            (study_id, sealed_json(config, study_id, "config"), sealed_json(whole, study_id, "cells"), now),
        )


def list_studies(ledger: Ledger) -> list[StudyRecord]:
    """Every study, the newest first."""
    rows = ledger.read("SELECT study_id, config, cells, updated FROM studies ORDER BY updated DESC")
    return [_read(ledger, *row) for row in rows]


def find_study(ledger: Ledger, name: str) -> StudyRecord:
    """Finds a study by its id, a prefix of it, its MLflow run id, or ``latest``.

    Raises:
        UserError: There is no such study, or the prefix fits several.
    """
    return find(name, list_studies(ledger), _ids, "study", ledger)


def is_study(ledger: Ledger, name: str) -> bool:
    """Whether a name is that of a study, or the start of one; ``latest`` is a search."""
    return bool(named(name, list_studies(ledger), _ids))


def _ids(study: StudyRecord) -> tuple[str, str | None]:
    return study.study_id, study.mlflow_run_id


def _read(ledger: Ledger, study_id: str, config: bytes, cells: bytes, updated: str) -> StudyRecord:
    whole = ledger.json(cells, study_id, "cells")
    read = [CellRecord(**cell) for cell in whole["cells"]]
    rest = whole["facts"], whole["assessed"], updated, whole["mlflow_run_id"]
    return StudyRecord(study_id, ledger.json(config, study_id, "config"), read, *rest)
