"""The output of commands on recorded searches.

Losses are in the unit of their objective; their readout is next to them if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.table import Table

from raysearch.cli.cells import (
    extent,
    loss_cells,
    loss_columns,
    marked,
    new_table,
    number_cell,
    refusal_notes,
    split_notes,
)
from raysearch.cli.search_tables import (
    NO_REFUSALS,
    budget_table,
    certainty_notes,
    path_table,
    refinement_parts,
    remark_notes,
    result_table,
    sentence,
    stage_parts,
)
from raysearch.core.estimate import Estimate
from raysearch.core.json import plain
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.scale import scales_text
from raysearch.core.screened import Screened
from raysearch.core.space import LAYERS, Space
from raysearch.core.trial import Trial
from raysearch.models.spec import label_of
from raysearch.searching.gguf_masks import refused_masks_of_record
from raysearch.text.numbers import count, duration, rounded
from raysearch.text.sentences import as_typed

if TYPE_CHECKING:  # slow to import, and `raysearch show` does not need them
    from raysearch.searching.gap import Gap
    from raysearch.searching.result import SearchResult
    from raysearch.searching.search_record import SearchRecord
    from raysearch.studies.study_record import CellRecord
    from raysearch.tracking.sync import SyncedSearch, SyncedStudy

_MOST_PARTS = 4  # a table has no room for the losses of more parts


def searches_table(
    records: Sequence[SearchRecord], cells: Mapping[str, tuple[str, CellRecord]] = MappingProxyType({})
) -> Table:
    """Return the table of all searches of a ledger.

    Args:
        records: The searches.
        cells: By search id: the id of the study that contains the search, and its cell there.

    Returns:
        The table: a row for each search, in the order of `records`.
    """
    columns = "search", "state", "model", "calibration", "samples", "draw", "study", "removed", "loss", "updated (UTC)"
    right_aligned = ("samples", "draw", "loss")
    table = new_table(
        "Searches, the newest first (layers are 0-based)",
        *columns,
        left_aligned=[column for column in columns if column not in right_aligned],
        expendable=("updated (UTC)", "model", "loss", "study", "samples", "draw"),
    )
    for record in records:
        result = record.result
        settings = record.settings
        calibration = settings.calibration
        draw = "" if settings.data_seed is None else str(settings.data_seed)
        study, cell = cells.get(record.search_id, ("", None))
        if cell is not None:
            calibration = cell.calibration
            draw = cell.draw or draw
        table.add_row(
            record.search_id,
            record.state,
            label_of(settings.model_name, settings.model_path, settings.adapter),
            calibration,
            "" if settings.samples is None else as_typed(settings.samples),
            draw,
            study,
            str(result.mask) if result else "",
            f"{result.loss:.4f}" if result else "",
            record.updated[:19],
        )
    return table


def place_in_study(cell: tuple[str, CellRecord] | None) -> dict[str, Any] | None:
    """Return the study that contains a search, with the search's labels there, as plain values for JSON.

    Args:
        cell: The id of the study, and the search's cell there; None if no study contains the search.
    """
    if cell is None:
        return None
    study_id, cell_record = cell
    return {"study_id": study_id, **plain(cell_record)}


def search_record_tables(
    record: SearchRecord, most: int, gap: Gap | None, cell: tuple[str, CellRecord] | None = None
) -> list[Table | str]:
    """Return all tables of a recorded search.

    Args:
        record: The search.
        most: The maximum number of masks to show.
        gap: The rank of its mask, if requested.
        cell: The id of the study that contains it, and its cell there; None if there is none.

    Returns:
        The tables and lines, in the order in which they are printed.
    """
    tables: list[Table | str] = [facts_table(record, cell)]
    result = record.result
    if result is None:
        return tables
    measure = result.measure
    remarks = result.remarks
    shown_trials = [*result.path, *_largest_first(result.trials)[:most]]
    refused = refused_masks_of_record(result.settings, [trial.mask for trial in shown_trials])
    tables.append(result_table(result))
    if result.recommendation is not None:
        tables += [budget_table(result.recommendation, refused), sentence(result.recommendation.reason)]
    elif result.staged is None:
        tables.append(path_table(measure, result.path, refused, result.space))
    tables += [
        *refusal_notes(refused, result.mask),
        *certainty_notes(result),
        *remark_notes(remarks),
        *split_notes(result.data),
    ]
    if result.refinement is not None:
        tables += refinement_parts(measure, result.refinement)
    if result.staged is not None:
        tables += stage_parts(result, result.staged)
    if any(isinstance(value, list) for value in remarks.values()):
        tables.append(remark_table(remarks, *_noun_and_labels(result)))
    tables.append(trials_table(measure, result.trials, most, refused, result.space))
    if gap is not None:
        tables.append(gap_table(measure, gap))
    return tables


def facts_table(record: SearchRecord, cell: tuple[str, CellRecord] | None) -> Table:
    """Return the table of a search's settings and state.

    Args:
        record: The search.
        cell: The id of the study that contains it, and its cell there; None if there is none.

    Returns:
        The table of two columns: the name and the value of each fact.
    """
    config = record.config
    result = record.result
    facts = {"state": f"{record.state}, {record.updated[:19]} UTC", "failure": record.failure or ""}
    if cell is not None:
        study_id, cell_record = cell
        draw = f", draw {cell_record.draw}" if cell_record.draw else ""
        facts["study"] = f"{study_id}: {cell_record.searcher}, {cell_record.calibration}{draw}, seed {cell_record.seed}"
    for section in ("model", "data", "objective", "searcher", "screening", "refine", "heal", "budget"):
        facts[section] = _section_text(section, config)
    for key in ("space", "repair", "remove", "schedule", "protect", "seed"):
        if config.get(key) not in (None, [], LAYERS.name, "none"):
            facts[key] = as_typed(config[key])
    if result is not None:
        facts["scales"] = scales_text(result.scales)
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
    elif section in ("screening", "refine", "heal"):
        options = {}
    settings = [f"{key}={as_typed(value)}" for key, value in options.items() if key not in ("type", "name", "cache")]
    return ", ".join([chosen, *settings] if chosen else settings)


def gap_table(measure: Measure, gap: Gap) -> Table:
    """Return the table of a mask's rank among all masks.

    Args:
        measure: The measure of the losses.
        gap: The rank, and the distance to the best mask.

    Returns:
        The table of one row.
    """
    plural = gap.space.plural
    columns = plural, "removed", "rank", "of", "percentile", "best", f"gap ({measure.unit})"
    title = f"Rank among all masks of as many {plural} (0-based)"
    table = new_table(title, *columns, expendable=(plural, "percentile"))
    table.add_row(
        str(gap.n_removed),
        str(gap.mask),
        str(gap.rank),
        f"{gap.n_masks:,}",
        f"{gap.percentile:.4g}",
        str(gap.best),
        f"{gap.gap:.4f}",
    )
    return table


def _noun_and_labels(result: SearchResult) -> tuple[str, list[str]]:
    """Return what the searcher removes, and the label of each."""
    if result.group == 1:
        return result.space.noun, [site.label for site in result.space_sites]
    return "group", [f"from layer {site.halves[0].layer}" for site in result.space_sites]


def remark_table(remarks: Mapping[str, Any], noun: str, labels: Sequence[str]) -> Table:
    """Return the table of the lists that a searcher recorded, one row per site: a layer, group of layers, pair or half.

    Args:
        remarks: The values by name.
        noun: What the searcher removes.
        labels: The label of each row.

    Returns:
        The table.
    """
    lists = {name: value for name, value in remarks.items() if isinstance(value, list)}
    columns = (column.replace("_", " ") for column in (noun, *lists))
    table = new_table(f"What the searcher made of each {noun} (0-based)", *columns)
    for label, values in zip(labels, zip_longest(*lists.values(), fillvalue=""), strict=False):
        table.add_row(label, *(value if isinstance(value, str) else rounded(value) for value in values))
    return table


def trials_table(
    measure: Measure,
    trials: Sequence[Trial],
    most: int,
    refused: Mapping[Mask, str] = NO_REFUSALS,
    space: Space = LAYERS,
) -> Table:
    """Return the table of the best masks of a search, largest first, each with the round that first proposed it.

    Args:
        measure: The measure of the losses.
        trials: All trials in the order of their evaluation.
        most: The maximum number of masks to show.
        refused: The masks that `export --gguf` refuses, which have a mark.
        space: What the masks remove.

    Returns:
        The table of at most `most` rows.
    """
    all_masks = _largest_first(trials)
    best = all_masks[:most]
    parts = list(dict.fromkeys(name for trial in trials for name in trial.parts))
    if len(parts) > _MOST_PARTS:
        parts = []
    losses = loss_columns(measure)
    part_losses = [f"loss of {name}" for name in parts]
    number = f"{len(all_masks)}" if len(best) == len(all_masks) else f"{len(best)} of {len(all_masks)}"
    title = f"{number} masks, those of the most {space.plural} first, then by loss (layers are 0-based)"
    columns = "removed", *losses, "over dense", *part_losses, "round"
    table = new_table(title, *columns, expendable=(*part_losses, "round", *losses[1:], "over dense"))
    blank = [""] * (len(losses) + len(parts))  # all cells of numbers but the first
    for trial in best:
        if trial.screened is not None:
            cells = [screened_note(trial.screened), *blank]
        elif trial.loss is None or trial.delta is None:
            cells = [trial.failure or "", *blank]
        else:
            cells = [*loss_cells(measure, trial.loss), f"{trial.delta:+.4f}"]
            cells += [f"{trial.parts[name]:.4f}" for name in parts]
        table.add_row(marked(trial.mask, refused), *cells, str(trial.round))
    return table


def _largest_first(trials: Sequence[Trial]) -> list[Trial]:
    """Return the first trial of each mask, the largest masks first, then by loss."""
    pruned = [trial for trial in reversed(trials) if trial.mask]
    different = {(trial.mask, trial.loss, trial.failure, trial.screened): trial for trial in pruned}
    return sorted(
        different.values(), key=lambda trial: (-trial.mask.n_halves, trial.loss is None, trial.loss or 0, trial.round)
    )


def screened_note(screened: Screened) -> str:
    """Return the estimate for a mask that was dropped or accepted by screening, in brief."""
    status = "among the best" if screened.accepted else "screened"
    return f"{status}: {screened.low:.4f} … {screened.high:.4f}, from {screened.share:.0%} of the shards"


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
