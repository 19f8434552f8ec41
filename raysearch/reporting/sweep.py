"""Writes a sweep as a figure and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from raysearch.core.paths import write_files
from raysearch.figures.picture import png
from raysearch.figures.sweep import SweepPanel, draw_sweep
from raysearch.generation.diagnostics import DESCRIBED
from raysearch.searching.sweep import Sweep
from raysearch.text.escaping import csv_cell

if TYPE_CHECKING:
    from raysearch.figures.picture import Figure


def write_sweep(sweep: Sweep, n_remove: int, folder: Path) -> list[Path]:
    """Write ``sweep.png`` and ``sweep.csv``, and ``texts.csv`` if texts were generated, and return the files.

    Args:
        sweep: The sweep.
        n_remove: M, the number of sites to mark in each panel: those whose removal adds the least loss.
        folder: The folder of the files; created if it does not exist.

    Returns:
        The paths of the written files.

    Raises:
        UserError: The folder cannot be written to.
    """
    frames = {"sweep.csv": _losses(sweep), "texts.csv": _texts(sweep)}
    tables = {
        file: frame.to_csv(index=False, lineterminator="\n").encode() for file, frame in frames.items() if len(frame)
    }
    return write_files("--out", folder, {"sweep.png": png(sweep_figure(sweep, n_remove)), **tables})


def sweep_figure(sweep: Sweep, n_remove: int) -> Figure:
    """Draw the loss that the removal of each site adds, see `draw_sweep`.

    Args:
        sweep: The sweep.
        n_remove: M, the number of sites to mark in each panel.

    Returns:
        The figure.
    """
    panels = [
        SweepPanel(
            profile.calibration,
            profile.measure.unit,
            profile.dense_loss,
            profile.losses,
            profile.standard_errors,
            profile.ranks,
        )
        for profile in sweep.calibrations
    ]
    return draw_sweep(sweep.model, panels, n_remove, sweep.labels, sweep.space)


def _losses(sweep: Sweep) -> pd.DataFrame:
    """Return the losses with their standard errors: the dense model's row, then a row per site."""
    columns: dict[str, Sequence[object]] = {sweep.space.noun: ["dense", *sweep.labels]}
    for profile in sweep.calibrations:
        columns[csv_cell(profile.calibration)] = [profile.dense_loss, *profile.losses]
        columns[csv_cell(f"standard error of {profile.calibration} over dense")] = [None, *profile.standard_errors]
    return pd.DataFrame(columns)


def _texts(sweep: Sweep) -> pd.DataFrame:
    """Return the descriptions of texts, a row per calibration and site; site -1 is the dense model."""
    noun = sweep.space.noun
    rows = [
        {"calibration": csv_cell(profile.calibration), noun: label, **description}
        for profile in sweep.calibrations
        for label, description in zip(["-1", *sweep.labels], profile.texts, strict=bool(profile.texts))
    ]
    return pd.DataFrame(rows, columns=["calibration", noun, *(key for key, *_ in DESCRIBED)], dtype=object)
