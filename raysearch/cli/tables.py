"""The output of a finished search: tables, and the lines under them.

Losses are in the unit of their objective; their readout is next to them if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from shlex import quote
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
    number_cell,
    refusal_notes,
    split_notes,
)
from raysearch.cli.fitting import FittingTable
from raysearch.core.estimate import Estimate
from raysearch.core.json import plain
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.problem import sizes_of
from raysearch.core.screened import Screened
from raysearch.core.trial import Trial
from raysearch.models.spec import label_of
from raysearch.searching.gguf_masks import refused_masks_of_record
from raysearch.searching.recommendation import memory_text
from raysearch.searching.refinement import Refinement
from raysearch.searching.result import SearchResult
from raysearch.text.numbers import added, count, duration, rounded, short_duration
from raysearch.text.sentences import as_typed

if TYPE_CHECKING:  # slow to import, and `raysearch show` does not need them
    from raysearch.configuration.origins import ConfiguredValue
    from raysearch.models.export import ExportResult
    from raysearch.models.gguf_healing import HealedGGUF
    from raysearch.models.gguf_pruning import GGUFExport
    from raysearch.recovery.export import RecoveredExport
    from raysearch.searching.gap import Gap
    from raysearch.searching.recommendation import Recommendation, SizeFacts
    from raysearch.searching.score import Score
    from raysearch.searching.search_record import SearchRecord
    from raysearch.studies.study_record import CellRecord
    from raysearch.tracking.sync import SyncedSearch, SyncedStudy

_MOST_PARTS = 4  # a table has no room for the losses of more parts
_NO_REFUSALS: Mapping[Mask, str] = MappingProxyType({})


def search_tables(result: SearchResult) -> list[Table | str]:
    """Return the tables and lines of a finished search."""
    tables: list[Table | str] = [result_table(result)]
    settings = result.settings
    refused = refused_masks_of_record(settings, [trial.mask for trial in result.path])
    if result.recommendation is not None:
        tables += [budget_table(result.recommendation, refused), sentence(result.recommendation.reason), ""]
    elif len(result.path) > 2 or len(sizes_of(settings.remove)) > 1:
        tables.append(path_table(result.measure, result.path, refused))
    tables += refusal_notes(refused, result.mask)
    if result.refinement is not None:
        tables += refinement_parts(result.measure, result.refinement)
    return [*tables, *result_notes(result, settings.places.ledger_option, settings.places.ui_option)]


def result_table(result: SearchResult) -> Table:
    """Return the closing table of a search; ± is one standard error over the samples."""
    table = new_table(result.search_id, result.model, "dense", "pruned", left_aligned=(result.model,))
    cells = loss_cells(result.measure, result.dense_loss), loss_cells(result.measure, result.loss)
    for row in zip(loss_columns(result.measure), *cells, strict=True):
        table.add_row(*row)
    if result.delta_error is not None:
        table.add_row("loss over dense", "", added(result.loss - result.dense_loss, result.delta_error))
    table.add_row("layers", str(result.n_layers), str(len(result.sites.kept_layers(result.mask))))
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
    """
    notes = [f"Removed layers (0-based): {result.mask}"]
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
        place = result.settings.places.store / "reports" / result.search_id
        notes.append(f"Loss, speed and memory by number of layers: {place / 'knee.png'}")
    commands = [*_export_commands(result), f"assess {result.search_id}", f"recover {result.search_id} --out healed"]
    commands = [f"{command}{in_ledger}" for command in (*commands, f"show {result.search_id}")]
    if in_store is not None:
        commands.append(f"ui{in_store}")
    return [*notes, "", *next_lines(commands)]


def _export_commands(result: SearchResult) -> list[str]:
    """Return the commands that export the mask; first as a GGUF file if the model is one."""
    path = result.settings.model_path
    is_gguf = path.startswith("installed:") or path.lower().endswith(".gguf")
    options = ["--gguf pruned.gguf", "--out pruned-model"] if is_gguf else ["--out pruned-model"]
    return [f"export {result.search_id} {option}" for option in options]


def certainty_notes(result: SearchResult) -> list[str]:
    """Return the confidence in the choice of the mask, and the warnings about it."""
    return [*([] if result.separation is None else [str(result.separation)]), *result.warnings]


