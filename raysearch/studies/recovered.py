"""The recoveries that belong to a study, each under a name that no other has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysearch.core.formatting import as_typed
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger
from raysearch.recovery.record import RecoveryRecord, recoveries_of
from raysearch.searching.record import SEARCHES, SearchRecord
from raysearch.studies.record import CellRecord
from raysearch.studies.result import RecoveredMask


def recovered_masks(searches: Sequence[tuple[CellRecord, SearchRecord]], ledger: Ledger) -> list[RecoveredMask]:
    """Return the recoveries of the masks that were found, and those of the dense models that are their controls.

    A mask that was found on other samples is another one: its rows are kept apart from those.
    """
    found_by: dict[tuple[str, str], dict[Mask, dict[str, None]]] = {}
    samples: dict[Mask, set[str]] = {}
    for cell, search in searches:
        if (result := search.result) is not None:
            masks = found_by.setdefault((cell.model, result.fingerprints["model"]), {Mask(): {"dense": None}})
            masks.setdefault(result.mask, {})[cell.searcher] = None
            for mask in (Mask(), result.mask):
                samples.setdefault(mask, set()).add(result.fingerprints["calibration"])
    found = list[RecoveredMask]()
    for (model, fingerprint), masks in found_by.items():
        known = recoveries_of(ledger, fingerprint, masks)
        of = SEARCHES.some(ledger, {record.search_id for record in known})
        drawn = {name: search.fingerprints.get("calibration", "") for name, search in of.items()}
        own = [one for one in known if drawn.get(one.search_id) in samples[one.mask]]
        ways = [_way(one) for one in own if one.mask]
        own = [one for one in own if one.mask or _way(one) in ways]
        others = Counter((*masks[mask], len(mask)) for mask in {one.mask for one in own})
        for one in told_apart(own):
            whose = *masks[one.mask], len(one.mask)
            found.append(RecoveredMask(model, [*masks[one.mask]], len(one.mask), one, alone=others[whose] == 1))
    return found


def _way(record: RecoveryRecord) -> object:
    """Return all that is known of how a model was trained."""
    return record.settings or record.way


def told_apart(records: Sequence[RecoveryRecord]) -> list[RecoveryRecord]:
    """Return the recoveries of one model, with what differs between those of one way added to the name of their way.

    Where nothing is known to differ, as on older records, two of one mask have their ids there.
    """
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for one in records:
        alike.setdefault(one.way, []).append(one.settings)
    added = {way: _telling([one for one in settings if one]) for way, settings in alike.items()}
    named = []
    for one in records:
        keys = added[one.way] if one.settings else []
        more = [f"{key.removeprefix('choices.')}={as_typed(one.settings.get(key))}" for key in keys]
        named.append(replace(one, way=", ".join(filter(None, [one.way, *more]))))
    times = Counter((one.mask, one.way) for one in named)
    return [
        one if times[one.mask, one.way] == 1 else replace(one, way=f"{one.way} {one.recovery_id}".lstrip())
        for one in named
    ]


def _telling(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return as few keys as tell all different settings apart, by what stands first."""

    def n_different(*keys: str) -> int:
        return len({repr([one.get(key) for key in keys]) for one in settings})

    chosen: list[str] = []
    for key in dict.fromkeys(key for one in settings for key in one):
        if n_different(*chosen, key) > n_different(*chosen):
            chosen.append(key)
    return chosen
