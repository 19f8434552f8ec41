"""The output of commands on calibrations: a sweep, and samples as the model sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from raysearch.cli.cells import extent, loss_cells, loss_columns, new_table, split_notes
from raysearch.core.formatting import added, count

if TYPE_CHECKING:  # heavy; a command that is refused does not need them
    from raysearch.searching.inspection import Inspection, Row
    from raysearch.searching.sweep import Agreement, Profile, Sweep


def sweep_tables(sweep: Sweep, agreements: Sequence[Agreement]) -> list[Table]:
    """Return the table of the loss that each layer adds, with ranks, and that of the agreement of the rankings."""
    names = [f"{profile.calibration} ({profile.measure.unit})" for profile in sweep.calibrations]
    layers = new_table(
        f"Loss over dense without one layer of {sweep.model} (0-based), its standard error, its rank", "layer", *names
    )
    ranks = [profile.ranks for profile in sweep.calibrations]
    layers.add_row("dense", *(f"{profile.dense_loss:.4f}" for profile in sweep.calibrations), end_section=True)
    for layer in range(len(sweep.calibrations[0].losses)):
        cells = [f"{_added(one, layer)} {rank[layer]:>3}" for one, rank in zip(sweep.calibrations, ranks, strict=True)]
        layers.add_row(str(layer), *cells)
    texts = [_texts_by_layer(profile) for profile in sweep.calibrations if profile.texts]
    if not agreements:
        return [layers, *texts]
    first = f"shared among the first {agreements[0].n_remove}"
    pairs = new_table("How far they agree", "calibration", "and", "Spearman", first, left=("calibration", "and"))
    for one in agreements:
        pairs.add_row(
            one.one, one.other, "undefined" if one.spearman is None else f"{one.spearman:+.3f}", str(one.shared)
        )
    return [layers, *texts, pairs]


def _texts_by_layer(profile: Profile) -> Table:
    """Return the table of what the texts of a calibration show without each layer."""
    from raysearch.generation.diagnostics import DESCRIBED

    known = [one for one in DESCRIBED if one[0] in profile.texts[0]]
    table = new_table(
        f"{profile.calibration}: the texts without one layer", "layer", *(f"{one[1]} ({one[2]})" for one in known)
    )
    for layer, of_layer in enumerate(profile.texts, start=-1):
        cells = ("–" if of_layer[key] is None else f"{scale * of_layer[key]:.1f}" for key, _, _, scale, _ in known)
        table.add_row("dense" if layer < 0 else str(layer), *cells, end_section=layer < 0)
    return table


def _added(profile: Profile, layer: int) -> str:
    """Return the loss that a layer's removal adds, with its standard error."""
    loss = profile.losses[layer]
    return "failed" if loss is None else added(loss - profile.dense_loss, profile.standard_errors[layer])


def inspections(found: Sequence[Inspection]) -> list[Table | str]:
    """Return the tables of calibrations, and their first samples with the scored tokens in brackets."""
    parts: list[Table | str] = []
    for one in found:
        table = new_table(one.name, "what", "value", left=("what", "value"))
        for name, value in _facts(one).items():
            table.add_row(name.replace("_", " "), value)
        parts += [table, *split_notes([one.description])]
        for number, sample in enumerate(one.shown, start=1):
            parts.append(f"\nsample {number} of {one.n_samples:,} (scored tokens between \u27e6 and \u27e7):")
            parts += [_row_in_words(row) for row in sample.rows]
            if sample.answer is not None:
                parts.append(f"  expected: {sample.answer.text}")
    return parts


def _facts(one: Inspection) -> dict[str, str]:
    """Return the facts of a calibration, by name."""
    facts = {name: str(value) for name, value in one.description.items() if name not in ("shards", "n_tokens")}
    facts |= {
        "evaluated on": extent(one.measure, one.n_tokens, one.n_samples),
        "rows": f"{one.n_rows:,} of at most {one.longest:,} tokens, in {count(one.n_shards, 'shard')}",
        "fingerprint": one.fingerprint,
    }
    if one.dense_loss is not None:
        names, cells = loss_columns(one.measure), loss_cells(one.measure, one.dense_loss)
        facts |= {f"dense {name}": cell for name, cell in zip(names, cells, strict=True)}
    if one.standard_error is not None:
        facts["standard error of the dense loss"] = f"{one.standard_error:.4f} (by the choice of samples)"
    return facts


def _row_in_words(row: Row) -> str:
    text = "".join(f"\u27e6{span.text}\u27e7" if span.scored else span.text for span in row.spans)
    tokens, scored = sum(span.n_tokens for span in row.spans), sum(span.n_tokens for span in row.spans if span.scored)
    mark = {True: "right", False: "wrong", None: "row"}[row.gold]
    return f"  [{mark}, {scored} of {tokens} tokens scored] {text}"