def _forwards_note(result: SearchResult) -> str:
    """Return the cost of a search in layer-forwards."""
    forwards = result.work.layer_forwards
    naive = forwards.naive_computed
    note = f"Layer-forwards: {forwards.computed:,.0f} computed"
    if 0 < forwards.computed < naive:
        note += f", {naive:,.0f} by a full forward per mask ({naive / forwards.computed:.2f}x fewer)"
    return note if forwards.whole == forwards.computed else f"{note}, {forwards.whole:,.0f} with what was cached"


def path_table(measure: Measure, path: Sequence[Trial], refused: Mapping[Mask, str] = _NO_REFUSALS) -> FittingTable:
    """Return the table of the best mask of each number of layers.

    Args:
        measure: The measure of the losses.
        path: The best trial of each number of layers.
        refused: The masks that `export --gguf` refuses, which have a mark.
    """
    columns = "layers", "removed", *loss_columns(measure)
    table = new_table("Best by number of layers removed (0-based)", *columns, expendable=("layers",))
    for trial in path:
        assert trial.loss is not None, "the best trials have a loss"
        table.add_row(str(len(trial.mask)), marked(trial.mask, refused), *loss_cells(measure, trial.loss))
    return table


def refinement_parts(measure: Measure, refinement: Refinement) -> list[Table | str]:
    """Return the table of the best masks before and after a short recovery, and the change of their order.

    Args:
        measure: The measure of the losses.
        refinement: The recovered masks.
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


def budget_table(recommendation: Recommendation, refused: Mapping[Mask, str] = _NO_REFUSALS) -> FittingTable:
    """Return the table of the loss, speed and memory of each number of layers, with a note at the recommended one.

    Args:
        recommendation: The sizes that were compared.
        refused: The masks that `export --gguf` refuses, which have a mark.
    """
    measure = recommendation.measure
    budget = recommendation.budget
    columns = [*loss_columns(measure), "loss over dense", "speed (× dense)", "memory"]
    if measure.readout is not None:
        columns.insert(3, f"{measure.readout} worse by")
    parts = {"speed (× dense)": "speedup", "memory": "memory", f"{measure.readout} worse by": "readout"}
    expendable = [*loss_columns(measure), *reversed(parts)]
    expendable = [column for column in expendable if parts.get(column) not in budget.limits]
    title = f"{recommendation.search_id}: {budget}"
    table = new_table(title, "layers", "removed", *columns, "", expendable=expendable)
    blank = [""] * (len(columns) - len(loss_columns(measure)) - 2)
    dense_cells = loss_cells(measure, recommendation.dense_loss)
    table.add_row("0", "{}", *dense_cells, *blank, "1.00", "", "", end_section=True)
    for size in recommendation.sizes:
        cells = [*loss_cells(measure, size.loss), added(size.delta, size.delta_error)]
        if measure.readout is not None:
            cells.append(_readout_change_cell(size))
        cells += [_speed_cell(size), "not measured" if size.speed is None else memory_text(size.speed, budget)]
        misses = [f"misses {limit}" for limit in size.misses] + [f"{limit} within error" for limit in size.unsure]
        note = "recommended" if size.n_removed == recommendation.n_removed else ", ".join(misses)
        table.add_row(str(size.n_removed), marked(size.mask, refused), *cells, note)
    return table


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


def settings_table(settings: Sequence[ConfiguredValue]) -> Table:
    """Return the table of a configuration, a row for each value with its origin."""
    table = new_table("", "key", "value", "from", left_aligned=("key", "value", "from"))
    for setting in settings:
        table.add_row(setting.key, as_typed(setting.value), setting.origin)
    return table


def gap_table(measure: Measure, gap: Gap) -> Table:
    """Return the table of a mask's rank among all masks.

    Args:
        measure: The measure of the losses.
        gap: The rank, and the distance to the best mask.
    """
    columns = "layers", "removed", "rank", "of", "percentile", "best", f"gap ({measure.unit})"
    table = new_table("Rank among all masks of as many layers (0-based)", *columns, expendable=("layers", "percentile"))
    rank = str(gap.rank), f"{gap.n_masks:,}", f"{gap.percentile:.4g}", str(gap.best), f"{gap.gap:.4f}"
    table.add_row(str(len(gap.mask)), str(gap.mask), *rank)
    return table


def remark_notes(remarks: Mapping[str, Any]) -> list[str]:
    """Return the numbers and texts that a searcher recorded, one per line."""
    return [
        f"{name.replace('_', ' ')}: {' '.join(value.split()) if isinstance(value, str) else rounded(value)}"
        for name, value in remarks.items()
        if not isinstance(value, list)
    ]


def remark_table(remarks: Mapping[str, Any]) -> Table:
    """Return the table of the lists that a searcher recorded, one row per layer."""
    lists = {name: value for name, value in remarks.items() if isinstance(value, list)}
    columns = (column.replace("_", " ") for column in ("layer", *lists))
    table = new_table("What the searcher made of each layer (0-based)", *columns)
    for layer, values in enumerate(zip_longest(*lists.values(), fillvalue="")):
        table.add_row(str(layer), *(value if isinstance(value, str) else rounded(value) for value in values))
    return table


def score_table(scores: Sequence[Score]) -> Table:
    """Return the table of the losses of masks, at least one."""
    measure = scores[0].measure
    columns = "removed", *loss_columns(measure), "evaluated on", "cached"
    table = new_table("Layers are 0-based", *columns, expendable=("cached", "evaluated on"))
    for score in scores:
        cells = *loss_cells(measure, score.loss), extent(measure, score.n_tokens, score.n_samples)
        table.add_row(str(score.mask), *cells, "yes" if score.cached else "no")
    return table


def searches_table(
    records: Sequence[SearchRecord], cells: Mapping[str, tuple[str, CellRecord]] = MappingProxyType({})
) -> Table:
    """Return the table of all searches of a ledger.

    Args:
        records: The searches.
        cells: By search id: the id of the study that contains the search, and its cell there.
    """
    columns = "search", "state", "model", "calibration", "samples", "draw", "study", "removed", "loss", "updated (UTC)"
    numbers = "samples", "draw", "loss"
    table = new_table(
        "Searches, the newest first (layers are 0-based)",
        *columns,
        left_aligned=[column for column in columns if column not in numbers],
        expendable=("updated (UTC)", "model", "loss", "study", "samples", "draw"),
    )
    for record in records:
        result = record.result
        settings = record.settings
        draw = "" if settings.data_seed is None else str(settings.data_seed)
        study, cell = cells.get(record.search_id, ("", None))
        table.add_row(
            record.search_id,
            record.state,
            label_of(settings.model_name, settings.model_path),
            settings.calibration if cell is None else cell.calibration,
            "" if settings.samples is None else as_typed(settings.samples),
            draw if cell is None or not cell.draw else cell.draw,
            study,
            str(result.mask) if result else "",
            f"{result.loss:.4f}" if result else "",
            record.updated[:19],
        )
    return table


def place_in_study(cell: tuple[str, CellRecord] | None) -> dict[str, Any] | None:
    """Return the study that contains a search, with the search's labels there, as plain values for JSON."""
    return None if cell is None else {"study_id": cell[0], **plain(cell[1])}


