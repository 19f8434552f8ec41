"""The output of a finished study or assessment: tables, and the lines under them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from raysearch.cli.cells import add_sections, marked, metric_head, new_table, next_lines, number_cell, refusal_notes
from raysearch.core.estimate import Estimate, shown
from raysearch.core.formatting import added, count, duration, size
from raysearch.core.mask import Mask

if TYPE_CHECKING:
    from pathlib import Path

    from raysearch.assessment.results import Result, SearchAssessment
    from raysearch.studies.plan import StudyPlan
    from raysearch.studies.result import StudyResult

_SHOWN = 200  # characters of an example
_MOST_EXPORTS = 3  # next commands, of the largest numbers of layers


def plan_table(plan: StudyPlan) -> Table:
    """Return the table of the expected cost of each search of a study."""
    every = [*(one.cell for one in plan.cells), *plan.unpredictable]
    drawn = any(cell.draw for cell in every)
    words = "model", "calibration", "searcher"
    costs = "masks", "in this study", "by itself", "a forward a mask"
    columns = *words, "M", "seed", *(["draw"] if drawn else []), *costs
    title, expendable = "Expected cost, in layer-forwards over the calibration", ("a forward a mask", "model", "seed")
    table = new_table(title, *columns, left=words, at="left", expendable=expendable)
    for one in plan.cells:
        numbers = (one.evaluations, one.shared, one.separate, one.naive)
        table.add_row(*one.cell.labels.values(), *(f"{number:,}" for number in numbers))
    for cell in plan.unpredictable:
        table.add_row(*cell.labels.values(), "cannot be told", "", "", "")
    totals = plan.layer_forwards
    masks = sum(one.evaluations for one in plan.cells)
    table.add_section()
    sums = (masks, totals["shared"], totals["separate"], totals["naive"])
    table.add_row("all", *[""] * (4 + drawn), *(f"{number:,}" for number in sums))
    return table


def plan_line(plan: StudyPlan) -> str:
    """Return the expected cost of a study in a sentence."""
    totals = plan.layer_forwards
    share = f" ({totals['shared'] / totals['separate']:.0%})" if totals["separate"] else ""
    searches = count(len(plan.cells) + len(plan.unpredictable), "search", "searches")
    left = "" if plan.eta_seconds is None else f"; about {duration(plan.eta_seconds)} of searching"
    memory = "" if plan.memory_bytes is None else f"; about {size(plan.memory_bytes)} of memory"
    then = f"; then {count(plan.trainings, 'training')} at most" if plan.trainings else ""
    return (
        f"{searches}: {totals['shared']:,} layer-forwards together instead of {totals['separate']:,} one by one"
        f"{share}, or {totals['naive']:,} by a full forward per mask{left}{memory}{then}"
    )


def assessment_lines(plan: StudyPlan) -> list[str]:
    """Return how many masks a study assesses, and by what, in a sentence; nothing if it assesses none."""
    if not plan.measures:
        return []
    masks, measures = count(plan.assessed, "mask"), ", ".join(plan.measures)
    return [f"Then at most {masks}, dense models among them, are assessed by {measures}; that takes time of its own"]


def study_table(results: StudyResult) -> Table:
    """Return the table of the results of a study; ± is one standard error over the samples."""
    words = "calibration", "searcher", "removed layers (0-based)", "search"
    columns = "calibration", "M", "searcher", "loss over dense", "removed layers (0-based)", "masks", "search"
    table = new_table(results.study_id, *columns, left=words, at="left", expendable=("masks", "M"))
    several_models = len({cell.model for cell in results.cells}) > 1
    several_seeds = len({cell.seed for cell in results.cells}) > 1
    several_draws = len({cell.draw for cell in results.cells}) > 1
    rows = []
    for cell in sorted(results.cells, key=lambda cell: (cell.model, cell.calibration, cell.remove)):
        calibration = f"{cell.calibration}, {cell.model}" if several_models else cell.calibration
        searcher = f"{cell.searcher}, seed {cell.seed}" if several_seeds else cell.searcher
        searcher += f", draw {cell.draw}" if several_draws else ""
        if cell.outcome is None:
            found = "", cell.state if cell.failure is None else f"{cell.state}: {cell.failure}", ""
        else:
            outcome = cell.outcome
            over = added(outcome.loss - outcome.dense_loss, outcome.delta_error)
            stopped = " (budget spent)" if cell.state == "stopped" else ""
            mask = marked(Mask(outcome.removed), results.refused.get(cell.model, {}))
            found = over, f"{mask}{stopped}", f"{outcome.evaluations:,}"
        section = cell.model, cell.calibration, cell.remove
        rows.append((section, (calibration, str(cell.remove), searcher, *found, cell.search_id)))
    add_sections(table, rows)
    return table


def assessed_table(results: StudyResult) -> Table | None:
    """Return the table of the assessed numbers of a study's masks, the dense models first; None without numbers.

    ± is one standard error over the windows, documents or items.
    """
    if not results.metrics:
        return None
    heads = [metric_head(metric) for metric in results.metrics]
    words = "search", "removed layers (0-based)"
    table = new_table("Assessed", *words, *heads, left=words, at="left", expendable=heads[:1:-1])

    def numbers(assessed: Mapping[str, Estimate]) -> list[str]:
        return [number_cell(assessed.get(metric.name), metric.unit) for metric in results.metrics]

    models = dict.fromkeys(cell.model for cell in results.cells)
    dense = [("", ("dense" if len(models) == 1 else f"dense {model}", "{}")) for model in models]
    rows = [
        (section, (*cells, *numbers(results.dense.get(model, {}))))
        for model, (section, cells) in zip(models, dense, strict=True)
    ]
    for cell in sorted(results.cells, key=lambda cell: (cell.model, cell.remove, cell.calibration)):
        if cell.outcome is not None and cell.outcome.assessed:
            mask = marked(Mask(cell.outcome.removed), results.refused.get(cell.model, {}))
            rows.append((f"{cell.model} {cell.remove}", (cell.search_id, mask, *numbers(cell.outcome.assessed))))
    add_sections(table, rows)
    return table


def study_lines(results: StudyResult, files: Sequence[Path], in_store: str) -> list[str]:
    """Return the lines under the tables of a study.

    Args:
        results: The study.
        files: Its report, the page first.
        in_store: The option that leads a later command to its ledger.

    Returns:
        The masks that `export --gguf` refuses, answers to contrasts, the cost, the place of the report, and the next
        commands.
    """
    totals = results.layer_forwards
    lines = []
    if totals["separate"]:
        lines.append(
            f"Layer-forwards: {totals['shared']:,.0f} together, {totals['separate']:,.0f} one by one "
            f"({totals['shared'] / totals['separate']:.0%}), {totals['naive']:,.0f} by a full forward per mask"
        )
    from raysearch.reporting.checkpoints import best_searches
    from raysearch.reporting.findings import contrast_findings

    refusals = [note for refused in results.refused.values() for note in refusal_notes(refused, Mask())]
    answers = [f"{one.verdict} [{one.sure}]" for one in contrast_findings(results)]
    best = best_searches(results)
    exports = [f"export {name} --out pruned-by-{size}{in_store}" for size, name in best.items()][-_MOST_EXPORTS:]
    measure = [] if results.metrics else [f"assess {results.study_id}{in_store}"]
    return [*refusals, *answers, *lines, f"Report: {files[0]}", *next_lines([*exports, *measure])]


def assessment_table(title: str, mask: Mask, dense: Mapping[str, Result], pruned: Mapping[str, Result]) -> Table:
    """Return the table of a mask beside the dense model; ± is one standard error over the items."""
    columns = "", "dense", f"without {mask}", "retention", "over"
    table = new_table(title, *columns, left=("", "over"), expendable=("over", "retention"))
    rows = []
    for name, result in pruned.items():
        # the dense model's speed comes from the same measurement
        detail, is_speed = result.detail, result.metric.group == "speed"
        of_dense = Estimate(detail["dense"], detail["dense_error"]) if is_speed else dense[name].estimate
        cells = (number_cell(one, result.metric.unit) for one in (of_dense, result.estimate))
        row = metric_head(result.metric), *cells, shown(result.retention), result.extent
        rows.append((result.metric.group, row))
    add_sections(table, rows)
    return table


def assessment_tables(done: SearchAssessment) -> list[Table | str]:
    """Return the table and lines of an assessment."""
    title = f"{done.search_id}: {done.model} beside itself without {done.mask} (0-based)"
    return [assessment_table(title, done.mask, done.dense, done.pruned), *_notes(done)]


def _notes(done: SearchAssessment) -> list[str]:
    """Return the lines under the table: computed and cached numbers, sources, and how to check them."""
    computed = done.assessments.computed
    notes = ["All numbers were cached in the ledger: nothing was computed"]
    if computed:
        notes = [f"{count(computed, 'number')} computed now, the others were cached in the ledger"]
    notes.append("± is one standard error, by the choice of windows, documents or items; of speeds, by the repeats")
    texts = [of["data"] for result in done.pruned.values() if "data" in (of := result.detail)]
    if texts:
        sources = dict.fromkeys(str(one.get("path") or one.get("name") or one["source"]) for one in texts)
        notes.append(f"Texts: {', '.join(sources)}")
    for folder in sorted(set(done.task_files.values())):
        tasks = ",".join(name for name, of in done.task_files.items() if of == folder)
        notes.append(f"To check with lm-eval's own command: lm_eval --include_path {folder} --tasks {tasks} …")
    notes += _examples(done)
    from raysearch.assessment.speed import DECODE

    if DECODE.name in done.pruned:
        detail = done.pruned[DECODE.name].detail
        on = detail["measured_on"]
        notes.append(
            f"Speed: {detail['machine']}, {count(detail['threads'], 'thread')}; memory by {detail['memory_source']}"
        )
        if on != str(done.mask):
            n_layers = count(len(done.mask), "layer")
            notes.append(
                f"Speed was measured on another mask of {n_layers}, {on}, since all layers have the same size."
            )
    return [
        *notes,
        *(f"Warning: the search calibrated on samples of the same text: {name}" for name in done.overlaps),
    ]


def _examples(done: SearchAssessment) -> Iterator[str]:
    """Yield an example of each task that is answered by a text: where most was lost, in the words of both models."""
    for name, result in done.pruned.items():
        for one in result.detail.get("examples", ())[-1:]:
            yield f"An answer to {name}, dense ({one['dense_score']:g}): {_short(one['dense'])}"
            yield f"An answer to {name}, without {done.mask} ({one['score']:g}): {_short(one['text'])}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 2]} …"
