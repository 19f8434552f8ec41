"""The output of the commands ``search``, ``resume``, ``score`` and ``config``: tables, and the lines under them.

Losses are in the unit of their objective; their readout is next to them if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.table import Table

from raysearch.cli.cells import (
    extent,
    left_out,
    loss_cells,
    loss_columns,
    marked,
    new_table,
    next_lines,
    refusal_notes,
    split_notes,
)
from raysearch.cli.fitting import FittingTable
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.problem import sizes_of
from raysearch.core.scale import scales_text
from raysearch.core.space import LAYERS, Space
from raysearch.core.trial import Trial
from raysearch.searching.gguf_masks import refused_masks_of_record
from raysearch.searching.knee import knee_file
from raysearch.searching.recommendation import kv_memory_text, latency_text, memory_text
from raysearch.searching.refinement import Refinement
from raysearch.searching.result import SearchResult
from raysearch.searching.stages import StagedResult
from raysearch.text.numbers import added, count, duration, rounded, short_duration
from raysearch.text.numbers import size as size_text
from raysearch.text.sentences import as_typed

if TYPE_CHECKING:  # slow to import, and `raysearch show` does not need them
    from raysearch.configuration.origins import ConfiguredValue
    from raysearch.searching.recommendation import Recommendation, SizeFacts
    from raysearch.searching.score import Score

#: The refused masks of a search if there are none.
NO_REFUSALS: Mapping[Mask, str] = MappingProxyType({})


def search_tables(result: SearchResult) -> list[Table | str]:
    """Return the tables and lines of a finished search."""
    tables: list[Table | str] = [result_table(result)]
    settings = result.settings
    refused = refused_masks_of_record(settings, [trial.mask for trial in result.path])
    if result.recommendation is not None:
        tables += [budget_table(result.recommendation, refused), sentence(result.recommendation.reason), ""]
    elif result.staged is None and (len(result.path) > 2 or len(sizes_of(settings.remove)) > 1):
        tables.append(path_table(result.measure, result.path, refused, result.space))
    tables += refusal_notes(refused, result.mask)
    if result.refinement is not None:
        tables += refinement_parts(result.measure, result.refinement)
    if result.staged is not None:
        tables += stage_parts(result, result.staged)
    return [*tables, *result_notes(result, settings.places.ledger_option, settings.places.ui_option)]


def result_table(result: SearchResult) -> Table:
    """Return the closing table of a search; ± is one standard error over the samples."""
    losses = {"dense": result.dense_loss, "pruned": result.loss}
    if result.staged is not None:
        losses["recovered"] = result.staged.recovered_loss
    table = new_table(result.search_id, result.model, *losses, left_aligned=(result.model,))
    cells_of_models = [loss_cells(result.measure, loss) for loss in losses.values()]
    for name, *cells in zip(loss_columns(result.measure), *cells_of_models, strict=True):
        table.add_row(name, *cells)
    if result.delta_error is not None:
        table.add_row("loss over dense", "", added(result.loss - result.dense_loss, result.delta_error))
    blocks = result.sites.blocks(result.mask)
    if result.space.keeps_blocks:
        table.add_row("layers", str(result.n_layers), str(len(blocks)))
    else:
        table.add_row("attentions", str(result.n_layers), str(sum(block.attention is not None for block in blocks)))
        table.add_row("MLPs", str(result.n_layers), str(sum(block.mlp is not None for block in blocks)))
    size = result.size
    remaining = f"{(size.parameters - size.parameters_removed) / 1e6:,.1f} M (-{size.removed_share:.1%})"
    table.add_row("parameters", f"{size.parameters / 1e6:,.1f} M", remaining)
    return table


def result_notes(result: SearchResult, in_ledger: str, in_store: str | None) -> list[str]:
    """Return the lines under the closing table: the removed layers, the cost, and the next commands.

    Args:
        result: The search's result.
        in_ledger: The option that names the search's ledger, see `places`.
        in_store: The option that names its local MLflow store; None if there is none.

    Returns:
        The lines, in the order in which they are printed.
    """
    kind = "layers" if result.space.keeps_blocks else result.space.plural
    notes = [f"Removed {kind} (0-based): {result.mask}"]
    if result.scales:
        notes.append(f"The hidden state is multiplied at its cuts: {scales_text(result.scales)}")
    if result.removal_order:
        notes.append(f"In this order: {', '.join(map(str, result.removal_order))}")
    work = result.work
    evaluations = work.evaluations
    judged_on = extent(result.measure, result.samples.n_tokens, result.samples.n_samples)
    notes += [
        *certainty_notes(result),
        f"Evaluations: {evaluations.requested:,} requested, {evaluations.computed:,} computed, "
        f"{evaluations.cached:,} cached, each on {judged_on}",
        _forwards_note(result),
        *_screening_notes(result),
        *_packing_notes(result),
        f"Time: {duration(work.seconds)} (the searcher itself {short_duration(work.searcher_seconds)}, "
        f"{short_duration(work.searcher_seconds / max(1, evaluations.requested))} a mask requested)"
        + (f", replicas busy {result.work.busy_share:.0%}" if result.work.layer_forwards.computed else ""),
        *remark_notes(result.remarks),
        *split_notes(result.data),
    ]
    if result.recommendation is not None:
        figure = knee_file(result.search_id, result.settings.places.store)
        notes.append(f"Loss, speed and memory by number of {result.space.plural}: {figure}")
    commands_on_search = [*_export_commands(result)]
    if not result.settings.is_repaired:
        commands_on_search.append(f"assess {result.search_id}")
    if not result.settings.is_repaired and result.staged is None:
        commands_on_search.append(f"recover {result.search_id} --out healed")
    commands_on_search.append(f"show {result.search_id}")
    commands = [f"{command}{in_ledger}" for command in commands_on_search]
    if in_store is not None:
        commands.append(f"ui{in_store}")
    return [*notes, "", *next_lines(commands)]


def certainty_notes(result: SearchResult) -> list[str]:
    """Return the confidence in the choice of the mask, and the warnings about it."""
    if result.separation is None:
        return result.warnings
    return [str(result.separation), *result.warnings]


def remark_notes(remarks: Mapping[str, Any]) -> list[str]:
    """Return the numbers and texts that a searcher recorded, one per line."""
    return [
        f"{name.replace('_', ' ')}: {' '.join(value.split()) if isinstance(value, str) else rounded(value)}"
        for name, value in remarks.items()
        if not isinstance(value, list)
    ]


def _export_commands(result: SearchResult) -> list[str]:
    """Return the commands that export the mask; first as a GGUF file if the model is one, without an adapter."""
    settings = result.settings
    path = settings.model_path
    is_gguf = path.startswith("installed:") or path.lower().endswith(".gguf")
    is_gguf = is_gguf and settings.adapter is None and not settings.is_repaired
    file, folder = ("pruned.gguf", "pruned-model") if result.staged is None else ("healed.gguf", "healed")
    options = [f"--gguf {file}", f"--out {folder}"] if is_gguf else [f"--out {folder}"]
    return [f"export {result.search_id} {option}" for option in options]


def _forwards_note(result: SearchResult) -> str:
    """Return the cost of a search in layer-forwards."""
    forwards = result.work.layer_forwards
    naive = forwards.naive_computed
    note = f"Layer-forwards: {forwards.computed:,.0f} computed"
    if 0 < forwards.computed < naive:
        note += f", {naive:,.0f} by a full forward per mask ({naive / forwards.computed:.2f}x fewer)"
    return note if forwards.whole == forwards.computed else f"{note}, {forwards.whole:,.0f} with what was cached"


def _screening_notes(result: SearchResult) -> list[str]:
    n_screened = result.work.evaluations.screened
    if not n_screened:
        return []
    confidence = result.settings.confidence
    return [
        f"Screened: {count(n_screened, 'mask')} stopped early, with {confidence:.4g} confidence that none would change "
        "the result (screening=off evaluates all in full)"
    ]


def _packing_notes(result: SearchResult) -> list[str]:
    """Return how much sharing prompts saved, or that prompts were not shared; empty for data without choices."""
    tokens = result.work.layer_tokens
    if tokens.packed is None:
        return []
    if tokens.packed:
        return [
            f"Choices share their prompt: {tokens.computed:,} tokens through layers instead of {tokens.by_row:,} with "
            f"a row for each choice ({tokens.computed / tokens.by_row:.2f}x)"
        ]
    return [
        "Choices in separate rows, as this model does not keep packed ones apart: "
        f"{tokens.computed:,} tokens through layers"
    ]


def path_table(
    measure: Measure, path: Sequence[Trial], refused: Mapping[Mask, str] = NO_REFUSALS, space: Space = LAYERS
) -> FittingTable:
    """Return the table of the best mask of each number of layers, or of what the search removes.

    Args:
        measure: The measure of the losses.
        path: The best trial of each number.
        refused: The masks that `export --gguf` refuses, which have a mark.
        space: What the masks remove.

    Returns:
        The table: a row for each number.
    """
    columns = space.plural, "removed", *loss_columns(measure)
    table = new_table(f"Best by number of {space.plural} removed (0-based)", *columns, expendable=(space.plural,))
    for trial in path:
        assert trial.loss is not None, "the best trials have a loss"
        size = str(space.size_of(trial.mask))
        table.add_row(size, marked(trial.mask, refused), *loss_cells(measure, trial.loss))
    return table


def budget_table(recommendation: Recommendation, refused: Mapping[Mask, str] = NO_REFUSALS) -> FittingTable:
    """Return the table of the loss, speed and memory of each size, with a note at the recommended one.

    Args:
        recommendation: The sizes that were compared.
        refused: The masks that `export --gguf` refuses, which have a mark.

    Returns:
        The table: a row for each compared size.
    """
    measure = recommendation.measure
    budget = recommendation.budget
    has_speeds = budget.kv_memory is None or any(size.speed is not None for size in recommendation.sizes)
    columns = [*loss_columns(measure), "loss over dense"]
    if measure.readout is not None:
        columns.append(f"{measure.readout} worse by")
    if has_speeds:
        columns += ["speed (× dense)", "memory"]
    if budget.kv_memory is not None:
        columns.append("KV cache")
    if budget.latency_ms is not None:
        columns.append("time of a request")
    parts = {"speed (× dense)": "speedup", "memory": "memory", f"{measure.readout} worse by": "readout"}
    expendable = [*loss_columns(measure), *reversed(parts)]
    expendable = [column for column in expendable if parts.get(column) not in budget.limits]
    title = f"{recommendation.search_id}: {budget}"
    table = new_table(title, recommendation.space.plural, "removed", *columns, "", expendable=expendable)
    dense_cells = dict.fromkeys(columns, "") | _dense_gains(recommendation)
    if has_speeds:
        dense_cells["speed (× dense)"] = "1.00"
    dense_cells |= dict(zip(loss_columns(measure), loss_cells(measure, recommendation.dense_loss), strict=True))
    table.add_row("0", "{}", *dense_cells.values(), "", end_section=True)
    for size in recommendation.sizes:
        cells = [*loss_cells(measure, size.loss), added(size.delta, size.delta_error)]
        if measure.readout is not None:
            cells.append(_readout_change_cell(size))
        if has_speeds:
            cells += [_speed_cell(size), "not measured" if size.speed is None else memory_text(size.speed, budget)]
        if budget.kv_memory is not None:
            cells.append("" if size.kv_memory is None else kv_memory_text(size.kv_memory, budget))
        if budget.latency_ms is not None:
            cells.append("not measured" if size.speed is None else latency_text(size.speed))
        misses = [f"misses {limit}" for limit in size.misses] + [f"{limit} within error" for limit in size.unsure]
        note = "recommended" if size.n_removed == recommendation.n_removed else ", ".join(misses)
        table.add_row(str(size.n_removed), marked(size.mask, refused), *cells, note)
    return table


def _dense_gains(recommendation: Recommendation) -> dict[str, str]:
    """Return the cells of the dense model's KV cache and time, by column, as far as the budget limits them."""
    (first, *_) = recommendation.sizes
    budget = recommendation.budget
    cells = {}
    if budget.kv_memory is not None and first.kv_memory is not None:
        cells["KV cache"] = size_text(first.kv_memory.dense_bytes)
    if budget.latency_ms is not None and first.speed is not None and first.speed.dense_latency_ms is not None:
        cells["time of a request"] = f"{first.speed.dense_latency_ms:.4g} ms"
    return cells


