"""Searches and studies on record: a row each, that a class is written to and read from.

A field of text is a column as it is, any other one a column of JSON, so that ``sqlite3`` shows them all.
"""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from raysearch.core.json import from_json, to_record
from raysearch.errors import UserError, did_you_mean, redacted
from raysearch.ledger.ledger import Ledger, checksum

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Table(Generic[_Record]):
    """A table of the ledger as records of a class.

    Args:
        record: The class, a dataclass with a field for each column but ``checksum``. Its first field is the record's
            id; it has ``updated``, when the record last changed, and ``mlflow_run_id``.
        kind: What one of them is: ``search``.
        merge: Gives the record to keep of two of one id in two ledgers, the first ours, or refuses with `UserError`.
    """

    record: type[_Record]
    name: str
    kind: str
    merge: Callable[[_Record, _Record], _Record]

    def write(self, ledger: Ledger, record: _Record) -> None:
        """Put a record in the place of the one of its id, if there is one."""
        self.change(ledger, getattr(record, self._id), lambda before: record)

    def change(self, ledger: Ledger, record_id: str, change: Callable[[_Record | None], _Record]) -> None:
        """Put a record in the place of the one that it is made from; nobody else writes meanwhile.

        `change` gives the new record. It is given the old one; None if there is none, or a damaged one.
        """
        with ledger.transaction() as connection:
            try:
                before = self.get(ledger, record_id)
            except UserError:
                before = None
            self._put(connection, change(before))

    def take_over(self, ledger: Ledger, other: Ledger) -> int:
        """Take over the records of another ledger, in a transaction that is open; return how many have changed.

        Raises:
            UserError: Two of one id contradict each other.
        """
        changed = 0
        for theirs in self.all(other):
            ours = self.get(ledger, getattr(theirs, self._id))
            record = theirs if ours is None else self.merge(ours, theirs)
            if record != ours:
                self._put(ledger.connection, record)
                changed += 1
        return changed

    def get(self, ledger: Ledger, record_id: str) -> _Record | None:
        """Return the record of an id; None if there is none."""
        return self.some(ledger, [record_id]).get(record_id)

    def some(self, ledger: Ledger, record_ids: Iterable[str]) -> dict[str, _Record]:
        """Return those of some records that the ledger has, by id."""
        ids = json.dumps(list(record_ids))
        found = self._select(ledger, f"WHERE {self._id} IN (SELECT value FROM json_each(?))", ids)
        return {getattr(record, self._id): record for record in found}

    def all(self, ledger: Ledger) -> list[_Record]:
        """Return every record, the newest first."""
        return self._select(ledger, f"ORDER BY updated DESC, {self._id}")

    def damaged(self, ledger: Ledger) -> list[str]:
        """Return the ids of the records that are not what was written."""
        found = []
        for name in self.ids(ledger):
            try:
                self.get(ledger, name)
            except (UserError, ValueError):
                found.append(name)
        return found

    def ids(self, ledger: Ledger, most: int = -1) -> list[str]:
        """Return the ids of all records, or of the `most`, the newest first."""
        return self._ids(ledger, "", most=most)

    def names(self, ledger: Ledger, name: str) -> list[str]:
        """Return the ids of the records that an id, MLflow's id, or else the start of an id names, the newest first."""
        exact = self._ids(ledger, f"WHERE {self._id} = ? OR mlflow_run_id = ?", name, name)
        return exact or self._ids(ledger, f"WHERE ? <> '' AND substr({self._id}, 1, length(?)) = ?", name, name, name)

    def find(self, ledger: Ledger, name: str) -> _Record:
        """Return the one record that a name fits; see `find_in`."""
        found: _Record = find_in(ledger, name, self)
        return found

    def _put(self, connection: sqlite3.Connection, record: _Record) -> None:
        values = [
            redacted(getattr(record, name)) if _is_text(hint) else to_record(getattr(record, name), hint)
            for name, hint in self._hints.items()
        ]
        places = ", ".join("?" * (len(values) + 1))
        query = f"INSERT OR REPLACE INTO {self.name} ({self._columns}) VALUES ({places})"
        connection.execute(query, (*values, checksum(*values)))

    @property
    def _id(self) -> str:
        return next(iter(self._hints))

    @property
    def _columns(self) -> str:
        return ", ".join([*self._hints, "checksum"])

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """The types of the fields by name, in order."""
        hints = get_type_hints(self.record, include_extras=True)
        return {field.name: hints[field.name] for field in fields(self.record)}  # type: ignore[arg-type]

    def _ids(self, ledger: Ledger, where: str, *values: str, most: int = -1) -> list[str]:
        order = f"ORDER BY updated DESC, {self._id} LIMIT {most}"
        rows = ledger.read(f"SELECT {self._id} FROM {self.name} {where} {order}", values)
        return [name for (name,) in rows]

    def _select(self, ledger: Ledger, where: str, *values: str) -> list[_Record]:
        return [self._read(row) for row in ledger.checked(f"SELECT {self._columns} FROM {self.name} {where}", values)]

    def _read(self, row: Sequence[Any]) -> _Record:
        return self.record(
            **{
                name: value if _is_text(hint) else from_json(hint, value)
                for (name, hint), value in zip(self._hints.items(), row, strict=True)
            }
        )


def find_in(ledger: Ledger, name: str, *tables: Table[Any]) -> Any:
    """Return the one record that a name fits: as of `Table.names`, or ``latest``, which is of the first table.

    Where several fit, they are listed from the last table on.

    Raises:
        UserError: There is no such record, or the name fits several.
    """
    first, argument = tables[0], "|".join(table.kind.upper() for table in tables)
    if name == "latest":
        fits = [(first, one) for one in first.ids(ledger, most=1)]
    else:
        fits = [(table, one) for table in reversed(tables) for one in table.names(ledger, name)]
    if len(fits) == 1:
        ((table, record_id),) = fits
        return table.get(ledger, record_id)
    if fits:
        raise UserError(f"{argument}={name!r} fits {', '.join(one for _, one in fits)}; give more of the name")
    known = [one for table in reversed(tables) for one in table.ids(ledger)]
    if name == "latest" or not known:
        raise UserError(
            f"{first.kind.upper()}={name!r} is unknown: {ledger.path} holds no {first.kind} yet; start one with "
            f"raysearch {first.kind}"
        )
    remedy = did_you_mean(name, [*known, "latest"])
    if (Path(name) / ledger.path.name).is_file():
        remedy = f"a folder of searches is named with --store {shlex.quote(name)}"
    raise UserError(f"{argument}={name!r} is not in {ledger.path}; {remedy}")


def now() -> str:
    """Return the time as records hold it: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(sep=" ", timespec="microseconds")


def _is_text(hint: Any) -> bool:
    """Return whether a field of this type is a text or nothing."""
    if get_origin(hint) in (Union, UnionType):
        return all(map(_is_text, get_args(hint)))
    return hint in (str, NoneType) or get_origin(hint) is Literal
