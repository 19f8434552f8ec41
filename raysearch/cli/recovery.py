"""The command that trains a pruned model to recover quality: recover."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysearch.api.store import open_store
from raysearch.cli.app import ConfigDir, Json, Overrides, Remove, SearchName, StorePath, app
from raysearch.cli.output import RESUMABLE, output
from raysearch.errors import UserError


@app.command(short_help="Train the pruned model to regain the lost quality.")
def recover(
    name: SearchName,
    overrides: Overrides,
    out: Annotated[Path | None, typer.Option(help="The folder to write to.")] = None,
    remove: Remove = None,
    minutes: Annotated[float | None, typer.Option(help="Train as many steps as fit into so many minutes.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing checkpoint.")] = False,
    config_dir: ConfigDir = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the expected cost and stop.")] = False,
    store_path: StorePath = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Train the pruned model to regain the lost quality, write it as a checkpoint, and assess it.

    \b
    raysearch recover latest --out healed               distilled on data that the search did not use
    raysearch recover latest data=alpaca data.path=alpaca.jsonl recovery.responses=self --out healed
    raysearch recover latest recovery=paper --out healed --dry-run
    raysearch recover latest --out healed --minutes 10  in ten minutes, without the assessment

    A recovery that was stopped continues with the same command.
    """
    with output(as_json) as answers:
        from raysearch.cli.displays import Display
        from raysearch.cli.recovery_tables import closing_lines, cost_lines, recovery_parts

        if dry_run:
            search = open_store(store_path).search(name)
            with Display(answers.err) as live:
                cost = search.recovery_cost(
                    *overrides, remove=remove, minutes=minutes, config_dir=config_dir, observer=live
                )
            answers.answer(cost, *cost_lines(cost))
            return
        if out is None:
            raise UserError("--out has no value; name the folder of the recovered checkpoint")
        answers.when_stopped = RESUMABLE
        search = open_store(store_path).search(name)
        with Display(answers.err) as live:
            done = search.recover(
                out,
                *overrides,
                remove=remove,
                minutes=minutes,
                overwrite=overwrite,
                config_dir=config_dir,
                observer=live,
            )
        parts = recovery_parts(done.record(""))
        answers.answer(done, *parts, *closing_lines(done, out, store_path))
