"""The commands that show calibrations: data, sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysearch.api import functions
from raysearch.cli.app import Also, ConfigDir, Json, Overrides, app
from raysearch.cli.output import RESUMABLE, output
from raysearch.core.json import plain
from raysearch.core.space import LAYERS


@app.command(short_help="Show a calibration as the model sees it.")
def data(
    overrides: Overrides,
    also: Also,
    config_dir: ConfigDir = None,
    samples: Annotated[int, typer.Option(min=0, help="Number of samples to show.")] = 2,
    loss: Annotated[bool, typer.Option("--loss/--no-loss", help="Compute the loss of the dense model.")] = True,
    as_json: Json = False,
) -> None:
    """Show a calibration as the model sees it: samples with the scored tokens marked, counts, the dense loss.

    \b
    raysearch data data=sotu --samples 1
    raysearch data data=commonsense170k data.path=commonsense_170k.json objective=task_margin
    raysearch data data=c4 --also "data=commonsense170k objective=task_margin" --no-loss
    """
    with output(as_json) as answers:
        from raysearch.cli.calibration_tables import inspections
        from raysearch.cli.displays import SearchDisplay

        with SearchDisplay(answers.err) as live:
            calibrations = functions.inspect(
                *overrides, also=also, config_dir=config_dir, samples=samples, loss=loss, observer=live
            )
        answers.answer(calibrations, *inspections(calibrations))


@app.command(short_help="Remove each single layer, pair or half, by several calibrations.")
def sweep(
    overrides: Overrides,
    also: Also,
    config_dir: ConfigDir = None,
    remove: Annotated[int, typer.Option(min=1, help="Compare this many with the lowest losses.")] = 5,
    space: Annotated[str, typer.Option(help="What is removed: layers, pairs, attention, mlp or halves.")] = LAYERS.name,
    out: Annotated[Path, typer.Option(help="The folder of the figure and the table.")] = Path("sweep"),
    as_json: Json = False,
) -> None:
    """Remove each single layer, pair or half, and show its loss under several calibrations side by side.

    \b
    raysearch sweep --also objective=kl --also objective=hidden_cosine
    raysearch sweep --space pairs
    raysearch sweep data=c4 --also "objective=task_margin data=commonsense170k data.samples=64"
    raysearch sweep objective=generation_accuracy data=gsm8k data.samples=20 objective.max_new_tokens=64
    """
    with output(as_json) as answers:
        from raysearch.cli.calibration_tables import sweep_tables
        from raysearch.cli.displays import SearchDisplay

        answers.when_stopped = RESUMABLE
        with SearchDisplay(answers.err) as live:
            result = functions.sweep(
                *overrides, also=also, out=out, remove=remove, space=space, config_dir=config_dir, observer=live
            )
        agreements = result.agreements(remove)
        value = {**plain(result), "agreements": agreements}
        answers.answer(value, *sweep_tables(result, agreements), f"Wrote {', '.join(map(str, result.files))}")
