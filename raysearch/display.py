"""What a person sees: a live view of a running search, and the tables at its end.

Everything live goes to standard error, so that standard output holds results alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from raysearch.mask import Mask
from raysearch.tracking.base import RoundSummary, SearchHeader, SearchResult, perplexity

if TYPE_CHECKING:  # `raysearch show` needs none of what these bring along
    from raysearch.evaluation.evaluator import Progress
    from raysearch.evaluation.runs import RunRecord
    from raysearch.study.forecast import RoundCost
    from raysearch.study.gap import Gap
    from raysearch.study.score import Score

_SECONDS_BETWEEN_LINES = 15


class SearchDisplay:
    """Follows a search: one live line on a terminal, plain lines elsewhere.

    Args:
        console: Where to write; standard error.
    """

    def __init__(self, console: Console) -> None:
        self.run_id: str | None = None  # once it has started
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._expected: Sequence[RoundCost] | None = None
        self._head_cost = 0.0
        self._round = 1
        self._best = ""
        self._cost_done = 0.0  # of finished rounds' units, in layer-forwards
        self._cost_before = 0.0  # of the round in hand, when it was last heard of
        self._seconds_computing = 0.0  # as if replicas were always busy: without their start
        self._last_line = time.monotonic()

    def __enter__(self) -> SearchDisplay:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def started(self, header: SearchHeader, expected: Sequence[RoundCost] | None, head_cost: float) -> None:
        """See `Observer`."""
        self.run_id = header.run_id
        self._expected, self._head_cost = expected, head_cost
        asked = header.config["remove"]
        self._say(f"[bold]{escape(header.run_id)}[/]: remove {asked} of {header.n_layers} layers (0-based)")
        self._say(forecast_line(expected))

    def progress(self, progress: Progress) -> None:
        """See `Observer`."""
        if progress.masks_elsewhere:
            return self._show(f"waiting for {progress.masks_elsewhere} masks that another search is computing")
        cost = self._cost(progress)
        if cost:  # else a round begins
            self._cost_done += cost - self._cost_before
        self._cost_before = cost
        self._seconds_computing = progress.computing_s / progress.n_replicas
        rounds = f"/{len(self._expected)}" if self._expected else ""
        planned = self._planned(progress)
        left = self._seconds_left(planned - cost)
        self._show(
            f"round {self._round}{rounds}  {cost / max(1.0, planned):.0%} of "
            f"{_count(progress.masks_planned, 'mask')}  {self._best}left {_duration(left)}  "
            f"replicas {progress.n_replicas}"
        )

    def round_done(self, summary: RoundSummary) -> None:
        """See `Observer`."""
        if summary.round_best is not None and summary.round_best_loss is not None:
            self._best = f"best {summary.round_best} {summary.round_best_loss:.4f} nats  "
        left = self._seconds_left(0.0)
        self._say(
            f"round {summary.round} done  {self._best}"
            f"{summary.run} run, {summary.asked - summary.run} answered by the ledger  {_duration(summary.seconds)}"
            + (f"  left about {_duration(left)}" if left and left >= 1 else "")
        )
        self._round = summary.round + 1

    def warn(self, message: str) -> None:
        """See `Observer`."""
        self._say(f"[yellow]warning:[/] {escape(message)}")

    def _show(self, line: str) -> None:
        """The line that changes all the time: live on a terminal, now and then elsewhere."""
        if self._live:
            self._live.update(f"[cyan]{line}[/]")
        elif time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._say(line)

    def _say(self, line: str) -> None:
        self._last_line = time.monotonic()
        self._console.print(line, highlight=False, soft_wrap=True)

    def _cost(self, progress: Progress) -> float:
        """What is done of a round, in layer-forwards."""
        return progress.layer_forwards + self._head_cost * progress.head_forwards

    def _planned(self, progress: Progress) -> float:
        """What a round takes in all, in layer-forwards."""
        return progress.layer_forwards_planned + self._head_cost * progress.head_forwards_planned

    def _seconds_left(self, left: float) -> float | None:
        """Of the whole search, with so much left of this round; None while the speed is unknown."""
        if not self._cost_done:
            return None
        for later in (self._expected or [])[self._round :]:
            left += later.layer_forwards + self._head_cost * later.head_forwards
        return left * self._seconds_computing / self._cost_done


def forecast_line(expected: Sequence[RoundCost] | None) -> str:
    """What a search is expected to cost, in one sentence."""
    if expected is None:
        return "its cost cannot be told beforehand"
    masks = sum(cost.masks for cost in expected)
    layers = sum(cost.layer_forwards for cost in expected)
    naive = sum(cost.naive_layer_forwards for cost in expected)
    about = "about " if any(cost.estimated for cost in expected) else ""
    return (
        f"{_count(masks, 'mask')} in {_count(len(expected), 'round')}: {about}{layers:,} layer-forwards over the "
        f"calibration instead of {naive:,}, and {_count(masks, 'head-forward')} at most"
    )


def result_table(result: SearchResult) -> Table:
    """The closing table of a search."""
    table = Table(title=result.run_id)
    for column in (result.model, "dense", "pruned"):
        table.add_column(column, justify="left" if column == result.model else "right")
    table.add_row("loss (nats per token)", f"{result.dense_loss:.4f}", f"{result.loss:.4f}")
    table.add_row("perplexity", f"{result.dense_perplexity:.2f}", f"{result.perplexity:.2f}")
    table.add_row("layers", str(result.n_layers), str(result.n_layers - len(result.removed)))
    kept = result.parameters - result.parameters_removed
    share = result.parameters_removed / result.parameters
    table.add_row("parameters", f"{result.parameters / 1e6:,.1f} M", f"{kept / 1e6:,.1f} M (-{share:.1%})")
    return table


def result_notes(result: SearchResult, in_ledger: str, in_store: str | None) -> list[str]:
    """The lines under the closing table: what went, what it cost, what to type next.

    Args:
        result: What was found.
        in_ledger: The option that leads to its ledger, as in `` --store other``; empty for the usual one.
        in_store: The option that leads to its MLflow store; None if it was not recorded in the embedded one.
    """
    notes = [f"Removed layers (0-based): {result.mask}"]
    if result.removal_order:
        notes.append(f"In this order: {', '.join(map(str, result.removal_order))}")
    naive, run = result.layer_forwards_naive, result.layer_forwards_run
    notes += [
        f"Evaluations: {result.asked:,} asked, {result.run:,} run, {result.answered:,} answered by the ledger, "
        f"each on {result.n_tokens:,} scored tokens",
        f"Layer-forwards: {run:,.0f} run, {naive:,.0f} by a full forward per mask"
        + (f" ({naive / run:.2f}x fewer)" if 0 < run < naive else ""),
        f"Time: {_duration(result.seconds)} (the searcher itself {_fine(result.searcher_s)}, "
        f"{_fine(result.searcher_s / max(1, result.asked))} a mask asked)"
        + (f", replicas busy {result.busy_share:.0%}" if run else ""),
        *remark_notes(result.remarks),
        "",
        f"Next: raysearch export {result.run_id} --out pruned-model{in_ledger}",
        f"      raysearch show {result.run_id}{in_ledger}",
    ]
    return notes if in_store is None else [*notes, f"      raysearch ui{in_store}"]


def path_table(path: Sequence[Mapping[str, Any]]) -> Table:
    """The best mask of each number of layers, from the ``path`` of a result."""
    table = Table(title="Best by number of layers removed (0-based)")
    for column in ("layers", "removed", "loss (nats per token)", "perplexity"):
        table.add_column(column, justify="left" if column == "removed" else "right")
    for entry in path:
        loss = entry["loss"]
        mask = Mask(tuple(entry["removed"]))
        table.add_row(str(entry["n_removed"]), str(mask), f"{loss:.4f}", f"{perplexity(loss):.2f}")
    return table


def gap_table(gaps: Sequence[Gap]) -> Table:
    """How far the masks that a search found are from the best there are."""
    table = Table(title="Rank among all masks of as many layers (0-based)")
    for column in ("layers", "removed", "rank", "of", "percentile", "best", "gap (nats per token)"):
        table.add_column(column, justify="left" if column in ("removed", "best") else "right")
    for gap in gaps:
        known = f"{gap.n_known:,} known", f"{gap.n_masks:,}", "", "", ""
        if gap.rank is not None:
            known = str(gap.rank), f"{gap.n_masks:,}", f"{gap.percentile:.4g}", str(gap.best), f"{gap.gap:.4f}"
        table.add_row(str(len(gap.mask)), str(gap.mask), *known)
    return table


def remark_notes(remarks: Mapping[str, Any]) -> list[str]:
    """The numbers and texts that a searcher put on the record, a line each."""
    return [
        f"{name.replace('_', ' ')}: {' '.join(value.split()) if isinstance(value, str) else _number(value)}"
        for name, value in remarks.items()
        if not isinstance(value, list)
    ]


def remark_table(remarks: Mapping[str, Any]) -> Table:
    """The lists that a searcher put on the record, side by side, a row for each layer."""
    lists = {name: value for name, value in remarks.items() if isinstance(value, list)}
    table = Table(title="What the searcher made of each layer (0-based)")
    for column in ("layer", *lists):
        table.add_column(column.replace("_", " "), justify="right")
    for layer, values in enumerate(zip_longest(*lists.values(), fillvalue="")):
        table.add_row(str(layer), *(value if isinstance(value, str) else _number(value) for value in values))
    return table


def score_table(scores: Sequence[Score]) -> Table:
    """The losses of masks, as asked."""
    table = Table(title="Layers are 0-based")
    for column in ("removed", "loss (nats per token)", "perplexity", "scored tokens", "answered by the ledger"):
        table.add_column(column, justify="left" if column == "removed" else "right")
    for score in scores:
        known = "yes" if score.answered else "no"
        table.add_row(
            str(score.mask), f"{score.loss:.6f}", f"{perplexity(score.loss):.4f}", f"{score.n_tokens:,}", known
        )
    return table


def runs_table(runs: Sequence[RunRecord]) -> Table:
    """Every search of a ledger."""
    table = Table(title="Searches, the newest first (layers are 0-based)")
    for column in ("run", "state", "model", "data", "objective", "removed", "loss (nats)", "updated (UTC)"):
        table.add_column(column, overflow="fold", no_wrap=column == "run")  # a run's name is there to be copied
    for run in runs:
        result: Mapping[str, Any] = run.result or {}
        choices = run.config["choices"]
        table.add_row(
            run.run_id,
            run.state,
            run.config["model"]["name"],
            choices["data"],
            choices["objective"],
            str(Mask(tuple(result["removed"]))) if result else "",
            f"{result['loss']:.4f}" if result else "",
            run.updated[:19],
        )
    return table


def run_tables(run: RunRecord, most: int, gaps: Sequence[Gap]) -> list[Table | str]:
    """All that is known of a search, with at most so many of its masks."""
    tables: list[Table | str] = [runs_table([run])]
    if run.result is None:
        return tables
    remarks = run.result["remarks"]
    tables += [path_table(run.result["path"]), *remark_notes(remarks)]
    if any(isinstance(value, list) for value in remarks.values()):
        tables.append(remark_table(remarks))
    tables.append(trials_table(run.result, most))
    if gaps:
        tables.append(gap_table(gaps))
        tables += [f"To rank more: {gap.remedy}" for gap in gaps if gap.rank is None][:1]
    return tables


def trials_table(record: Mapping[str, Any], most: int) -> Table:
    """The best masks that a search saw, of the size it looked for and below."""
    trials = sorted(record["trials"], key=lambda one: (-len(one["mask"]), one["loss"] is None, one["loss"] or 0))
    table = Table(title=f"The {min(most, len(trials))} best of {len(trials)} masks, largest first (layers are 0-based)")
    for column in ("removed", "loss (nats per token)", "perplexity", "over dense", "round"):
        table.add_column(column, justify="left" if column == "removed" else "right")
    for trial in trials[:most]:
        failed = trial["loss"] is None
        table.add_row(
            str(Mask(tuple(trial["mask"]))),
            trial["failure"] if failed else f"{trial['loss']:.4f}",
            "" if failed else f"{perplexity(trial['loss']):.2f}",
            "" if failed else f"{trial['delta']:+.4f}",
            str(trial["round"]),
        )
    return table


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _number(value: float | None) -> str:
    if value is None:
        return "not finite"
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _fine(seconds: float) -> str:
    """A time that may be short."""
    if seconds < 1:
        return f"{seconds * 1000:{'.0f' if seconds >= 0.01 else '.2g'}} ms"
    return f"{seconds:.1f} s" if seconds < 10 else _duration(seconds)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
