"""The table and the lines of a recovery, and of its cost."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rich.table import Table

from raysearch.cli.cells import add_sections, left_out, new_table, number_cell
from raysearch.core.estimate import estimate_text
from raysearch.core.paths import option_for
from raysearch.text.numbers import count, duration, short_duration, size

if TYPE_CHECKING:
    from raysearch.recovery.recovery_record import RecoveryRecord
    from raysearch.recovery.results import RecoveryCost, RecoveryResult


def recovery_parts(record: RecoveryRecord, search_id: str | None = None) -> list[Table | str]:
    """Return the table of the dense, the pruned and the recovered model, and lines on losses and cost.

    Numbers have ± one standard error.

    Args:
        record: The recovery.
        search_id: The search that the user named; if the mask of another search was recovered, that one is shown.

    Returns:
        The table, followed by the lines.
    """
    method = f", {record.way}" if record.way else ""
    origin = "" if search_id in (None, record.search_id) else f", as {record.search_id} found it"
    work = "repaired" if record.training.cuts else "trained"
    columns = "", "dense", "pruned", "recovered", "pruned / dense", "recovered / dense"
    table = new_table(
        f"{record.recovery_id}{method}: {work} without {record.mask}{origin}", *columns, left_aligned=("",)
    )
    rows = []
    for numbers in record.numbers:
        metric = numbers.metric
        cells = (number_cell(number, metric.unit) for number in (numbers.dense, numbers.pruned, numbers.recovered))
        shares = estimate_text(numbers.kept), estimate_text(numbers.regained)
        rows.append((metric.group, (metric.heading, *cells, *shares)))
    add_sections(table, rows)
    return [table, *_lines(record)]


def closing_lines(recovery: RecoveryResult, out: Path, store: Path) -> list[str]:
    """Return the lines on the files of a recovery, and on the next commands.

    Args:
        recovery: The recovery.
        out: The folder of the checkpoint, as the user typed it.
        store: The store, as the user typed it.

    Returns:
        The lines, in the order in which they are printed.
    """
    name = quote(f"{out.name}.gguf")
    in_ledger = option_for(store)
    if recovery.is_gguf:
        gguf_command = f"raysearch export {recovery.search_id} --recovered --gguf {name}{in_ledger}"
    else:
        folder = quote(str(out))
        gguf_command = f"convert_hf_to_gguf.py {folder} --outfile {name}      (llama.cpp's converter)"
    files = " and ".join(f"{place} ({size(n_bytes)})" for place, n_bytes in recovery.left.items())
    return [
        f"Wrote {recovery.out} in {duration(recovery.seconds)}",
        f"Left on the disk: {files}. You may delete them; a later command creates again what it needs.",
        "",
        f"Next: {gguf_command}",
        f"      raysearch show {recovery.search_id}{in_ledger}",
    ]


def cost_lines(cost: RecoveryCost) -> list[str]:
    """Return the lines on the expected cost of a recovery."""
    rows = f"{count(cost.rows, 'row')}{left_out(cost.left_out)}"
    answers = f"The dense model writes {count(cost.answers, 'answer')}, {count(cost.answer_tokens, 'token')} at most"
    if cost.forwards is not None:
        repair = (
            f"No training: {count(cost.steps, 'cut')}, about {cost.forwards:.1f} forwards of the dense model over "
            f"{count(cost.tokens, 'token')}"
        )
        return [rows, *([answers] if cost.answers else []), repair]
    training = (
        f"Training: {count(cost.steps, 'step')}, about {count(cost.tokens, 'token')}; "
        f"{short_duration(cost.step_s)} a step, {duration(cost.seconds)} of training, "
        f"{cost.memory_bytes / 2**30:.1f} GiB"
    )
    not_included = (
        "Not in that time: answers and logits of the teacher, losses on held-out rows, checkpoints, the assessment"
    )
    budget = [] if cost.budget is None else [str(cost.budget)]
    return [rows, *([answers] if cost.answers else []), training, *budget, not_included]


def _lines(record: RecoveryRecord) -> list[str]:
    training = record.training
    work = f"{count(len(training.cuts), 'cut')}, " if training.cuts else f"{count(training.steps, 'step')}, "
    changed = "changed in closed form" if training.cuts else "trained"
    learning_rate = "" if training.learning_rate is None else f" at a learning rate of {training.learning_rate:g}"
    lines = [
        f"{count(record.rows, 'row')}{left_out(record.left_out)}; {work}{count(training.tokens, 'token')}, "
        f"{count(training.parameters, 'parameter')} {changed}{learning_rate}"
    ]
    lines += [cut.sentence for cut in training.cuts]
    if not training.cuts and (held_out := training.held_out):
        curve = ", ".join(f"{loss:.4f} at {tokens:,}" for tokens, loss in held_out)
        lines.append(f"Loss on held-out rows by tokens: {curve}; the weights of step {training.best_step} are kept")
    if record.seconds:
        lines.append("Time: " + ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in record.seconds.items()))
    return lines
