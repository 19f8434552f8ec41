"""The output of a finished study or assessment: tables, and the lines under them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from raysearch.cli.cells import add_sections, marked, new_table, next_lines, number_cell, refusal_notes
from raysearch.core.estimate import Estimate, estimate_text
from raysearch.core.mask import Mask
from raysearch.text.numbers import added, count, duration, size

if TYPE_CHECKING:
    from pathlib import Path

    from raysearch.assessment.results import Result, SearchAssessment
    from raysearch.studies.plan import StudyPlan
    from raysearch.studies.result import StudyResult

_EXAMPLE_LENGTH = 200  # characters
_MOST_EXPORTS = 3  # export commands, for the largest numbers of layers


def plan_table(plan: StudyPlan) -> Table:
    """Return the table of the expected cost of each search of a study."""
    all_cells = [*(planned.cell for planned in plan.cells), *plan.unpredictable]
    texts = ["model", "calibration", "searcher"]
    labels = [*texts, "M", "seed"]
    if any(cell.draw for cell in all_cells):
        labels.append("draw")
    table = new_table(
        "Expected cost, in layer-forwards over the calibration",
        *labels,
        "masks",
        "in this study",
        "by itself",
        "a forward a mask",
        left_aligned=texts,
        at="left",
        expendable=("a forward a mask", "model", "seed"),
    )
    for planned in plan.cells:
        numbers = (planned.evaluations, planned.shared, planned.separate, planned.naive)
        table.add_row(*planned.cell.labels.values(), *(f"{number:,}" for number in numbers))
    for cell in plan.unpredictable:
        table.add_row(*cell.labels.values(), "unpredictable", "", "", "")
    totals = plan.layer_forwards
    n_masks = sum(planned.evaluations for planned in plan.cells)
    table.add_section()
    sums = (n_masks, totals["shared"], totals["separate"], totals["naive"])
    table.add_row("all", *[""] * (len(labels) - 1), *(f"{number:,}" for number in sums))
    return table


def plan_line(plan: StudyPlan) -> str:
    """Return the expected cost of a study in a sentence."""
    totals = plan.layer_forwards
    share = f" ({totals['shared'] / totals['separate']:.0%})" if totals["separate"] else ""
    searches = count(len(plan.cells) + len(plan.unpredictable), "search", "searches")
    time_text = "" if plan.eta_seconds is None else f"; about {duration(plan.eta_seconds)} of searching"
    memory = "" if plan.memory_bytes is None else f"; about {size(plan.memory_bytes)} of memory"
    trainings = f"; then {count(plan.trainings, 'training')} at most" if plan.trainings else ""
    return (
        f"{searches}: {totals['shared']:,} layer-forwards together instead of {totals['separate']:,} one by one"
        f"{share}, or {totals['naive']:,} by a full forward per mask{time_text}{memory}{trainings}"
    )


def assessment_lines(plan: StudyPlan) -> list[str]:
    """Return the sentence on the masks that a study assesses, and their measures; empty if it assesses none."""
    if not plan.measures:
        return []
    masks = count(plan.assessed, "mask")
    measures = ", ".join(plan.measures)
    return [f"Then at most {masks}, including dense models, are assessed by {measures}; that time is not included"]


def study_table(results: StudyResult) -> Table:
    """Return the table of the results of a study; ± is one standard error over the samples."""
    texts = "calibration", "searcher", "removed layers (0-based)", "search"
    columns = "calibration", "M", "searcher", "loss over dense", "removed layers (0-based)", "masks", "search"
    table = new_table(results.study_id, *columns, left_aligned=texts, at="left", expendable=("masks", "M"))
    several_models = len({cell.model for cell in results.cells}) > 1
    several_seeds = len({cell.seed for cell in results.cells}) > 1
    several_draws = len({cell.draw for cell in results.cells}) > 1
    rows = []
    for cell in sorted(results.cells, key=lambda cell: (cell.model, cell.calibration, cell.remove)):
        calibration = f"{cell.calibration}, {cell.model}" if several_models else cell.calibration
        searcher = f"{cell.searcher}, seed {cell.seed}" if several_seeds else cell.searcher
        searcher += f", draw {cell.draw}" if several_draws else ""
        if cell.outcome is None:
            outcome_cells = "", cell.state if cell.failure is None else f"{cell.state}: {cell.failure}", ""
        else:
            outcome = cell.outcome
            over = added(outcome.loss - outcome.dense_loss, outcome.delta_error)
            stopped = " (budget spent)" if cell.state == "stopped" else ""
            mask = marked(outcome.mask, results.refused.get(cell.model, {}))
            outcome_cells = over, f"{mask}{stopped}", f"{outcome.evaluations:,}"
        section = cell.model, cell.calibration, cell.remove
        rows.append((section, (calibration, str(cell.remove), searcher, *outcome_cells, cell.search_id)))
    add_sections(table, rows)
    return table


def assessed_table(results: StudyResult) -> Table | None:
    """Return the table of the assessed numbers of a study's masks, the dense models first; None without numbers.

    ± is one standard error over the windows, documents or items.
    """
    if not results.metrics:
        return None
    heads = [metric.heading for metric in results.metrics]
    texts = "search", "removed layers (0-based)"
    table = new_table("Assessed", *texts, *heads, left_aligned=texts, at="left", expendable=heads[:1:-1])

    def numbers(assessed: Mapping[str, Estimate]) -> list[str]:
        return [number_cell(assessed.get(metric.name), metric.unit) for metric in results.metrics]

    models = dict.fromkeys(cell.model for cell in results.cells)
    rows: list[tuple[str, tuple[str, ...]]] = []
    for model in models:
        name = "dense" if len(models) == 1 else f"dense {model}"
        rows.append(("", (name, "{}", *numbers(results.dense.get(model, {})))))
    for cell in sorted(results.cells, key=lambda cell: (cell.model, cell.remove, cell.calibration)):
        if cell.outcome is not None and cell.outcome.assessed:
            mask = marked(cell.outcome.mask, results.refused.get(cell.model, {}))
            rows.append((f"{cell.model} {cell.remove}", (cell.search_id, mask, *numbers(cell.outcome.assessed))))
    add_sections(table, rows)
    return table


def study_lines(results: StudyResult, files: Sequence[Path], in_store: str) -> list[str]:
    """Return the lines under the tables of a study.

    Args:
        results: The study's results.
        files: The files of its report, the page first.
        in_store: The option that names its ledger for a later command.

    Returns:
        The masks that `export --gguf` refuses, the verdicts on contrasts, the cost, the path of the report, and the
        next commands.
    """
    totals = results.layer_forwards
    lines = []
    if totals["separate"]:
        lines.append(
            f"Layer-forwards: {totals['shared']:,.0f} together, {totals['separate']:,.0f} one by one "
            f"({totals['shared'] / totals['separate']:.0%}), {totals['naive']:,.0f} by a full forward per mask"
        )
    from raysearch.reporting.checkpoint_findings import best_searches
    from raysearch.reporting.contrast_findings import contrast_findings

    refusals = [note for refused in results.refused.values() for note in refusal_notes(refused, Mask())]
    verdicts = [f"{finding.verdict} [{finding.sure}]" for finding in contrast_findings(results)]
    best = best_searches(results)
    exports = [f"export {name} --out pruned-by-{size}{in_store}" for size, name in best.items()][-_MOST_EXPORTS:]
    measure = [] if results.metrics else [f"assess {results.study_id}{in_store}"]
    return [*refusals, *verdicts, *lines, f"Report: {files[0]}", *next_lines([*exports, *measure])]


def assessment_table(title: str, mask: Mask, dense: Mapping[str, Result], pruned: Mapping[str, Result]) -> Table:
    """Return the table of a mask's numbers and the dense model's; ± is one standard error over the items.

    Args:
        title: The title.
        mask: The mask.
        dense: The dense model's results, by name.
        pruned: The mask's results, by name.

    Returns:
        The table: a row for each result that both models have.
    """
    columns = "", "dense", f"without {mask}", "retention", "over"
    table = new_table(title, *columns, left_aligned=("", "over"), expendable=("over", "retention"))
    rows = []
    for name, result in pruned.items():
        # the dense model's speed is from the same measurement
        dense_estimate = None
        if result.metric.group != "speed":
            dense_estimate = dense[name].estimate
        elif result.detail["dense"] is not None:
            dense_estimate = Estimate(result.detail["dense"], result.detail["dense_error"])
        unit = result.metric.unit
        dense_cell = "" if dense_estimate is None else number_cell(dense_estimate, unit)
        row = (
            result.metric.heading,
            dense_cell,
            number_cell(result.estimate, unit),
            estimate_text(result.retention),
            result.extent,
        )
        rows.append((result.metric.group, row))
    add_sections(table, rows)
    return table


def assessment_tables(assessment: SearchAssessment) -> list[Table | str]:
    """Return the table and lines of an assessment."""
    title = f"{assessment.search_id}: {assessment.model}, dense and without {assessment.mask} (0-based)"
    return [assessment_table(title, assessment.mask, assessment.dense, assessment.pruned), *_notes(assessment)]


def _notes(assessment: SearchAssessment) -> list[str]:
    """Return the lines under the table: computed and cached numbers, sources, and how to check them."""
    computed = assessment.assessments.computed
    notes = ["All numbers were cached in the ledger: nothing was computed"]
    if computed:
        notes = [f"{count(computed, 'number')} computed now, the others were cached in the ledger"]
    notes.append("± is one standard error, by the choice of windows, documents or items; of speeds, by the repeats")
    texts = [result.detail["data"] for result in assessment.pruned.values() if "data" in result.detail]
    if texts:
        sources = dict.fromkeys(str(text.get("path") or text.get("name") or text["source"]) for text in texts)
        notes.append(f"Texts: {', '.join(sources)}")
    for folder in sorted(set(assessment.task_files.values())):
        tasks = ",".join(name for name, task_folder in assessment.task_files.items() if task_folder == folder)
        notes.append(f"To check with lm-eval's own command: lm_eval --include_path {folder} --tasks {tasks} …")
    notes += _examples(assessment)
    measurements = {
        detail.get("runtime", "Speed"): detail
        for detail in (result.detail for result in assessment.pruned.values() if result.metric.group == "speed")
        if "machine" in detail  # a KV cache that is counted is of no machine
    }
    for title, detail in measurements.items():
        threads = f", {count(detail['threads'], 'thread')}" if "threads" in detail else ""
        notes.append(f"{title}: {detail['machine']}{threads}; memory by {detail['memory_source']}")
    other_masks = {detail["measured_on"] for detail in measurements.values()} - {str(assessment.mask)}
    for mask in other_masks:
        removed = assessment.mask
        size = "as many attentions and MLPs" if removed.halves else count(len(removed.layers), "layer")
        kind = "halves of a kind" if removed.halves else "layers"
        notes.append(f"Speed was measured on another mask of {size}, {mask}: all {kind} have the same size.")
    return [
        *notes,
        *(f"Warning: the search calibrated on samples of the same text: {name}" for name in assessment.overlaps),
    ]


def _examples(assessment: SearchAssessment) -> Iterator[str]:
    """Yield both models' answers to one item of each generation task: the item with the largest loss of score."""
    for name, result in assessment.pruned.items():
        for example in result.detail.get("examples", ())[-1:]:
            yield f"An answer to {name}, dense ({example['dense_score']:g}): {_short(example['dense'])}"
            yield f"An answer to {name}, without {assessment.mask} ({example['score']:g}): {_short(example['text'])}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _EXAMPLE_LENGTH else f"{line[: _EXAMPLE_LENGTH - 2]} …"