def recorded_tables(
    record: SearchRecord, most: int, gap: Gap | None, cell: tuple[str, CellRecord] | None = None
) -> list[Table | str]:
    """Return all tables of a recorded search.

    Args:
        record: The search.
        most: The maximum number of masks to show.
        gap: The rank of its mask, if requested.
        cell: The id of the study that contains it, and its cell there; None if there is none.
    """
    tables: list[Table | str] = [facts_table(record, cell)]
    result = record.result
    if result is None:
        return tables
    measure = result.measure
    remarks = result.remarks
    shown = *result.path, *_largest_first(result.trials)[:most]
    refused = refused_masks_of_record(result.settings, [trial.mask for trial in shown])
    tables.append(result_table(result))
    if result.recommendation is not None:
        tables += [budget_table(result.recommendation, refused), sentence(result.recommendation.reason)]
    else:
        tables.append(path_table(measure, result.path, refused))
    tables += [
        *refusal_notes(refused, result.mask),
        *certainty_notes(result),
        *remark_notes(remarks),
        *split_notes(result.data),
    ]
    if result.refinement is not None:
        tables += refinement_parts(measure, result.refinement)
    if any(isinstance(value, list) for value in remarks.values()):
        tables.append(remark_table(remarks))
    tables.append(trials_table(measure, result.trials, most, refused))
    if gap is not None:
        tables.append(gap_table(measure, gap))
    return tables


