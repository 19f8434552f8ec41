"""Records by the names that people type: an id, the start of one, MLflow's id, or ``latest``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from raysearch.errors import UserError, did_you_mean
from raysearch.ledger.ledger import Ledger

_Record = TypeVar("_Record")


def named(name: str, records: Sequence[_Record], ids: Callable[[_Record], tuple[str, str | None]]) -> list[_Record]:
    """The records that a name fits: those that are called just that, else those whose id begins with it.

    Args:
        name: What was typed.
        records: Among these.
        ids: A record's id, and MLflow's of it.
    """
    exact = [one for one in records if name in ids(one)]
    return exact or [one for one in records if name and ids(one)[0].startswith(name)]


def find(
    name: str, records: Sequence[_Record], ids: Callable[[_Record], tuple[str, str | None]], kind: str, ledger: Ledger
) -> _Record:
    """The one record that a name fits; ``latest`` is the first.

    Args:
        name: What was typed.
        records: All of the ledger, the newest first.
        ids: As `named`.
        kind: What they are: ``search`` or ``study``.
        ledger: Where they are from.

    Raises:
        UserError: There is no such record, or the name fits several.
    """
    argument = {"search": "SEARCH", "study": "STUDY"}[kind]
    if not records:
        raise UserError(
            f"{argument}={name!r} is unknown: {ledger.path} holds no {kind} yet; start one with raysearch {kind}"
        )
    if name == "latest":
        return records[0]
    matches = named(name, records, ids)
    if len(matches) > 1:
        raise UserError(f"{argument}={name!r} fits {', '.join(ids(one)[0] for one in matches)}; give more of the name")
    if not matches:
        known = [*(ids(one)[0] for one in records), "latest"]
        raise UserError(f"{argument}={name!r} is not in {ledger.path}; {did_you_mean(name, known)}")
    return matches[0]