def _speed_cell(size: SizeFacts) -> str:
    """Return the speed relative to the dense model, with its standard error if there is one."""
    if size.speed is None:
        return "not measured"
    error = "" if size.speed.error is None else f" ± {size.speed.error:.2f}"
    return f"{size.speed.speedup:.2f}{error}"


def _readout_change_cell(size: SizeFacts) -> str:
    """Return by how much a readout is worse than the dense model's; empty if unknown."""
    error = "" if size.readout_error is None else f" ± {size.readout_error:.1%}"
    return "" if size.readout_change is None else f"{size.readout_change:+.1%}{error}"


def sentence(text: str) -> str:
    """Return a clause as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def refinement_parts(measure: Measure, refinement: Refinement) -> list[Table | str]:
    """Return the table of the best masks before and after a short recovery, and the change of their order.

    Args:
        measure: The measure of the losses.
        refinement: The recovered masks.

    Returns:
        The table, and the lines below it.
    """
    after = ["loss after"] if measure.readout is None else ["loss after", f"{measure.readout} after"]
    columns = *loss_columns(measure), *after, "steps", "tokens", ""
    title = f"{refinement.refinement_id}: the best masks before and after a short recovery (0-based)"
    table = new_table(
        title, "removed", *columns, expendable=("tokens", "steps", *loss_columns(measure)[1:], *after[1:])
    )
    best = refinement.best
    first = refinement.masks[0]
    for refined in refinement.masks:
        cells = *loss_cells(measure, refined.loss), *loss_cells(measure, refined.recovered_loss)
        note = "best after" if refined == best else ""
        table.add_row(str(refined.mask), *cells, f"{refined.steps:,}", f"{refined.tokens:,}", note)
    if best == first:
        verdict = "The best mask before it is the best after it"
    else:
        verdict = f"{first.mask} is the best mask before it, {best.mask} after it"
    if refinement.rank_correlation is not None:
        verdict += f"; the rank correlation of the losses is {refinement.rank_correlation:+.2f}"
    rows = count(refinement.rows, "row") + left_out(refinement.left_out)
    time_spent = duration(sum(refined.seconds for refined in refinement.masks))
    return [table, f"{verdict}.", f"All were trained on the same {rows}; {time_spent} together.", ""]


def stage_parts(result: SearchResult, staged: StagedResult) -> list[Table | str]:
    """Return the table of a search's stages, and the lines below it.

    Args:
        result: The result of the search, with the losses of the original model without the layers of each stage.
        staged: Its stages.

    Returns:
        The table, and the lines.
    """
    measure = result.measure
    untrained_losses = {trial.mask: trial.loss for trial in result.trials}
    columns = "stage", "removed", "removed so far", "untrained", "before", "after"
    readouts = [] if measure.readout is None else [f"{measure.readout} after"]
    expendable = ("stage", "tokens", "steps", "untrained", "removed")
    title = f"{staged.recovery_id}: the loss before and after the recovery of each stage (0-based)"
    table = new_table(title, *columns, *readouts, "steps", "tokens", expendable=expendable)
    for number, stage in enumerate(staged.stages, start=1):
        losses = (untrained_losses[stage.mask], stage.loss, stage.recovered_loss)
        loss_texts = ["" if loss is None else loss_cells(measure, loss)[0] for loss in losses]
        readout_cells = loss_cells(measure, stage.recovered_loss)[1:]
        training = f"{stage.steps:,}", f"{stage.tokens:,}"
        table.add_row(str(number), str(stage.removed), str(stage.mask), *loss_texts, *readout_cells, *training)
    rows = count(staged.rows, "row") + left_out(staged.left_out)
    time_spent = duration(sum(stage.seconds for stage in staged.stages))
    return [
        table,
        f"All stages were trained on the same {rows}; {time_spent} together. Untrained: the original model without the "
        "layers removed so far.",
        "",
    ]


def score_table(scores: Sequence[Score]) -> Table:
    """Return the table of the losses of masks, at least one."""
    measure = scores[0].measure
    are_scaled = any(score.scales for score in scores)
    names = ("removed", "scaled at its cuts") if are_scaled else ("removed",)
    columns = *names, *loss_columns(measure), "evaluated on", "cached"
    table = new_table("Layers are 0-based", *columns, expendable=("cached", "evaluated on"))
    for score in scores:
        cells = *loss_cells(measure, score.loss), extent(measure, score.n_tokens, score.n_samples)
        scales = [scales_text(score.scales)] if are_scaled else []
        table.add_row(str(score.mask), *scales, *cells, "yes" if score.cached else "no")
    return table


def settings_table(settings: Sequence[ConfiguredValue]) -> Table:
    """Return the table of a configuration, a row for each value with its origin."""
    table = new_table("", "key", "value", "from", left_aligned=("key", "value", "from"))
    for setting in settings:
        table.add_row(setting.key, as_typed(setting.value), setting.origin)
    return table
