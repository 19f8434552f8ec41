"""The commands that show what masks are judged on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from raysearch.cli.app import Also, ConfigDir, Json, Overrides, app
from raysearch.cli.output import GOES_ON, output
from raysearch.core.paths import as_folder


@app.command()
def data(
    overrides: Overrides = None,
    also: Also = None,
    config_dir: ConfigDir = None,
    samples: Annotated[int, typer.Option(min=0, help="How many samples to show.")] = 2,
    loss: Annotated[bool, typer.Option("--loss/--no-loss", help="Run the dense model on them.")] = True,
    as_json: Json = False,
) -> None:
    """Shows a calibration as the model will see it: samples, what is scored of them, counts, the dense loss.

    \b
    raysearch data data=sotu --samples 1
    raysearch data data=commonsense170k data.path=commonsense_170k.json objective=task_margin
    raysearch data data=c4 --also "data=commonsense170k objective=task_margin" --no-loss
    """
    with output(as_json) as answers:
        from raysearch import api
        from raysearch.cli import tables
        from raysearch.cli.displays import SearchDisplay

        with SearchDisplay(answers.err) as live:
            found = api.inspect(
                *overrides or [],
                also=also or [],
                config_dir=config_dir,
                samples=samples,
                loss=loss,
                observer=live,
            )
        answers.answer([dataclasses.asdict(one) for one in found], *tables.inspections(found))


@app.command()
def sweep(
    overrides: Overrides = None,
    also: Also = None,
    config_dir: ConfigDir = None,
    remove: Annotated[int, typer.Option(min=1, help="Compare the layers that would go first, so many of them.")] = 5,
    out: Annotated[Path, typer.Option(help="The folder for the figure and the table.")] = Path("sweep"),
    as_json: Json = False,
) -> None:
    """Removes each layer by itself, and lays side by side what several calibrations make of it.

    \b
    raysearch sweep --also objective=kl --also objective=hidden_cosine
    raysearch sweep data=c4 --also "objective=task_margin data=commonsense170k data.samples=64"
    raysearch sweep objective=generation_accuracy data=gsm8k data.samples=20 objective.max_new_tokens=64
    """
    with output(as_json) as answers:
        from raysearch import api
        from raysearch.cli import tables
        from raysearch.cli.displays import SearchDisplay

        out = as_folder("--out", out)  # before hours are spent
        answers.when_stopped = GOES_ON
        with SearchDisplay(answers.err) as live:
            found = api.sweep(*overrides or [], also=also or [], config_dir=config_dir, observer=live)
        written = api.write_sweep(found, remove, out)
        agreements = found.agreements(remove)
        value = {
            "model": found.model,
            "calibrations": [one.as_json() for one in found.profiles],
            "agreements": [vars(one) for one in agreements],
            "files": [str(path) for path in written],
        }
        answers.answer(value, *tables.sweep_tables(found, agreements), f"Wrote {', '.join(map(str, written))}")
