"""The figures of the layers that each searcher of a study removes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import pandas as pd

from raysearch.core.site import Sites
from raysearch.figures.masks import MaskMap, mask_picture
from raysearch.figures.palette import Palette
from raysearch.figures.picture import Picture, pictures
from raysearch.reporting.analysis.agreement import masks_of
from raysearch.reporting.analysis.frame import settings


def mask_pictures(frame: pd.DataFrame, sites: Mapping[str, Sites], palette: Palette) -> list[Picture]:
    """Return for each model the maps of its settings: layers as columns, searchers as rows.

    Args:
        frame: The searches, see `cells_frame`.
        sites: The sites of each model.
        palette: The looks of the searchers.

    Returns:
        The pictures, one for each model.
    """
    return pictures("masks", _maps(frame), partial(mask_picture, sites, palette))


def _maps(frame: pd.DataFrame) -> Iterator[tuple[str, MaskMap]]:
    for setting, cells in settings(frame):
        masks = masks_of(cells, "searcher").to_dict()
        if masks:
            yield setting.model, MaskMap(setting.calibration, setting.remove, masks)
