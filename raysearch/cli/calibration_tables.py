"""The output of commands on calibrations: a sweep, and samples as the model sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from raysearch.cli.cells import extent, loss_cells, loss_columns, new_table, split_notes
from raysearch.text.numbers import added, count

if TYPE_CHECKING:  # slow to import, and a command that is refused does not need them
    from raysearch.searching.inspection import Inspection, ShownRow
    from raysearch.searching.sweep import Agreement, Profile, Sweep


def sweep_tables(sweep: Sweep, agreements: Sequence[Agreement]) -> list[Table]:
    """Return the table of the loss that each site's removal adds, and the table of the agreement of the rankings.

    Args:
        sweep: The losses by each calibration.
        agreements: The agreement of each pair of calibrations; none for a single calibration.

    Returns:
        The table of losses, those of generated texts, and that of agreements.
    """
    names = [f"{profile.calibration} ({profile.measure.unit})" for profile in sweep.calibrations]
    noun = sweep.space.noun
    sites = new_table(
        f"Loss over dense without one {noun} of {sweep.model} (0-based), its standard error, its rank", noun, *names
    )
    ranks = [profile.ranks for profile in sweep.calibrations]
    sites.add_row("dense", *(f"{profile.dense_loss:.4f}" for profile in sweep.calibrations), end_section=True)
    for index, label in enumerate(sweep.labels):
        cells = [
            f"{_added_loss(profile, index)} {profile_ranks[index]:>3}"
            for profile, profile_ranks in zip(sweep.calibrations, ranks, strict=True)
        ]
        sites.add_row(label, *cells)
    texts = [_texts_by_site(profile, sweep) for profile in sweep.calibrations if profile.texts]
    if not agreements:
        return [sites, *texts]
    first = f"shared among the first {agreements[0].n_remove}"
    pairs = new_table(
        "Agreement of the calibrations", "calibration", "and", "Spearman", first, left_aligned=("calibration", "and")
    )
    for agreement in agreements:
        spearman = "undefined" if agreement.spearman is None else f"{agreement.spearman:+.3f}"
        pairs.add_row(agreement.one, agreement.other, spearman, str(agreement.shared))
    return [sites, *texts, pairs]


def _texts_by_site(profile: Profile, sweep: Sweep) -> Table:
    """Return the table of the diagnostics of the generated texts without each site."""
    from raysearch.generation.diagnostics import DESCRIBED

    diagnostics = [diagnostic for diagnostic in DESCRIBED if diagnostic[0] in profile.texts[0]]
    headers = [f"{title} ({unit})" for _, title, unit, *_ in diagnostics]
    table = new_table(f"{profile.calibration}: the texts without one {sweep.space.noun}", sweep.space.noun, *headers)
    for label, values in zip(["dense", *sweep.labels], profile.texts, strict=True):
        cells = ("–" if values[key] is None else f"{scale * values[key]:.1f}" for key, _, _, scale, _ in diagnostics)
        table.add_row(label, *cells, end_section=label == "dense")
    return table


def _added_loss(profile: Profile, index: int) -> str:
    """Return the loss that a site's removal adds, with its standard error."""
    loss = profile.losses[index]
    return "failed" if loss is None else added(loss - profile.dense_loss, profile.standard_errors[index])


def inspections(calibrations: Sequence[Inspection]) -> list[Table | str]:
    """Return the tables of calibrations, and their first samples with the scored tokens in brackets."""
    parts: list[Table | str] = []
    for calibration in calibrations:
        table = new_table(calibration.name, "what", "value", left_aligned=("what", "value"))
        for name, value in _facts(calibration).items():
            table.add_row(name.replace("_", " "), value)
        parts += [table, *split_notes([calibration.description])]
        for number, sample in enumerate(calibration.shown, start=1):
            parts.append(f"\nsample {number} of {calibration.n_samples:,} (scored tokens between \u27e6 and \u27e7):")
            parts += [_row_line(row) for row in sample.rows]
            if sample.answer is not None:
                parts.append(f"  expected: {sample.answer.text}")
    return parts


def _facts(calibration: Inspection) -> dict[str, str]:
    """Return the facts of a calibration, by name."""
    measure = calibration.measure
    facts = {name: str(value) for name, value in calibration.description.items() if name not in ("shards", "n_tokens")}
    shards = count(calibration.n_shards, "shard")
    facts |= {
        "evaluated on": extent(measure, calibration.n_tokens, calibration.n_samples),
        "rows": f"{calibration.n_rows:,} of at most {calibration.longest:,} tokens, in {shards}",
        "fingerprint": calibration.fingerprint,
    }
    if calibration.dense_loss is not None:
        cells = loss_cells(measure, calibration.dense_loss)
        facts |= {f"dense {name}": cell for name, cell in zip(loss_columns(measure), cells, strict=True)}
    if calibration.standard_error is not None:
        facts["standard error of the dense loss"] = f"{calibration.standard_error:.4f} (by the choice of samples)"
    return facts


def _row_line(row: ShownRow) -> str:
    """Return the text of a row, with the scored tokens in brackets."""
    text = "".join(f"\u27e6{span.text}\u27e7" if span.scored else span.text for span in row.spans)
    n_tokens = sum(span.n_tokens for span in row.spans)
    n_scored = sum(span.n_tokens for span in row.spans if span.scored)
    mark = {True: "right", False: "wrong", None: "row"}[row.gold]
    return f"  [{mark}, {n_scored} of {n_tokens} tokens scored] {text}"
