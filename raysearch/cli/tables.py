"""The output of a finished search: tables, and the lines under them.

Losses are in the unit of their objective, beside their readout if there is one.
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
from raysearch.core.formatting import added, as_typed, count, duration, figure, short_duration
from raysearch.core.json import plain
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.paths import option_for, option_of
from raysearch.core.problem import sizes_of
from raysearch.core.screened import Screened
from raysearch.models.spec import label_of
from raysearch.searching.gguf_masks import refused_on_record
from raysearch.searching.recommendation import memory_text
from raysearch.searching.result import Refinement, SearchResult
from raysearch.searching.trial import Trial

if TYPE_CHECKING:  # heavy; `raysearch show` does not need them
    from raysearch.configuration.origins import Setting
    from raysearch.models.export import ExportResult
    from raysearch.models.gguf_healing import HealedGGUF
    from raysearch.models.gguf_pruning import GGUFExport
    from raysearch.recovery.export import RecoveredExport
    from raysearch.searching.gap import Gap
    from raysearch.searching.recommendation import Recommendation, SizeFacts
    from raysearch.searching.record import SearchRecord
    from raysearch.searching.score import Score
    from raysearch.studies.record import CellRecord
    from raysearch.tracking.sync import SyncedSearch, SyncedStudy

_MOST_PARTS = 4  # losses of parts that fit into a table
_NONE_REFUSED: Mapping[Mask, str] = MappingProxyType({})


def search_tables(result: SearchResult) -> list[Table | str]:
    """Return the tables and lines of a finished search."""
    tables: list[Table | str] = [result_table(result)]
    refused = refused_on_record(result.config, [trial.mask for trial in result.path])
    if result.recommendation is not None:
        tables += [budget_table(result.recommendation, refused), sentence(result.recommendation.reason), ""]
    elif len(result.path) > 2 or len(sizes_of(result.config["remove"])) > 1:
        tables.append(path_table(result.measure, result.path, refused))
    tables += refusal_notes(refused, result.mask)
    if result.refinement is not None:
        tables += refinement_parts(result.measure, result.refinement)
    return [*tables, *result_notes(result, *places(result.config))]


def places(config: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the option that leads a later command to a search's ledger, and to its embedded MLflow store if any."""
    embedded = config["tracking"]["type"] == "mlflow" and config["tracking"]["uri"] is None
    return option_of(config), option_for(Path(config["store"])) if embedded else None


def result_table(result: SearchResult) -> Table:
    """Return the closing table of a search; ± is one standard error over the samples."""
    table = new_table(result.search_id, result.model, "dense", "pruned", left=(result.model,))
    cells = loss_cells(result.measure, result.dense_loss), loss_cells(result.measure, result.loss)
    for row in zip(loss_columns(result.measure), *cells, strict=True):
        table.add_row(*row)
    if result.delta_error is not None:
        table.add_row("loss over dense", "", added(result.loss - result.dense_loss, result.delta_error))
    table.add_row("layers", str(result.n_layers), str(result.n_layers - len(result.removed)))
    kept = result.parameters - result.parameters_removed
    share = result.parameters_removed / result.parameters
    table.add_row("parameters", f"{result.parameters / 1e6:,.1f} M", f"{kept / 1e6:,.1f} M (-{share:.1%})")
    return table


def result_notes(result: SearchResult, in_ledger: str, in_store: str | None) -> list[str]:
    """Return the lines under the closing table: the removed layers, the cost, the next commands with `places`."""
    notes = [f"Removed layers (0-based): {result.mask}"]
    if result.removal_order:
        notes.append(f"In this order: {', '.join(map(str, result.removal_order))}")
    evaluations = result.evaluations
    notes += [
        *certainty_notes(result),
        f"Evaluations: {evaluations.requested:,} requested, {evaluations.computed:,} computed, "
        f"{evaluations.cached:,} cached, each on {extent(result.measure, result.n_tokens, result.n_samples)}",
        _forwards_note(result),
        *_screening_notes(result),
        *_packing_notes(result),
        f"Time: {duration(result.seconds)} (the searcher itself {short_duration(result.searcher_seconds)}, "
        f"{short_duration(result.searcher_seconds / max(1, evaluations.requested))} a mask requested)"
        + (f", replicas busy {result.busy_share:.0%}" if result.layer_forwards.computed else ""),
        *remark_notes(result.remarks),
        *split_notes(result.data),
    ]
    if result.recommendation is not None:
        place = Path(result.config["store"]) / "reports" / result.search_id
        notes.append(f"Loss, speed and memory by number of layers: {place / 'knee.png'}")
    commands = [*_export_commands(result), f"assess {result.search_id}", f"recover {result.search_id} --out healed"]
    commands = [f"{command}{in_ledger}" for command in (*commands, f"show {result.search_id}")]
    return [*notes, "", *next_lines([*commands, *([] if in_store is None else [f"ui{in_store}"])])]


