"""The commands on what was found before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysearch.cli.app import app
from raysearch.cli.options import Json, LedgerFile, Run, Store, Tracking, recorded_run
from raysearch.cli.output import reporting
from raysearch.core.paths import ledger_path
from raysearch.errors import UserError

if TYPE_CHECKING:
    from raysearch.ledger.searches import SearchRecord


@app.command()
def show(
    run: Annotated[str | None, typer.Argument(metavar="[SEARCH]", help="A run; all of them if left out.")] = None,
    most: Annotated[int, typer.Option(min=1, help="How many masks to list.")] = 20,
    gap: Annotated[bool, typer.Option("--gap", help="Rank what was found among all masks there are.")] = False,
    store: Store = Path("mlruns"),
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Lists the searches of a ledger, or what one of them found and saw.

    \b
    raysearch show
    raysearch show greedy-m5-3fa2c1d0 --most 50
    raysearch show latest --gap
    """
    with reporting(as_json) as report:
        from raysearch.cli import tables
        from raysearch.ledger.ledger import opened
        from raysearch.ledger.searches import find_search, list_searches
        from raysearch.search.gap import gaps_of

        with opened(ledger_path(store, ledger)) as found:
            if run is None:
                if gap:
                    raise UserError("--gap ranks what one search found; name it, as in raysearch show latest --gap")
                runs = list_searches(found)
                listing = [{"search_id": one.search_id, "state": one.state, "result": _brief(one)} for one in runs]
                report.answer(listing, tables.runs_table(runs))
            else:
                record = find_search(found, run)
                whole = {name: getattr(record, name) for name in ("search_id", "state", "failure", "config", "result")}
                gaps = gaps_of(record, found) if gap else []
                ranks = {"gap": [one.as_json() for one in gaps]} if gap else {}
                report.answer({**whole, **ranks}, *tables.run_tables(record, most, gaps))


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    remove: Annotated[int | None, typer.Option(help="Its best mask of so many layers, not the one it found.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an export that is there.")] = False,
    prompt: Annotated[str | None, typer.Option(help="Continue this text with the model before and after.")] = None,
    store: Store = Path("mlruns"),
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Writes what a search found as a checkpoint that plain transformers, vLLM and llama.cpp load.

    \b
    raysearch export latest --out pruned-model
    raysearch export latest --out pruned-by-3 --remove 3
    raysearch export greedy-m5-3fa2c1d0 --out pruned-model --overwrite --prompt "The state of the Union is"
    """
    with reporting(as_json) as report:
        from raysearch.config import build
        from raysearch.search.export import export_run

        record = recorded_run(run, store, ledger)
        spec = build.search_spec(record.config)
        done = export_run(record, spec, out, remove=remove, overwrite=overwrite, prompt=prompt)
        lines = [f"Wrote {done.out}: {done.n_layers} layers, {done.parameters / 1e6:,.1f} M parameters."]
        lines.append(f"Reloaded with plain transformers; largest logit difference {done.max_logit_difference:.2g}.")
        if prompt is not None:
            lines += [f"Before: {prompt}{done.before}", f"After:  {prompt}{done.after}"]
        report.answer({**vars(done), "out": str(done.out), "search_id": record.search_id}, *lines)


@app.command()
def sync(
    run: Annotated[
        str, typer.Argument(metavar="SEARCH|STUDY", help="A search or a study: its id, or the start of one.")
    ],
    overrides: Tracking = None,
    store: Store = Path("mlruns"),
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Writes to MLflow what it lacks of a search or a study, from the ledger alone: no model, no data.

    \b
    raysearch sync latest
    raysearch sync greedy-m5-3fa2c1d0 tracking.uri=http://127.0.0.1:5000
    raysearch sync two-calibrations                     its searches, filed under it, and its report

    What is there is never written twice. A place that is named stands in the record from then on.
    """
    with reporting(as_json) as report:
        from raysearch import api
        from raysearch.cli import tables

        synced = api.sync(run, *overrides or [], store=store, ledger=ledger)
        report.answer(synced.as_json(), *tables.synced_lines(synced))


@app.command()
def ui(
    store: Store = Path("mlruns"),
    uri: Annotated[str | None, typer.Option(help="A tracking URI other than the store's own.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 5000,
) -> None:
    """Opens MLflow's own UI on the recorded searches, until Ctrl-C.

    \b
    raysearch ui
    raysearch ui --port 5001
    """
    with reporting(as_json=False):
        from raysearch.tracking.mlflow.ui import serve_ui

        serve_ui(store, uri, host, port)


def _brief(run: SearchRecord) -> dict[str, Any] | None:
    """A run's result without what it is made of."""
    return (
        None
        if run.result is None
        else {key: value for key, value in run.result.items() if key not in ("trials", "rounds", "told")}
    )
