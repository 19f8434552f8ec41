"""The commands that compare many searches, and measure what they found."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from raysearch.cli.app import app
from raysearch.cli.options import ConfigDir, Json, LedgerFile, Overrides, Run, Store
from raysearch.terminal import reporting

Study = Annotated[str, typer.Argument(metavar="STUDY", help="A study's id, the start of one, or latest.")]
Out = Annotated[Path | None, typer.Option(help="The folder of the report; reports/<study> in the store if left out.")]


@app.command()
def study(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option(help="Say what it would cost, and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Runs a grid of searches that share replicas and ledger, assesses what they find, and writes a report.

    \b
    raysearch study study=two_calibrations assess=offline
    raysearch study study.grid.searcher=[one_shot,greedy,beam] study.grid.remove=[3,5] --dry-run

    The same command again goes on where it was stopped, and tries again what failed.
    """
    with reporting(as_json) as report:
        from raysearch import build

        spec = build.study_spec(overrides or [], config_dir)
        if dry_run:
            report.plan(spec)
        else:
            report.study(spec, out)


@app.command()
def report(
    study: Study = "latest",
    out: Out = None,
    store: Store = Path("mlruns"),
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Writes the report of a study, as far as it is done: one page that needs no network, tables and figures.

    \b
    raysearch report
    raysearch report two-calibrations-1eb52836 --out report
    """
    with reporting(as_json) as reporter:
        from raysearch import api

        reporter.written(*api.report(study, store=store, ledger=ledger, out=out, warn=reporter.warn))


@app.command()
def assess(
    run: Run,
    overrides: Overrides = None,
    remove: Annotated[int | None, typer.Option(help="Its best mask of so many layers, not the one it found.")] = None,
    config_dir: ConfigDir = None,
    store: Store = Path("mlruns"),
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Measures what a search found beside the dense model: held-out perplexity, lm-eval's accuracies, speed.

    \b
    raysearch assess latest                             held-out prose and speed, with no network
    raysearch assess latest assess=paper assess.data_dir=data assess.limit=100
    """
    with reporting(as_json) as report:
        from raysearch import api

        options: dict[str, Any] = {"remove": remove, "config_dir": config_dir, "store": store, "ledger": ledger}
        report.assess(partial(api.assess, run, *overrides or [], **options))
