"""The table and the lines of a recovery, and of its cost."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rich.table import Table

from raysearch.cli.cells import add_sections, left_out, metric_head, new_table, number_cell
from raysearch.core.estimate import shown
from raysearch.core.formatting import count, duration, short_duration, size
from raysearch.core.paths import option_for

if TYPE_CHECKING:
    from raysearch.recovery.record import RecoveryRecord
    from raysearch.recovery.results import Recovered, RecoveryCost


def recovery_parts(record: RecoveryRecord, search_id: str | None = None) -> list[Table | str]:
    """Return the table of the three models, ± one standard error, and lines on losses and cost.

    Where it is shown for a search, and another one's result was recovered, that is named.
    """
    way = f", {record.way}" if record.way else ""
    whose = "" if search_id in (None, record.search_id) else f", as {record.search_id} found it"
    columns = "", "dense", "pruned", "recovered", "pruned / dense", "recovered / dense"
    table = new_table(f"{record.recovery_id}{way}: trained without {record.mask}{whose}", *columns, left=("",))
    rows = []
    for one in record.numbers:
        cells = (number_cell(number, one.metric.unit) for number in (one.dense, one.pruned, one.recovered))
        shares = shown(one.kept), shown(one.regained)
        rows.append((one.metric.group, (metric_head(one.metric), *cells, *shares)))
    add_sections(table, rows)
    return [table, *_lines(record)]


def closing_lines(done: Recovered, out: Path, store: Path) -> list[str]:
    """Return what was written and left, and the commands that use it; `out` and `store` as they were typed."""
    folder, name = quote(str(out)), quote(f"{out.name}.gguf")
    where = option_for(store)
    of_gguf = f"raysearch export {done.search_id} --recovered --gguf {name}{where}"
    converted = f"convert_hf_to_gguf.py {folder} --outfile {name}      (llama.cpp's converter)"
    left = " and ".join(f"{place} ({size(n_bytes)})" for place, n_bytes in done.left.items())
    return [
        f"Wrote {done.out} in {duration(done.seconds)}",
        f"Left on the disk: {left}. You may delete that; a later command makes again what it needs.",
        "",
        f"Next: {of_gguf if done.is_gguf else converted}",
        f"      raysearch show {done.search_id}{where}",
    ]


def cost_lines(cost: RecoveryCost) -> list[str]:
    """Return what a recovery would cost, line by line."""
    rows = f"{count(cost.rows, 'row')}{left_out(cost.left_out)}"
    writes = f"The dense model writes {count(cost.answers, 'answer')}, {count(cost.answer_tokens, 'token')} at most"
    trains = (
        f"Training: {count(cost.steps, 'step')}, about {count(cost.tokens, 'token')}; "
        f"{short_duration(cost.step_s)} a step, {duration(cost.seconds)} of training, "
        f"{cost.memory_bytes / 2**30:.1f} GiB"
    )
    more = (
        "Not in that time: answers and logits of the dense model, losses on held-out rows, checkpoints, the assessment"
    )
    return [rows, *([writes] if cost.answers else []), trains, more]


def _lines(record: RecoveryRecord) -> list[str]:
    training = record.training
    lines = [
        f"{count(record.rows, 'row')}{left_out(record.left_out)}; {count(training.steps, 'step')}, "
        f"{count(training.tokens, 'token')}, {count(training.parameters, 'parameter')} trained"
    ]
    if held_out := training.held_out:
        curve = ", ".join(f"{loss:.4f} at {tokens:,}" for tokens, loss in held_out)
        lines.append(f"Loss on held-out rows by tokens: {curve}; the weights of step {training.best_step} are kept")
    if record.seconds:
        lines.append("Time: " + ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in record.seconds.items()))
    return lines