def facts_table(record: SearchRecord, cell: tuple[str, CellRecord] | None) -> Table:
    """Return the table of a search's settings and state.

    Args:
        record: The search.
        cell: The id of the study that contains it, and its cell there; None if there is none.
    """
    config = record.config
    result = record.result
    facts = {"state": f"{record.state}, {record.updated[:19]} UTC", "failure": record.failure or ""}
    if cell is not None:
        draw = f", draw {cell[1].draw}" if cell[1].draw else ""
        facts["study"] = f"{cell[0]}: {cell[1].searcher}, {cell[1].calibration}{draw}, seed {cell[1].seed}"
    for section in ("model", "data", "objective", "searcher", "screening", "refine", "budget"):
        facts[section] = _section_text(section, config)
    facts |= {key: as_typed(config[key]) for key in ("remove", "protect", "seed") if config.get(key) not in (None, [])}
    if result is not None:
        facts["dtype"] = result.dtype
        facts["evaluated on"] = extent(result.measure, result.samples.n_tokens, result.samples.n_samples)
        facts["time"] = duration(result.work.seconds)
    table = new_table(record.search_id, "what", "value", left_aligned=("what", "value"))
    for name, value in facts.items():
        if value:
            table.add_row(name, value)
    return table


def _section_text(section: str, config: Mapping[str, Any]) -> str:
    """Return the chosen file of a section, and its options that are set."""
    chosen = config["choices"].get(section, "")
    options = {key: value for key, value in (config.get(section) or {}).items() if value not in (None, [], {}, False)}
    if section == "model":
        chosen = options.get("name", "")
        options = {key: value for key, value in options.items() if key != "path" or value != chosen}
    elif section in ("screening", "refine"):
        options = {}
    settings = [f"{key}={as_typed(value)}" for key, value in options.items() if key not in ("type", "name", "cache")]
    return ", ".join([chosen, *settings] if chosen else settings)


def trials_table(
    measure: Measure, trials: Sequence[Trial], most: int, refused: Mapping[Mask, str] = _NO_REFUSALS
) -> Table:
    """Return the table of the best masks of a search, largest first, each with the round that first proposed it.

    Args:
        measure: The measure of the losses.
        trials: All trials in the order of their evaluation.
        most: The maximum number of masks to show.
        refused: The masks that `export --gguf` refuses, which have a mark.
    """
    masks = _largest_first(trials)
    best = masks[:most]
    parts = list(dict.fromkeys(name for trial in trials for name in trial.parts))
    parts = parts if len(parts) <= _MOST_PARTS else []
    losses = loss_columns(measure)
    part_losses = [f"loss of {name}" for name in parts]
    number = f"{len(masks)}" if len(best) == len(masks) else f"{len(best)} of {len(masks)}"
    title = f"{number} masks, those of the most layers first, then by loss (layers are 0-based)"
    columns = "removed", *losses, "over dense", *part_losses, "round"
    table = new_table(title, *columns, expendable=(*part_losses, "round", *losses[1:], "over dense"))
    for trial in best:
        if trial.screened is not None:
            cells = [screened_note(trial.screened), *[""] * (len(losses) + len(parts))]
        elif trial.loss is None or trial.delta is None:
            cells = [trial.failure or "", *[""] * (len(losses) + len(parts))]
        else:
            cells = [*loss_cells(measure, trial.loss), f"{trial.delta:+.4f}"]
            cells += [f"{trial.parts[name]:.4f}" for name in parts]
        table.add_row(marked(trial.mask, refused), *cells, str(trial.round))
    return table


def _largest_first(trials: Sequence[Trial]) -> list[Trial]:
    """Return the first trial of each mask, masks of the most layers first, then by loss."""
    pruned = [trial for trial in reversed(trials) if trial.mask]
    masks = {(trial.mask, trial.loss, trial.failure, trial.screened): trial for trial in pruned}
    return sorted(
        masks.values(), key=lambda trial: (-len(trial.mask), trial.loss is None, trial.loss or 0, trial.round)
    )


def screened_note(screened: Screened) -> str:
    """Return the estimate for a mask that was dropped or accepted by screening, in brief."""
    status = "among the best" if screened.accepted else "screened"
    return f"{status}: {screened.low:.4f} … {screened.high:.4f}, from {screened.share:.0%} of the shards"