def _export_commands(result: SearchResult) -> list[str]:
    """Return how the mask is exported: of a GGUF file, as one first."""
    path = str(result.config["model"].get("path", ""))
    is_gguf = path.startswith("installed:") or path.lower().endswith(".gguf")
    forms = [*(["--gguf pruned.gguf"] if is_gguf else []), "--out pruned-model"]
    return [f"export {result.search_id} {form}" for form in forms]


def certainty_notes(result: SearchResult) -> list[str]:
    """Return how sure the choice of the mask is, and what speaks against it."""
    return [*([] if result.separation is None else [str(result.separation)]), *result.warnings]


def _forwards_note(result: SearchResult) -> str:
    """Return the cost of a search in layer-forwards."""
    forwards = result.layer_forwards
    note, naive = f"Layer-forwards: {forwards.computed:,.0f} computed", forwards.naive_computed
    if 0 < forwards.computed < naive:
        note += f", {naive:,.0f} by a full forward per mask ({naive / forwards.computed:.2f}x fewer)"
    return note if forwards.whole == forwards.computed else f"{note}, {forwards.whole:,.0f} with what was cached"


def path_table(measure: Measure, path: Sequence[Trial], refused: Mapping[Mask, str] = _NONE_REFUSED) -> FittingTable:
    """Return the table of the best mask of each number of layers; masks that `export --gguf` refuses have a mark."""
    columns = "layers", "removed", *loss_columns(measure)
    table = new_table("Best by number of layers removed (0-based)", *columns, expendable=("layers",))
    for trial in path:
        assert trial.loss is not None, "the best ones have one"
        table.add_row(str(len(trial.mask)), marked(trial.mask, refused), *loss_cells(measure, trial.loss))
    return table


def refinement_parts(measure: Measure, found: Refinement) -> list[Table | str]:
    """Return the table of the best masks before and after a short recovery, and what it says of their order."""
    after = ["loss after"] if measure.readout is None else ["loss after", f"{measure.readout} after"]
    columns = *loss_columns(measure), *after, "steps", "tokens", ""
    title = f"{found.refinement_id}: the best masks before and after a short recovery (0-based)"
    table = new_table(
        title, "removed", *columns, expendable=("tokens", "steps", *loss_columns(measure)[1:], *after[1:])
    )
    for one in found.masks:
        cells = *loss_cells(measure, one.loss), *loss_cells(measure, one.recovered_loss)
        said = "best after" if one == found.best else ""
        table.add_row(str(one.mask), *cells, f"{one.steps:,}", f"{one.tokens:,}", said)
    best = "The best mask before it is the best after it"
    if found.best != found.masks[0]:
        best = f"{found.masks[0].mask} is the best mask before it, {found.best.mask} after it"
    if found.rank_correlation is not None:
        best += f"; the rank correlation of the losses is {found.rank_correlation:+.2f}"
    rows = count(found.rows, "row") + left_out(found.left_out)
    spent = duration(sum(one.seconds for one in found.masks))
    return [table, f"{best}.", f"All were trained on the same {rows}; {spent} together.", ""]


def budget_table(found: Recommendation, refused: Mapping[Mask, str] = _NONE_REFUSED) -> FittingTable:
    """Return the table of what each number of layers costs and gains, with the recommended one marked.

    Masks that `export --gguf` refuses have a mark, too.
    """
    columns = [*loss_columns(found.measure), "loss over dense", "speed (× dense)", "memory"]
    if found.measure.readout is not None:
        columns.insert(3, f"{found.measure.readout} worse by")
    parts = {"speed (× dense)": "speedup", "memory": "memory", f"{found.measure.readout} worse by": "readout"}
    expendable = [*loss_columns(found.measure), *reversed(parts)]
    expendable = [column for column in expendable if parts.get(column) not in found.budget.given]
    title = f"{found.search_id}: {found.budget}"
    table = new_table(title, "layers", "removed", *columns, "", expendable=expendable)
    blank = [""] * (len(columns) - len(loss_columns(found.measure)) - 2)
    table.add_row("0", "{}", *loss_cells(found.measure, found.dense_loss), *blank, "1.00", "", "", end_section=True)
    for size in found.sizes:
        speed = memory = "not measured"
        if size.speed is not None:
            spread = "" if size.speed.error is None else f" ± {size.speed.error:.2f}"
            speed, memory = f"{size.speed.speedup:.2f}{spread}", memory_text(size.speed, found.budget)
        misses = [f"misses {part}" for part in size.misses] + [f"{part} within error" for part in size.unsure]
        said = "recommended" if size.n_removed == found.n_removed else ", ".join(misses)
        worse = [] if found.measure.readout is None else [_worse(size)]
        cells = *loss_cells(found.measure, size.loss), added(size.delta, size.delta_error), *worse, speed, memory, said
        table.add_row(str(size.n_removed), marked(size.mask, refused), *cells)
    return table


