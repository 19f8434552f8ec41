"""The commands that compare many searches, and measure what they found."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from raysearch.cli.app import app
from raysearch.cli.options import ConfigDir, Json, LedgerFile, Overrides, Store
from raysearch.cli.output import reporting
from raysearch.core.paths import as_folder, ledger_path
from raysearch.errors import UserError

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
        from raysearch.config import build

        spec = build.study_spec(overrides or [], config_dir)
        if dry_run:
            report.plan(spec)
        else:
            report.study(spec, None if out is None else as_folder("--out", out))


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
    run: Annotated[
        str, typer.Argument(metavar="SEARCH|STUDY", help="A search or a study: its id, or the start of one.")
    ],
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
    raysearch assess two-calibrations assess=paper      what all searches of a study found; its report is written anew
    """
    with reporting(as_json) as report:
        from raysearch import api
        from raysearch.ledger.ledger import opened
        from raysearch.ledger.studies import is_study

        options: dict[str, Any] = {"config_dir": config_dir, "store": store, "ledger": ledger}
        with opened(ledger_path(store, ledger)) as found:
            of_study = is_study(found, run)
        if of_study:
            if remove is not None:
                raise UserError(f"--remove={remove} is of one search; leave it out for a study, or name the search")
            report.assess_study(partial(api.assess_study, run, *overrides or [], **options))
        else:
            report.assess(partial(api.assess, run, *overrides or [], remove=remove, **options))
