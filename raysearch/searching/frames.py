"""The searches of a ledger, their trials and their evaluations as tables, and as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raysearch.core.json import finite, plain
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.searching.search_record import SEARCHES, SearchRecord, with_current_states
from raysearch.text.escaping import csv_cell
from raysearch.text.sentences import did_you_mean

if TYPE_CHECKING:
    import pandas as pd

_FORMATS = ("csv", "jsonl", "parquet")
_ROWS_AT_ONCE = 1 << 14  # how many rows, one for each mask and shard, are in memory


_SEARCH_COLUMNS = [
    "model",
    "searcher",
    "objective",
    "data",
    "samples",
    "data_seed",
    "seed",
    "state",
    "remove",
    "removed",
    "dense_loss",
    "loss",
    "readout",
    "unit",
    "calibration",
    "updated",
]


def searches_frame(records: Sequence[SearchRecord]) -> pd.DataFrame:
    """Return searches as a table, a row for each id; a search that has not finished has no losses.

    ``samples`` and ``data_seed`` belong to the data, ``seed`` to the searcher.
    """
    import pandas as pd

    rows = {}
    for record in records:
        settings = record.settings
        row: dict[str, Any] = {"model": settings.model_name, "state": record.state, "remove": settings.remove}
        row |= {name: settings.choices.get(name) for name in ("searcher", "objective", "data")}
        row |= {"samples": settings.samples, "data_seed": settings.data_seed, "seed": settings.seed}
        row |= {"updated": record.updated, "calibration": record.fingerprints.get("calibration")}
        if (result := record.result) is not None:
            row |= {"removed": str(result.mask), "dense_loss": result.dense_loss, "loss": result.loss}
            row |= {"readout": result.readout, "unit": result.measure.unit}
        rows[record.search_id] = plain(row)
    return pd.DataFrame.from_dict(rows, orient="index", columns=_SEARCH_COLUMNS).rename_axis("search_id")


def export_frames(ledger: Ledger, folder: Path, form: str = "csv") -> dict[Path, int]:
    """Write the searches, trials and evaluations of a ledger as files of these names.

    Args:
        ledger: The ledger.
        folder: The folder of the files; it is created if it does not exist.
        form: ``csv``, ``jsonl`` or ``parquet``.

    Returns:
        The number of rows of each file.

    Raises:
        UserError: The form is unknown, or a file cannot be written.
    """
    import pandas as pd

    if form not in _FORMATS:
        raise UserError(f"--format={form} is unknown; {did_you_mean(form, _FORMATS)}")
    records = with_current_states(ledger, SEARCHES.all(ledger))
    trials = {record.search_id: record.result.to_frame() for record in records if record.result is not None}
    frames: dict[str, Iterable[pd.DataFrame]] = {
        "searches": [searches_frame(records).reset_index()],
        "trials": [(pd.concat(trials, names=["search_id"]) if trials else pd.DataFrame()).reset_index()],
        "evaluations": _evaluations(ledger),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {folder / f"{name}.{form}": parts for name, parts in frames.items()}
        return {file: write_frame(parts, file) for file, parts in files.items()}
    except OSError as error:
        raise UserError(f"--out={folder} cannot be written ({error.strerror}); name another folder") from error


def _evaluations(ledger: Ledger) -> Iterator[pd.DataFrame]:
    """Yield all evaluations in parts, a row for each sample; losses are sums, not divided by any count."""
    rows: list[tuple[str, str, int, NDArray[np.float64]]] = []
    for (calibration,) in ledger.read("SELECT DISTINCT calibration FROM evaluations"):
        for mask, shards in ledger.masks(calibration):
            rows += [(calibration, str(mask), shard, losses) for shard, losses in shards.items()]
            if len(rows) >= _ROWS_AT_ONCE:
                yield _sample_rows(rows)
                rows.clear()
    yield _sample_rows(rows)


def _sample_rows(rows: Sequence[tuple[str, str, int, NDArray[np.float64]]]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(rows, columns=["calibration", "mask", "shard", "loss"]).explode("loss")
    frame.insert(3, "sample", frame.groupby(level=0).cumcount())
    return frame.astype({"shard": int, "loss": float})


def write_frame(parts: Iterable[pd.DataFrame], file: Path) -> int:
    """Write a table that comes in parts.

    Args:
        parts: The parts, in order.
        file: The file; its suffix, ``.csv``, ``.jsonl`` or ``.parquet``, is the format.

    Returns:
        The number of rows.
    """
    n_rows = 0
    with ExitStack() as stack:
        parquet = None
        lines = None if file.suffix == ".parquet" else stack.enter_context(file.open("w", encoding="utf-8", newline=""))
        for frame in parts:
            texts = frame.select_dtypes(exclude=["number", "bool"])
            if lines is None:
                from pyarrow import Table
                from pyarrow.parquet import ParquetWriter

                written = frame.assign(**{name: texts[name].map(str, na_action="ignore") for name in texts})
                table = Table.from_pandas(written, schema=parquet and parquet.schema, preserve_index=False)
                parquet = parquet or stack.enter_context(ParquetWriter(file, table.schema))
                parquet.write_table(table)
            elif file.suffix == ".jsonl":  # pandas would write only fifteen digits of each number
                lines.writelines(f"{json.dumps(finite(row))}\n" for row in frame.to_dict("records"))
            else:
                written = frame.assign(**{name: texts[name].map(csv_cell) for name in texts})
                written.to_csv(lines, index=False, header=not n_rows)
            n_rows += len(frame)
    return n_rows
