"""The table and the lines of a recovery."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from raysearch.cli.study_tables import estimate_cell, metric_head
from raysearch.core.estimate import Estimate
from raysearch.core.formatting import count, duration
from raysearch.recovery.record import RecoveryRecord


def recovery_parts(record: RecoveryRecord) -> list[Table | str]:
    """Return the table of the three models, ± one standard error, and lines on losses and cost."""
    way = f", {record.way}" if record.way else ""
    table = Table(title=f"{record.recovery_id}{way}: trained without {record.mask}")
    for column in ("", "dense", "pruned", "recovered", "pruned / dense", "recovered / dense"):
        table.add_column(column, justify="right" if column else "left")
    group = None
    for one in record.numbers:
        if group not in (None, one.metric.group):
            table.add_section()
        group = one.metric.group
        cells = (estimate_cell(number, one.metric) for number in (one.dense, one.pruned, one.recovered))
        table.add_row(metric_head(one.metric), *cells, _share(one.kept), _share(one.regained))
    return [table, *_lines(record)]


def left_out(reasons: Mapping[str, int]) -> str:
    """Return how many rows were left out and why, in brackets; nothing where none were."""
    return f" ({', '.join(f'{n} {reason}' for reason, n in reasons.items())} left out)" if reasons else ""


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


def _share(one: Estimate | None) -> str:
    if one is None:
        return ""
    return f"{one.value:.3f}" + ("" if one.error is None else f" ± {one.error:.3f}")
