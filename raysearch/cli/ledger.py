"""The commands that look after a ledger: ``check``, ``merge``, ``clean``, ``export``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from raysearch import api
from raysearch.cli.app import Json, Store, app
from raysearch.cli.output import output
from raysearch.core.formatting import count, size

ledger_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Check, merge, clean or export a ledger.")
app.add_typer(ledger_app, name="ledger")


@ledger_app.command()
def check(store: Store = Path("mlruns"), as_json: Json = False) -> None:
    """Read every row of a ledger and compare it with its checksum; exit code 1 if something is damaged.

    \b
    raysearch ledger check
    raysearch ledger check --store other-machine
    """
    with output(as_json) as out:
        found = api.check_ledger(store=store)
        rows = _counted(found.rows)
        if found.is_whole:
            out.answer(found, f"{found.path} is whole: {size(found.size_bytes)}, {rows or 'empty'}.")
            return
        lines = [f"{found.path} is damaged:", *(f"  {line}" for line in found.damage)]
        out.answer(found, *lines, "Put back a copy of it, or move it away and start again.")
    raise typer.Exit(1)


@ledger_app.command()
def merge(
    others: Annotated[list[Path], typer.Argument(metavar="OTHER...", help="Other ledgers, or the stores of them.")],
    store: Store = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Take over what other ledgers have and this one lacks: the same numbers bit for bit, or nothing at all.

    \b
    raysearch ledger merge other-machine/ledger.db
    raysearch ledger merge one two three --store all
    """
    with output(as_json) as out:
        merged = api.merge_ledgers(*others, store=store)
        rows = _counted(merged.rows)
        out.answer(merged, f"Merged {rows} into {merged.path}." if rows else f"{merged.path} has all of it already.")


@ledger_app.command()
def clean(
    searches: Annotated[
        list[str] | None, typer.Argument(metavar="[SEARCH]...", help="Searches to forget, as for resume.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only say what would go.")] = False,
    store: Store = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Forget searches, with the evaluations that no other search is of, and give back the space on the disk.

    \b
    raysearch ledger clean greedy-m5-3fa2c1d0
    raysearch ledger clean greedy-m5-3fa2c1d0 --yes
    raysearch ledger clean --yes                        give back space alone

    What another command needs of them later is computed again.
    """
    with output(as_json) as out:
        gone = api.clean_ledger(*searches or [], yes=yes, store=store)
        named = f" ({', '.join(gone.searches)})" if gone.searches else ""
        what = f"{count(len(gone.searches), 'search', 'searches')}{named}"
        rows = _counted(gone.rows) or "no evaluations of its own"
        before, after = map(size, gone.size_bytes)
        said = f"Removed from {gone.path}: {what}, {rows}; {after} instead of {before}."
        if not gone.done:
            said = f"{what} with {rows} would go from {gone.path}; do it with --yes."
        if not gone.searches and not _counted(gone.rows):
            ends = f"{after} instead of {before}" if gone.done else "--yes gives back unused space of the file alone"
            said = f"Nothing to clean in {gone.path}: no search was named that it should forget; {ends}."
        lacking = f"Studies that have them, whose reports lack them until they run again: {', '.join(gone.studies)}."
        out.answer(gone, said, *([lacking] if gone.studies else []))


@ledger_app.command()
def export(
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    form: Annotated[str, typer.Option("--format", help="csv, parquet or jsonl.")] = "csv",
    store: Store = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Write the searches, their trials and all evaluations as tables for pandas, R or a spreadsheet.

    \b
    raysearch ledger export --out tables
    raysearch ledger export --out tables --format parquet
    """
    with output(as_json) as answers:
        written = api.export_ledger(out=out, format=form, store=store)
        files = [{"path": str(file), "rows": rows} for file, rows in written.items()]
        answers.answer(files, *(f"{file}: {count(rows, 'row')}" for file, rows in written.items()))


def _counted(rows: Mapping[str, int]) -> str:
    """Return the numbers of rows by table, in words; empty for none."""
    one = {"searches": "search", "studies": "study"}
    return ", ".join(count(number, one.get(table, table[:-1]), table) for table, number in rows.items() if number)
