"""What a finished search has left in the ledger for later commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysearch.errors import UserError
from raysearch.ledger.searches import SearchRecord


def found_by_size(run: SearchRecord) -> dict[int, Mapping[str, Any]]:
    """What holds ``removed`` and ``loss`` of the best mask of each number of layers; the last is the result itself.

    Raises:
        UserError: The search has not finished.
    """
    if run.result is None:
        raise UserError(
            f"SEARCH={run.search_id} is {run.state}, so nothing is found yet; first: raysearch resume {run.search_id}"
        )
    return {entry["n_removed"]: entry for entry in run.result["path"]} | {len(run.result["removed"]): run.result}


def found_of_size(run: SearchRecord, remove: int | None) -> Mapping[str, Any]:
    """The best mask of so many layers, as `found_by_size`; None for the mask that the search found.

    Raises:
        UserError: The search has not finished, or has no such mask.
    """
    found = found_by_size(run)
    size = max(found) if remove is None else remove
    if size not in found:
        raise UserError(
            f"--remove={remove} is no number of layers that {run.search_id} has a mask of; "
            f"choose one of: {', '.join(map(str, found))}"
        )
    return found[size]


def check_weights(run: SearchRecord, model_fingerprint: str) -> None:
    """Refuses a model that is not the one that a search was made on.

    Raises:
        UserError: Its files have changed since.
    """
    if run.fingerprints.get("model", model_fingerprint) != model_fingerprint:
        raise UserError(
            f"SEARCH={run.search_id} is of another model: its files have changed since; put back the old ones, "
            f"or start anew "
            "with raysearch search"
        )