def _worse(size: SizeFacts) -> str:
    """Return by how much a readout is worse than the dense model's."""
    error = "" if size.readout_error is None else f" ± {size.readout_error:.1%}"
    return "" if size.readout_change is None else f"{size.readout_change:+.1%}{error}"


def sentence(text: str) -> str:
    """Return a clause as a sentence."""
    return f"{text[0].upper()}{text[1:]}."


def settings_table(settings: Sequence[Setting]) -> Table:
    """Return the table of a configuration, a row for each value with its origin."""
    table = new_table("", "key", "value", "from", left=("key", "value", "from"))
    for setting in settings:
        table.add_row(setting.key, as_typed(setting.value), setting.origin)
    return table


def gap_table(measure: Measure, gap: Gap) -> Table:
    """Return the table of a mask's rank among all masks."""
    columns = "layers", "removed", "rank", "of", "percentile", "best", f"gap ({measure.unit})"
    table = new_table("Rank among all masks of as many layers (0-based)", *columns, expendable=("layers", "percentile"))
    rank = str(gap.rank), f"{gap.n_masks:,}", f"{gap.percentile:.4g}", str(gap.best), f"{gap.gap:.4f}"
    table.add_row(str(len(gap.mask)), str(gap.mask), *rank)
    return table


def remark_notes(remarks: Mapping[str, Any]) -> list[str]:
    """Return the numbers and texts that a searcher recorded, a line each."""
    return [
        f"{name.replace('_', ' ')}: {' '.join(value.split()) if isinstance(value, str) else figure(value)}"
        for name, value in remarks.items()
        if not isinstance(value, list)
    ]


def remark_table(remarks: Mapping[str, Any]) -> Table:
    """Return the table of the lists that a searcher recorded, one row per layer."""
    lists = {name: value for name, value in remarks.items() if isinstance(value, list)}
    columns = (column.replace("_", " ") for column in ("layer", *lists))
    table = new_table("What the searcher made of each layer (0-based)", *columns)
    for layer, values in enumerate(zip_longest(*lists.values(), fillvalue="")):
        table.add_row(str(layer), *(value if isinstance(value, str) else figure(value) for value in values))
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
    """Return the table of all searches of a ledger, with the places that some have in a study."""
    columns = "search", "state", "model", "calibration", "samples", "draw", "study", "removed", "loss", "updated (UTC)"
    numbers = "samples", "draw", "loss"
    table = new_table(
        "Searches, the newest first (layers are 0-based)",
        *columns,
        left=[column for column in columns if column not in numbers],
        expendable=("updated (UTC)", "model", "loss", "study", "samples", "draw"),
    )
    for record in records:
        result, (study, cell) = record.result, cells.get(record.search_id, ("", None))
        table.add_row(
            record.search_id,
            record.state,
            label_of(record.config["model"]["name"], record.config["model"]["path"]),
            _calibration(record) if cell is None else cell.calibration,
            _of_data(record.config, "samples"),
            _of_data(record.config, "seed") if cell is None or not cell.draw else cell.draw,
            study,
            str(result.mask) if result else "",
            f"{result.loss:.4f}" if result else "",
            record.updated[:19],
        )
    return table


def place_in_study(cell: tuple[str, CellRecord] | None) -> dict[str, Any] | None:
    """Return the study that a search is part of, with the search's labels there, as JSON shows it."""
    return None if cell is None else {"study_id": cell[0], **plain(cell[1])}


def _calibration(record: SearchRecord) -> str:
    choices = record.config["choices"]
    return f"{choices['objective']} on {choices['data']}"


def _of_data(config: Mapping[str, Any], key: str) -> str:
    """Return a value of the section ``data``; empty where there is none."""
    value = (config.get("data") or {}).get(key)
    return "" if value is None else as_typed(value)


