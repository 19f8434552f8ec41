"""The commands on a ledger: ``check``, ``merge``, ``clean``, ``export``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysearch.api.store import open_store
from raysearch.cli.app import Json, StorePath, app
from raysearch.cli.output import output
from raysearch.text.numbers import count, size

if TYPE_CHECKING:
    from raysearch.searching.search_record import Cleaned

ledger_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Check, merge, clean or export a ledger.")
app.add_typer(ledger_app, name="ledger")


@ledger_app.command()
def check(store_path: StorePath = Path("mlruns"), as_json: Json = False) -> None:
    """Read every row of a ledger and compare it with its checksum; exit code 1 if something is damaged.

    \b
    raysearch ledger check
    raysearch ledger check --store other-machine
    """
    with output(as_json) as out:
        result = open_store(store_path).check()
        rows = _row_counts(result.rows)
        if result.is_whole:
            out.answer(result, f"{result.path} is whole: {size(result.size_bytes)}, {rows or 'empty'}.")
            return
        lines = [f"{result.path} is damaged:", *(f"  {line}" for line in result.damage)]
        out.answer(result, *lines, "Put back a copy of it, or move it away and start again.")
    raise typer.Exit(1)


@ledger_app.command()
def merge(
    other_ledgers: Annotated[list[Path], typer.Argument(metavar="OTHER...", help="Other ledgers, or their stores.")],
    store_path: StorePath = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Copy the rows of other ledgers that this one lacks. Each ledger is merged completely, or not at all.

    \b
    raysearch ledger merge other-machine/ledger.db
    raysearch ledger merge one two three --store all
    """
    with output(as_json) as out:
        merged = open_store(store_path).merge(*other_ledgers)
        rows = _row_counts(merged.rows)
        out.answer(merged, f"Merged {rows} into {merged.path}." if rows else f"{merged.path} has all of it already.")


@ledger_app.command()
def clean(
    searches: Annotated[
        list[str] | None, typer.Argument(metavar="[SEARCH]...", help="Searches to delete, as for resume.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; otherwise only show what would be deleted.")] = False,
    store_path: StorePath = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Delete searches, and the evaluations that no other search uses, and shrink the file.

    \b
    raysearch ledger clean greedy-m5-3fa2c1d0
    raysearch ledger clean greedy-m5-3fa2c1d0 --yes
    raysearch ledger clean --yes                        only shrink the file

    A later command that needs the deleted evaluations computes them again.
    """
    with output(as_json) as out:
        cleaned = open_store(store_path).clean(*searches or [], yes=yes)
        lines = [_cleaning_line(cleaned)]
        if cleaned.studies:
            studies = ", ".join(cleaned.studies)
            lines.append(f"Studies that have them, whose reports lack them until they run again: {studies}.")
        out.answer(cleaned, *lines)


@ledger_app.command()
def export(
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    form: Annotated[str, typer.Option("--format", help="csv, parquet or jsonl.")] = "csv",
    store_path: StorePath = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Write the searches, their trials and all evaluations as tables for pandas, R or a spreadsheet.

    \b
    raysearch ledger export --out tables
    raysearch ledger export --out tables --format parquet
    """
    with output(as_json) as answers:
        written = open_store(store_path).export_tables(out, format=form)
        files = [{"path": str(file), "rows": rows} for file, rows in written.items()]
        answers.answer(files, *(f"{file}: {count(rows, 'row')}" for file, rows in written.items()))


def _cleaning_line(cleaned: Cleaned) -> str:
    """Return the sentence on what was deleted, or would be."""
    size_before, size_after = map(size, cleaned.size_bytes)
    rows = _row_counts(cleaned.rows)
    if not cleaned.searches and not rows:
        ending = f"{size_after} instead of {size_before}" if cleaned.done else "--yes only shrinks the file"
        return f"Nothing to delete in {cleaned.path}: no search was named; {ending}."
    names = f" ({', '.join(cleaned.searches)})" if cleaned.searches else ""
    deleted = f"{count(len(cleaned.searches), 'search', 'searches')}{names}"
    evaluations = rows or "no evaluations of its own"
    if cleaned.done:
        return f"Deleted from {cleaned.path}: {deleted}, {evaluations}; {size_after} instead of {size_before}."
    return f"{deleted} with {evaluations} would be deleted from {cleaned.path}; delete with --yes."


def _row_counts(rows: Mapping[str, int]) -> str:
    """Return the number of rows of each table as text; empty if there are none."""
    singulars = {"searches": "search", "studies": "study"}
    return ", ".join(count(number, singulars.get(table, table[:-1]), table) for table, number in rows.items() if number)