def export_lines(done: ExportResult, out: Path, prompt: str | None, public: bool) -> list[str]:
    """Return the lines on an exported checkpoint: its size, its check, and the command that runs it.

    Args:
        done: The export.
        out: The folder, as the user typed it.
        prompt: The text that both models continued, if any.
        public: Whether the repository of an upload is public.
    """
    size = f"{done.parameters / 1e6:,.1f} M parameters"
    size_dense = f"{done.parameters_dense / 1e6:,.1f} M parameters"
    lines = [
        f"Wrote {out}: {done.n_layers} layers, {size} instead of {size_dense}.",
        "It does not fit into the memory, so it was not run; every tensor was compared with its source, byte by byte."
        if done.max_logit_difference is None
        else f"Reloaded with plain transformers; largest logit difference {done.max_logit_difference:.2g}.",
        f"vLLM: vllm serve {quote(str(out.expanduser()))}"
        if done.misread_by_vllm is None
        else f"vLLM would run another model: it {done.misread_by_vllm}.",
        *_pushed(done.url, public),
    ]
    if prompt is not None:
        lines += [f"Before: {prompt}{done.before}", f"After:  {prompt}{done.after}"]
    return lines


def gguf_lines(done: GGUFExport, out: Path, public: bool) -> list[str]:
    """Return the lines on an exported GGUF file: its size, and the commands that run it.

    Args:
        done: The export.
        out: The file, as the user typed it.
        public: Whether the repository of an upload is public.
    """
    size = f"{done.size_bytes / 1e6:,.1f} MB"
    size_dense = f"{done.source_bytes / 1e6:,.1f} MB"
    name = quote(out.stem.lower().replace(" ", "-"))
    ollama = f"Ollama: echo 'FROM ./{out.name}' > Modelfile && ollama create {name}"
    required_build = ""
    if done.build is not None:
        required_build = f" (build b{done.build} or newer)"
        ollama = "Older builds, and engines of Ollama, infer the kind of a layer from its place and run another model."
    return [
        f"Wrote {out}: {done.n_layers} layers, {size} instead of {size_dense}.",
        f"Every remaining tensor has the same bytes as in {done.source}.",
        f"llama.cpp{required_build}: llama-cli -m {quote(str(out.expanduser()))}",
        ollama,
        *_pushed(done.url, public),
    ]


def recovered_lines(done: RecoveredExport, out: Path, public: bool) -> list[str]:
    """Return the lines on the copy of a recovered model.

    Args:
        done: The export.
        out: The folder, as the user typed it.
        public: Whether the repository of an upload is public.
    """
    return [
        f"Wrote {out}: the model of {done.recovery_id}, as it is in {done.source}.",
        *_pushed(done.url, public),
    ]


def healed_lines(done: HealedGGUF, out: Path) -> list[str]:
    """Return the lines on the GGUF file of a recovered model: its size, its tensors, and the commands that run it.

    Args:
        done: The export.
        out: The file, as the user typed it.
    """
    size_line, _, *run_lines = gguf_lines(done.file, out, public=False)
    n_trained = count(done.trained, "tensor")
    lines = [size_line, f"The training changed {n_trained}; the others have the same bytes as in {done.file.source}."]
    if done.coarser:
        lines.append(
            f"Those that were {' or '.join(done.coarser)} are Q8_0 now, as fewer bits would round the training away."
        )
    if done.command is not None:
        lines.append(f"For a smaller file that keeps less of the training: {done.command}")
    return [*lines, *run_lines]


def _pushed(url: str | None, public: bool) -> list[str]:
    return [] if url is None else [f"Sent to {url} ({'public' if public else 'private'})."]


def synced_lines(synced: SyncedSearch | SyncedStudy) -> list[str]:
    """Return a line for each search that was synced, with the number of trials that were uploaded."""
    lines = []
    for search in synced.searches:
        trials = count(search.trials, "trial")
        if search.missing:
            lines.append(f"{search.search_id}: MLflow lacked {search.missing:,} of its {trials}, and has them now.")
        else:
            lines.append(f"{search.search_id}: MLflow has all of its {trials}.")
    return [*lines, *synced.left_out]


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


def assessed_numbers(numbers: Mapping[str, float]) -> Table:
    """Return the table of the assessed numbers of a search's mask and of the dense model."""
    is_healed = any(key.endswith("/recovered") for key in numbers)
    columns = ["dense", "pruned", "retention", *(["recovered"] if is_healed else [])]
    table = new_table("Assessed", "", *columns, left_aligned=("",))
    for metric in dict.fromkeys(key.rpartition("/")[0] for key in numbers):
        keys = [f"{metric}/{column}" for column in columns]
        estimates = [Estimate(numbers[key], numbers.get(f"{key}_se")) if key in numbers else None for key in keys]
        units = ["bytes" if metric.endswith("_bytes") and column != "retention" else "" for column in columns]
        table.add_row(metric.removeprefix("assess/"), *map(number_cell, estimates, units))
    return table
