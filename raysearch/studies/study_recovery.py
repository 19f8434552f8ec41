"""The recoveries that belong to a study, each with a distinct name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger
from raysearch.recovery.recovery_record import RecoveryRecord, recoveries_of
from raysearch.searching.search_record import SEARCHES, SearchRecord
from raysearch.studies.result import RecoveredMask
from raysearch.studies.study_record import CellRecord
from raysearch.text.sentences import as_typed


def recovered_masks(searches: Sequence[tuple[CellRecord, SearchRecord]], ledger: Ledger) -> list[RecoveredMask]:
    """Return the recoveries of a study's masks, and those of the dense models that are their controls.

    A recovery belongs to the study only if the search that found its mask used the samples of one of the study's
    searches that found the same mask.

    Args:
        searches: The searches of the study that are recorded, with their places.
        ledger: The ledger with the recoveries.

    Returns:
        The recoveries, each with the searchers and calibrations that found its mask.
    """
    searchers_by_model: dict[tuple[str, str], dict[Mask, dict[str, None]]] = {}  # model, then mask, then searchers
    samples: dict[Mask, set[str]] = {}
    sizes = {Mask(): 0}
    for cell, search in searches:
        if (result := search.result) is not None:
            searchers_by_mask = searchers_by_model.setdefault(
                (cell.model, result.fingerprints["model"]), {Mask(): {"dense": None}}
            )
            searchers_by_mask.setdefault(result.mask, {})[cell.searcher] = None
            sizes.setdefault(result.mask, result.n_removed)
            for mask in (Mask(), result.mask):
                samples.setdefault(mask, set()).add(result.fingerprints["calibration"])
    recovered: list[RecoveredMask] = []
    for (model, fingerprint), searchers_by_mask in searchers_by_model.items():
        candidates = recoveries_of(ledger, fingerprint, searchers_by_mask)
        candidate_searches = SEARCHES.by_ids(ledger, {record.search_id for record in candidates})
        search_samples = {
            search_id: search.fingerprints.get("calibration", "") for search_id, search in candidate_searches.items()
        }
        records = [record for record in candidates if search_samples.get(record.search_id) in samples[record.mask]]
        mask_methods = [_method(record) for record in records if record.mask]
        records = [record for record in records if record.mask or _method(record) in mask_methods]
        n_masks = Counter((*searchers_by_mask[mask], sizes[mask]) for mask in {record.mask for record in records})
        for record in with_distinct_ways(records):
            found_by = [*searchers_by_mask[record.mask]]
            size = sizes[record.mask]
            recovered.append(RecoveredMask(model, found_by, size, record, is_only_mask=n_masks[*found_by, size] == 1))
    return recovered


def _method(record: RecoveryRecord) -> object:
    """Return how a model was trained, in as much detail as is recorded."""
    return record.settings or record.way


def with_distinct_ways(records: Sequence[RecoveryRecord]) -> list[RecoveryRecord]:
    """Return the recoveries of one model, with distinct names of their recovery methods.

    If recoveries have the same method, the settings in which they differ are added to its name. If no difference is
    recorded, as in older records, the ids of recoveries of the same mask are added.
    """
    settings_by_way: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record.settings:
            settings_by_way.setdefault(record.way, []).append(record.settings)
    keys_by_way = {way: _distinguishing_keys(settings) for way, settings in settings_by_way.items()}
    renamed = []
    for record in records:
        keys = keys_by_way[record.way] if record.settings else []
        details = [f"{key.removeprefix('choices.')}={as_typed(record.settings.get(key))}" for key in keys]
        label = ", ".join([record.way, *details] if record.way else details)
        renamed.append(replace(record, way=label))
    times = Counter((record.mask, record.way) for record in renamed)
    unique = []
    for record in renamed:
        if times[record.mask, record.way] > 1:
            record = replace(record, way=f"{record.way} {record.recovery_id}".lstrip())
        unique.append(record)
    return unique


def _distinguishing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return keys whose values distinguish all different settings; a key that separates no more of them is left out."""

    def n_different(*keys: str) -> int:
        return len({repr([setting.get(key) for key in keys]) for setting in settings})

    chosen: list[str] = []
    for key in dict.fromkeys(key for setting in settings for key in setting):
        if n_different(*chosen, key) > n_different(*chosen):
            chosen.append(key)
    return chosen