def recorded_tables(
    record: SearchRecord, most: int, gap: Gap | None, cell: tuple[str, CellRecord] | None = None
) -> list[Table | str]:
    """Return all tables of a recorded search.

    Args:
        record: The search.
        most: The number of masks that are shown at most.
        gap: The rank of its mask, if that was asked for.
        cell: The study that it is part of, and its place there; None if there is none.
    """
    tables: list[Table | str] = [facts_table(record, cell)]
    result = record.result
    if result is None:
        return tables
    measure, remarks = result.measure, result.remarks
    shown = *result.path, *_largest_first(result.trials)[:most]
    refused = refused_on_record(result.config, [trial.mask for trial in shown])
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
    """Return the table of what a search was asked for, and how far it came."""
    config, result = record.config, record.result
    facts = {"state": f"{record.state}, {record.updated[:19]} UTC", "failure": record.failure or ""}
    if cell is not None:
        draw = f", draw {cell[1].draw}" if cell[1].draw else ""
        facts["study"] = f"{cell[0]}: {cell[1].searcher}, {cell[1].calibration}{draw}, seed {cell[1].seed}"
    for section in ("model", "data", "objective", "searcher", "screening", "refine", "budget"):
        facts[section] = _section_text(section, config)
    facts |= {key: as_typed(config[key]) for key in ("remove", "protect", "seed") if config.get(key) not in (None, [])}
    if result is not None:
        facts["dtype"] = result.dtype
        facts["evaluated on"] = extent(result.measure, result.n_tokens, result.n_samples)
        facts["time"] = duration(result.seconds)
    table = new_table(record.search_id, "what", "value", left=("what", "value"))
    for what, value in facts.items():
        if value:
            table.add_row(what, value)
    return table


def _section_text(section: str, config: Mapping[str, Any]) -> str:
    """Return the chosen file of a section and its options, without those that are not set."""
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
    measure: Measure, trials: Sequence[Trial], most: int, refused: Mapping[Mask, str] = _NONE_REFUSED
) -> Table:
    """Return the table of the best masks of a search, largest first, each with the round that first proposed it.

    Args:
        measure: Of the losses.
        trials: All masks, as they came.
        most: The number of masks that are shown at most.
        refused: Those that `export --gguf` refuses, which have a mark.
    """
    masks = _largest_first(trials)
    best = masks[:most]
    parts = list(dict.fromkeys(name for trial in trials for name in trial.parts))
    parts = parts if len(parts) <= _MOST_PARTS else []
    losses, of_parts = loss_columns(measure), [f"loss of {name}" for name in parts]
    which = f"{len(masks)}" if len(best) == len(masks) else f"{len(best)} of {len(masks)}"
    title = f"{which} masks, those of the most layers first, then by loss (layers are 0-based)"
    columns = "removed", *losses, "over dense", *of_parts, "round"
    table = new_table(title, *columns, expendable=(*of_parts, "round", *losses[1:], "over dense"))
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
    """Return each mask as it was first seen, those of the most layers first, then by loss."""
    pruned = [trial for trial in reversed(trials) if trial.mask]
    masks = {(trial.mask, trial.loss, trial.failure, trial.screened): trial for trial in pruned}
    return sorted(
        masks.values(), key=lambda trial: (-len(trial.mask), trial.loss is None, trial.loss or 0, trial.round)
    )


def screened_note(screened: Screened) -> str:
    """Return what is known of a mask that was dropped or accepted, in few words."""
    what = "among the best" if screened.accepted else "screened"
    return f"{what}: {screened.low:.4f} … {screened.high:.4f}, from {screened.share:.0%} of the shards"


def export_lines(done: ExportResult, out: Path, prompt: str | None, public: bool) -> list[str]:
    """Return what was written to a folder, as typed, and how it is run; `prompt` is what both models continued."""
    size, before = (f"{each / 1e6:,.1f} M parameters" for each in (done.parameters, done.parameters_dense))
    lines = [
        f"Wrote {out}: {done.n_layers} layers, {size} instead of {before}.",
        f"Reloaded with plain transformers; largest logit difference {done.max_logit_difference:.2g}.",
        f"vLLM: vllm serve {quote(str(out.expanduser()))}"
        if done.misread_by_vllm is None
        else f"vLLM would run another model: it {done.misread_by_vllm}.",
        *_pushed(done.url, public),
    ]
    if prompt is not None:
        lines += [f"Before: {prompt}{done.before}", f"After:  {prompt}{done.after}"]
    return lines


