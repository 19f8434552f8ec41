"""The commands that find masks, or evaluation them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysearch.cli.app import app
from raysearch.cli.options import ConfigDir, Json, LedgerFile, Overrides, Run, StoreIfNamed, Tracking, recorded_run
from raysearch.cli.output import reporting
from raysearch.errors import UserError

_SEARCH_HELP = """Finds which layers of a model to remove, and records the evidence.

\b
raysearch search                                       greedy, 5 layers of SmolLM2-135M, on installed prose
raysearch search searcher=beam searcher.width=3 remove=7 protect=[0,-1]
raysearch search remove=1..9                           the best mask for each number of layers, in one search
raysearch search model=Qwen/Qwen3-0.6B model.dtype=bfloat16 data=file data.path=my.txt
raysearch search calibration=paper_perplexity          perplexity on C4, as in the paper
raysearch search objective=task_margin data=multiple_choice data.path=my-questions.jsonl
raysearch search cluster.replicas=2 tracking.uri=http://127.0.0.1:5000

The same command again goes on where it was stopped. Groups: model= data= objective= calibration= searcher= cluster=
tracking=; see the files under conf/. Layers are 0-based.
"""


@app.command(help=_SEARCH_HELP)
def search(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[bool, typer.Option(help="Say what it would cost, and stop.")] = False,
    as_json: Json = False,
) -> None:
    with reporting(as_json) as report:
        from raysearch.config import build
        from raysearch.config import compose as config

        spec = build.search_spec(config.compose("search", overrides or [], config_dir))
        if dry_run:
            report.forecast(spec)
        else:
            report.search(spec)


@app.command()
def score(overrides: Overrides = None, config_dir: ConfigDir = None, as_json: Json = False) -> None:
    """Gives the exact loss of masks that you already have.

    \b
    raysearch score masks=[[3],[3,5],[]]
    raysearch score masks=[[21,22,25]] data=file data.path=my.txt --json
    """
    with reporting(as_json) as report:
        from raysearch.cli.search_display import SearchDisplay
        from raysearch.cli.tables import score_table
        from raysearch.config import build
        from raysearch.config import compose as config
        from raysearch.search.score import score_masks

        report.when_stopped = "stopped; the same command again goes on from here"
        spec = build.score_spec(config.compose("score", overrides or [], config_dir))
        with SearchDisplay(report.err) as display:
            scores = score_masks(spec, display.progress)
        report.answer([one.as_json() for one in scores], score_table(scores))


@app.command()
def resume(
    run: Run,
    overrides: Tracking = None,
    store: StoreIfNamed = None,
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Takes up a search that was stopped; the ledger answers what it had got done.

    \b
    raysearch resume greedy-m5-3fa2c1d0
    raysearch resume latest
    """
    with reporting(as_json) as report:
        from raysearch.config import build
        from raysearch.config import compose as config
        from raysearch.errors import hidden_keys

        folder = store or Path("mlruns")
        record = recorded_run(run, folder, ledger)
        # The same ledger and store, from whatever folder this is typed in.
        here = {"ledger": str(ledger) if ledger else None} | ({"store": str(folder)} if store or not ledger else {})
        spec = build.search_spec(config.recorded(record.config, overrides or [], **here))
        spec.tracking.store.check()
        for key in hidden_keys({**spec.config, "tracking": {}}):
            raise UserError(
                f"{key} is on record without its secret; type the whole search command again, which goes on too"
            )
        report.search(spec, resumes=record.search_id)
