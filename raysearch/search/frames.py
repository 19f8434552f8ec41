"""The searches of a ledger, their trials and their evaluations as tables, and as files of these."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.core.escaping import csv_cell
from raysearch.core.json import finite, plain
from raysearch.errors import UserError, did_you_mean
from raysearch.ledger.ledger import Ledger
from raysearch.search.record import SEARCHES, SearchRecord, as_they_stand

if TYPE_CHECKING:
    import pandas as pd

_FORMATS = ("csv", "jsonl", "parquet")


def searches_frame(records: Sequence[SearchRecord]) -> pd.DataFrame:
    """Return searches as a table, by their ids; losses are missing of one that has not finished."""
    import pandas as pd

    columns = ["model", "state", "remove", "removed", "dense_loss", "loss", "readout", "unit", "calibration", "updated"]
    rows = {}
    for record in records:
        row: dict[str, Any] = {"model": record.config["model"]["name"], "state": record.state}
        row |= {"remove": record.config["remove"], "updated": record.updated}
        row |= {"calibration": record.fingerprints.get("calibration")}
        if (found := record.result) is not None:
            row |= {"removed": str(found.mask), "dense_loss": found.dense_loss, "loss": found.loss}
            row |= {"readout": found.readout, "unit": found.measure.unit}
        rows[record.search_id] = plain(row)
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("search_id")


def trials_frame(records: Sequence[SearchRecord]) -> pd.DataFrame:
    """Return the trials of searches as one table, by search and number, as `SearchResult.to_frame`."""
    import pandas as pd

    found = {one.search_id: one.result.to_frame() for one in records if one.result is not None}
    return pd.concat(found, names=["search_id"]) if found else pd.DataFrame()


def evaluations_frame(ledger: Ledger) -> pd.DataFrame:
    """Return all evaluations of a ledger as a table, a row for each sample's loss.

    Args:
        ledger: The ledger.

    Returns:
        Columns ``calibration`` (its fingerprint), ``mask``, ``shard``, ``sample`` (in its shard) and ``loss``, before
        it is divided by its measure's count.
    """
    import pandas as pd

    return pd.DataFrame(_losses(ledger), columns=["calibration", "mask", "shard", "sample", "loss"])


def export_frames(ledger: Ledger, folder: Path, form: str = "csv") -> dict[Path, int]:
    """Write the searches, trials and evaluations of a ledger as files of that name.

    Args:
        ledger: The ledger.
        folder: Where.
        form: ``csv``, ``parquet`` or ``jsonl``.

    Returns:
        The files, each with its number of rows.

    Raises:
        UserError: The form is unknown, or a file cannot be written.
    """
    if form not in _FORMATS:
        raise UserError(f"--format={form} is unknown; {did_you_mean(form, _FORMATS)}")
    records = as_they_stand(ledger, SEARCHES.all(ledger))
    frames = {
        "searches": searches_frame(records).reset_index(),
        "trials": trials_frame(records).reset_index(),
        "evaluations": evaluations_frame(ledger),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return {_write(frame, folder / f"{name}.{form}"): len(frame) for name, frame in frames.items()}
    except OSError as error:
        raise UserError(f"--out={folder} cannot be written ({error.strerror}); name another folder") from error


def _losses(ledger: Ledger) -> Iterator[tuple[str, str, int, int, float]]:
    calibrations = [name for (name,) in ledger.read("SELECT DISTINCT calibration FROM evaluations")]
    for calibration in calibrations:
        for mask, shards in ledger.masks(calibration):
            for shard, losses in shards.items():
                for sample, loss in enumerate(losses):
                    yield calibration, str(mask), shard, sample, float(loss)


def _write(frame: pd.DataFrame, file: Path) -> Path:
    texts = frame.select_dtypes(exclude=["number", "bool"])
    if file.suffix == ".parquet":
        frame.assign(**{name: texts[name].map(str, na_action="ignore") for name in texts}).to_parquet(file, index=False)
    elif file.suffix == ".jsonl":  # pandas would write fifteen digits of each number, not all
        rows = (json.dumps(finite(row)) for row in frame.to_dict("records"))
        file.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    else:
        frame.assign(**{name: texts[name].map(csv_cell) for name in texts}).to_csv(file, index=False)
    return file