def gguf_lines(done: GGUFExport, out: Path, public: bool) -> list[str]:
    """Return what was written to a GGUF file, as typed, and how llama.cpp and Ollama run it."""
    size, before = (f"{each / 1e6:,.1f} MB" for each in (done.size_bytes, done.source_bytes))
    name = quote(out.stem.lower().replace(" ", "-"))
    ollama, needed = f"Ollama: echo 'FROM ./{out.name}' > Modelfile && ollama create {name}", ""
    if done.build is not None:
        needed = f" (build b{done.build} or newer)"
        ollama = (
            "Older builds, and engines of Ollama, tell the kinds of layers from their places and run another model."
        )
    return [
        f"Wrote {out}: {done.n_layers} layers, {size} instead of {before}.",
        f"Every tensor that is left has the bytes that it has in {done.source}.",
        f"llama.cpp{needed}: llama-cli -m {quote(str(out.expanduser()))}",
        ollama,
        *_pushed(done.url, public),
    ]


def recovered_lines(done: RecoveredExport, out: Path, public: bool) -> list[str]:
    """Return what was written of a recovered model to a folder, as typed."""
    return [
        f"Wrote {out}: the model of {done.recovery_id}, as it is in {done.source}.",
        *_pushed(done.url, public),
    ]


def healed_lines(done: HealedGGUF, out: Path) -> list[str]:
    """Return what was written of a recovered model to a GGUF file, as typed, and how llama.cpp and Ollama run it."""
    wrote, _, *how_to_run = gguf_lines(done.file, out, public=False)
    trained = count(done.trained, "tensor")
    lines = [wrote, f"The training changed {trained}; the others have the bytes that they have in {done.file.source}."]
    if done.coarser:
        lines.append(
            f"Those that were {' or '.join(done.coarser)} are Q8_0 now, as fewer bits would round the training away."
        )
    if done.command is not None:
        lines.append(f"Smaller, but less of the training is left: {done.command}")
    return [*lines, *how_to_run]


def _pushed(url: str | None, public: bool) -> list[str]:
    return [] if url is None else [f"Sent to {url} ({'public' if public else 'private'})."]


def synced_lines(synced: SyncedSearch | SyncedStudy) -> list[str]:
    """Return a line for each search that was synced, with the number of trials that MLflow lacked."""
    lines = [
        f"{one.search_id}: MLflow lacked {one.missing:,} of its {count(one.trials, 'trial')}, and has them now."
        if one.missing
        else f"{one.search_id}: MLflow has all of its {count(one.trials, 'trial')}."
        for one in synced.searches
    ]
    return [*lines, *synced.left_out]


def _screening_notes(result: SearchResult) -> list[str]:
    n_screened = result.evaluations.screened
    if not n_screened:
        return []
    confidence = result.config["screening"]["confidence"]
    return [
        f"Screened: {count(n_screened, 'mask')} stopped early, with {confidence:.4g} confidence that none would change "
        "the result (screening=off evaluates all in full)"
    ]


def _packing_notes(result: SearchResult) -> list[str]:
    """Return how much sharing prompts saved, or that they were not shared; nothing where there are no choices."""
    tokens = result.layer_tokens
    if tokens.packed is None:
        return []
    if tokens.packed:
        return [
            f"Choices share their prompt: {tokens.computed:,} tokens through layers instead of {tokens.by_row:,} with "
            f"a row for each choice ({tokens.computed / tokens.by_row:.2f}x)"
        ]
    return [
        "Choices in rows of their own, as this model does not keep packed ones apart: "
        f"{tokens.computed:,} tokens through layers"
    ]


def assessed_numbers(numbers: Mapping[str, float]) -> Table:
    """Return the table of the assessed numbers of a search's mask, beside those of the dense model."""
    is_healed = any(key.endswith("/recovered") for key in numbers)
    columns = ["dense", "pruned", "retention", *(["recovered"] if is_healed else [])]
    table = new_table("Assessed", "", *columns, left=("",))
    for metric in dict.fromkeys(key.rpartition("/")[0] for key in numbers):
        keys = [f"{metric}/{column}" for column in columns]
        found = [Estimate(numbers[key], numbers.get(f"{key}_se")) if key in numbers else None for key in keys]
        units = ["bytes" if metric.endswith("_bytes") and column != "retention" else "" for column in columns]
        table.add_row(metric.removeprefix("assess/"), *map(number_cell, found, units))
    return table
