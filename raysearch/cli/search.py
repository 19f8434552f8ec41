"""The commands that find masks or evaluate them: search, score, resume."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from raysearch.api import functions
from raysearch.api.search_handle import Search
from raysearch.api.store import open_store
from raysearch.cli.app import ConfigDir, Json, Overrides, SearchName, StorePath, Tracking, app
from raysearch.cli.output import RESUMABLE, Output, output
from raysearch.searching.result import in_brief

_SEARCH_HELP = """Find which layers of a model to remove, and record the evidence.

\b
raysearch search                                       greedy, 5 layers of SmolLM2-135M, on installed prose
raysearch search searcher=beam searcher.width=3 remove=7 protect=[0,-1]
raysearch search remove=1..9                           the best mask for each number of layers, in one search
raysearch search remove=auto budget.loss=0.1           most layers for at most 0.1 more loss; or budget.readout=10%
raysearch search remove=auto budget.speedup=1.2        fewest layers for 20 % more speed; or budget.memory=-15%, 6GB
raysearch search model=Qwen/Qwen3-0.6B model.dtype=bfloat16 data=file data.path=my.txt
raysearch search target=[vllm,llama.cpp]               only masks that these runtimes run as they are
raysearch search refine=recover                        the best mask after a short recovery of the three best
raysearch search schedule=[3,2] heal=recover           remove three layers, recover; remove two more, recover again
raysearch search calibration=paper_perplexity          perplexity on C4, after the paper
raysearch search objective=task_margin data=multiple_choice data.path=my-questions.jsonl
raysearch search cluster.replicas=2 tracking.uri=http://127.0.0.1:5000

A search that was stopped continues with the same command. Groups: model= data= objective= calibration= searcher=
screening= refine= heal= cluster= tracking=; see the files in conf/. Layers are 0-based.
"""


@app.command(help=_SEARCH_HELP, short_help="Find which layers of a model to remove.")
def search(
    overrides: Overrides,
    config_dir: ConfigDir = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the expected cost and stop.")] = False,
    as_json: Json = False,
) -> None:
    with output(as_json) as out:
        if dry_run:
            from raysearch.cli.displays import Display, forecast_line, resource_lines

            with Display(out.err) as live:
                expected = functions.forecast(*overrides, config_dir=config_dir, observer=live)
            target_lines = () if expected.target is None else expected.target.lines
            out.answer(expected, *target_lines, forecast_line(expected), *resource_lines(expected))
        else:
            _follow(out, partial(functions.search, *overrides, config_dir=config_dir))


@app.command(short_help="Print a command's configuration, and the origin of each value.")
def config(
    overrides: Overrides,
    config_dir: ConfigDir = None,
    command: Annotated[functions.Command, typer.Option("--of", help="The command to print it for.")] = "search",
    as_json: Json = False,
) -> None:
    """Print the resolved configuration of a command, each value with its origin, and stop.

    \b
    raysearch config searcher=beam
    raysearch config --of assess assess=offline
    """
    with output(as_json) as out:
        from raysearch.cli.search_tables import settings_table

        settings = functions.config(*overrides, command=command, config_dir=config_dir)
        out.answer(settings, settings_table(settings))


@app.command()
def score(overrides: Overrides, config_dir: ConfigDir = None, as_json: Json = False) -> None:
    """Compute the exact loss of given masks.

    \b
    raysearch score masks=[[3],[3,5],[]]
    raysearch score masks=[[21,22,25]] data=file data.path=my.txt --json
    """
    with output(as_json) as out:
        from raysearch.cli.displays import SearchDisplay
        from raysearch.cli.search_tables import score_table

        out.when_stopped = RESUMABLE
        with SearchDisplay(out.err) as live:
            scores = functions.score(*overrides, config_dir=config_dir, observer=live)
        out.answer(scores, score_table(scores))


@app.command(short_help="Continue a search that was stopped.")
def resume(
    name: SearchName,
    overrides: Tracking,
    store_path: StorePath = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Continue a search that was stopped. Its earlier evaluations are read from the ledger.

    \b
    raysearch resume greedy-m5-3fa2c1d0
    raysearch resume latest
    """
    with output(as_json) as out:
        _follow(out, partial(open_store(store_path).search(name).resume, *overrides))


def _follow(out: Output, run: Callable[..., Search]) -> None:
    """Run a search with a live display, and print its closing table."""
    from raysearch.cli.displays import SearchDisplay
    from raysearch.cli.search_tables import search_tables

    out.when_stopped = RESUMABLE
    with SearchDisplay(out.err) as live:
        try:
            result = run(observer=live).result
        except KeyboardInterrupt:
            if (header := live.search.header) is not None:
                in_ledger = header.settings.places.ledger_option
                out.when_stopped += f", and so does: raysearch resume {header.search_id}{in_ledger}"
            raise
    out.answer(in_brief(result), *search_tables(result))
