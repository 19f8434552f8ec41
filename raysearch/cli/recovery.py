"""The command that trains a pruned model again: recover."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysearch.cli.app import ConfigDir, Json, LedgerFile, Overrides, Remove, Search, Store, app
from raysearch.cli.output import GOES_ON, output
from raysearch.core.json import plain

if TYPE_CHECKING:
    from rich.table import Table

    from raysearch.recovery.results import Recovered, RecoveryCost


@app.command()
def recover(
    search: Search,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write to.")] = None,
    remove: Remove = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing checkpoint.")] = False,
    config_dir: ConfigDir = None,
    dry_run: Annotated[bool, typer.Option(help="Print the expected cost and stop.")] = False,
    store: Store = Path("mlruns"),
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Train the pruned model to give back what it lost, write it as a checkpoint, and assess it.

    \b
    raysearch recover latest --out healed               distilled on installed prose, without a network
    raysearch recover latest data=alpaca data.path=alpaca.jsonl recovery.responses=self --out healed
    raysearch recover latest recovery=paper --out healed --dry-run

    A recovery that was stopped continues with the same command.
    """
    with output(as_json) as answers:
        from raysearch import api
        from raysearch.cli.displays import Display
        from raysearch.errors import UserError

        common: dict[str, Any] = {"remove": remove, "config_dir": config_dir, "store": store, "ledger": ledger}
        if dry_run:
            cost = api.recovery_cost(search, *overrides or [], **common)
            answers.answer(plain(cost), *_cost_lines(cost))
            return
        if out is None:
            raise UserError("--out has no value; name the folder of the recovered checkpoint")
        answers.when_stopped = GOES_ON
        with Display(answers.err) as live:
            done = api.recover(search, *overrides or [], out=out, overwrite=overwrite, observer=live, **common)
        answers.answer(plain(done), _table(done), *_lines(done))


def _table(done: Recovered) -> Table:
    from raysearch.cli.study_tables import three_models_table

    title = f"{done.model}, {done.recovery_id}"
    return three_models_table(title, done.mask, done.dense, done.pruned, done.recovered)


def _lines(done: Recovered) -> list[str]:
    from raysearch.core.formatting import count, duration

    training = done.training
    held_out = [(point.step, point.held_out) for point in training.points if point.held_out is not None]
    lines = [
        f"{count(done.rows, 'row')}{_left_out(done.left_out)}; {count(training.steps, 'step')}, "
        f"{count(training.tokens, 'token')}, {count(training.parameters, 'parameter')} trained"
    ]
    if held_out:
        curve = ", ".join(f"{loss:.4f} at step {step}" for step, loss in (held_out[0], held_out[-1]))
        lines.append(f"Loss on held-out rows: {curve}; the weights of step {training.best_step} are kept")
    return [*lines, f"Wrote {done.out} in {duration(done.seconds)}"]


def _cost_lines(cost: RecoveryCost) -> list[str]:
    from raysearch.core.formatting import count, duration, short_duration

    answers = []
    if cost.answers:
        answers.append(
            f"The dense model writes {count(cost.answers, 'answer')}, {count(cost.answer_tokens, 'token')} at most"
        )
    return [
        f"{count(cost.rows, 'row')}{_left_out(cost.left_out)}",
        *answers,
        f"Training: {count(cost.steps, 'step')}, about {count(cost.tokens, 'token')}; "
        f"{short_duration(cost.step_s)} a step, {duration(cost.seconds)} in all, {cost.memory_bytes / 2**30:.1f} GiB",
    ]


def _left_out(left_out: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{n} {reason}' for reason, n in left_out.items())} left out)" if left_out else ""
