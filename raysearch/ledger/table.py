"""Tables of recorded searches and studies: each row is written from and read into a record of a class.

A field of text is stored as it is, and any other field as JSON, so that ``sqlite3`` can show all of them.
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
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger, checksum
from raysearch.text.redaction import redacted
from raysearch.text.sentences import did_you_mean

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class RecordTable(Generic[_Record]):
    """A table of the ledger whose rows are records of a class.

    Args:
        record: The class, a dataclass with a field for each column but ``checksum``. Its first field is the record's
            id. Its field ``updated`` is the time of the record's last change, and ``mlflow_run_id`` the run's id.
        name: The name of the table: ``searches``.
        kind: The name of one record: ``search``.
        merge: Chooses a record when two ledgers have one of the same id. It is called with this ledger's record and
            the other ledger's, and returns the record to keep, or raises `UserError` if they contradict each other.
    """

    record: type[_Record]
    name: str
    kind: str
    merge: Callable[[_Record, _Record], _Record]

    def write(self, ledger: Ledger, record: _Record) -> None:
        """Write a record; it replaces a record of the same id.

        Args:
            ledger: The ledger.
            record: The record.

        Raises:
            UserError: The ledger cannot be written.
        """
        self.change(ledger, getattr(record, self._id), lambda before: record)

    def change(self, ledger: Ledger, record_id: str, change: Callable[[_Record | None], _Record]) -> _Record:
        """Replace a record by one that is computed from it, in one transaction, and return the new one.

        Args:
            ledger: The ledger.
            record_id: The record's id.
            change: Returns the new record of the old one, which is None if there is none or it is damaged.

        Returns:
            The new record, as it is in the ledger.

        Raises:
            UserError: The ledger cannot be written.
        """
        with ledger.transaction() as connection:
            try:
                before = self.get(ledger, record_id)
            except UserError:
                before = None
            after = change(before)
            self._put(connection, after)
        return after

    def take_over(self, ledger: Ledger, other_ledger: Ledger) -> int:
        """Merge the records of another ledger into a ledger, inside the caller's transaction.

        Args:
            ledger: The ledger to which records are added.
            other_ledger: The ledger from which they are read.

        Returns:
            The number of records that were added or changed.

        Raises:
            UserError: Two records of one id contradict each other.
        """
        n_changed = 0
        for other_record in self.all(other_ledger):
            record = self.get(ledger, getattr(other_record, self._id))
            merged = other_record if record is None else self.merge(record, other_record)
            if merged != record:
                self._put(ledger.connection, merged)
                n_changed += 1
        return n_changed

    def get(self, ledger: Ledger, record_id: str) -> _Record | None:
        """Return the record of an id; None if there is none.

        Args:
            ledger: The ledger.
            record_id: The record's id.

        Returns:
            The record, or None.

        Raises:
            UserError: The ledger cannot be read, or the record is damaged.
        """
        return self.by_ids(ledger, [record_id]).get(record_id)

    def by_ids(self, ledger: Ledger, record_ids: Iterable[str]) -> dict[str, _Record]:
        """Return the records of ids; ids without a record are left out.

        Args:
            ledger: The ledger.
            record_ids: The records' ids.

        Returns:
            The records by id.

        Raises:
            UserError: The ledger cannot be read, or a record is damaged.
        """
        ids = json.dumps(list(record_ids))
        records = self._select(ledger, f"WHERE {self._id} IN (SELECT value FROM json_each(?))", ids)
        return {getattr(record, self._id): record for record in records}

    def all(self, ledger: Ledger) -> list[_Record]:
        """Return all records, the newest first."""
        return self._select(ledger, f"ORDER BY updated DESC, {self._id}")

    def damaged(self, ledger: Ledger) -> list[str]:
        """Return the ids of the records that are damaged: those that cannot be read, or have a wrong checksum."""
        damaged_ids = []
        for record_id in self.ids(ledger):
            try:
                self.get(ledger, record_id)
            except (UserError, ValueError):
                damaged_ids.append(record_id)
        return damaged_ids

    def ids(self, ledger: Ledger, most: int = -1) -> list[str]:
        """Return the ids of the records, the newest first.

        Args:
            ledger: The ledger.
            most: The largest number of ids to return; -1 returns all of them.

        Returns:
            The ids, at most `most`.
        """
        return self._ids(ledger, "", most=most)

    def names(self, ledger: Ledger, name: str) -> list[str]:
        """Return the ids of the records that a name fits, the newest first.

        Args:
            ledger: The ledger.
            name: An id, or the id of an MLflow run. If it is neither, the start of an id.

        Returns:
            The ids; empty if no record fits.
        """
        exact = self._ids(ledger, f"WHERE {self._id} = ? OR mlflow_run_id = ?", name, name)
        return exact or self._ids(ledger, f"WHERE ? <> '' AND substr({self._id}, 1, length(?)) = ?", name, name, name)

    def find(self, ledger: Ledger, name: str) -> _Record:
        """Return the record that a name fits, see `find_in`.

        Args:
            ledger: The ledger.
            name: The name.

        Returns:
            The record.

        Raises:
            UserError: There is no such record, or the name fits several.
        """
        record: _Record = find_in(ledger, name, self)
        return record

    def _put(self, connection: sqlite3.Connection, record: _Record) -> None:
        values = [
            redacted(getattr(record, name)) if _is_text(hint) else to_record(getattr(record, name), hint)
            for name, hint in self._hints.items()
        ]
        placeholders = ", ".join("?" * (len(values) + 1))
        query = f"INSERT OR REPLACE INTO {self.name} ({self._columns}) VALUES ({placeholders})"
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
        return [record_id for (record_id,) in rows]

    def _select(self, ledger: Ledger, where: str, *values: str) -> list[_Record]:
        return [self._read(row) for row in ledger.checked(f"SELECT {self._columns} FROM {self.name} {where}", values)]

    def _read(self, row: Sequence[Any]) -> _Record:
        return self.record(
            **{
                name: value if _is_text(hint) else from_json(hint, value)
                for (name, hint), value in zip(self._hints.items(), row, strict=True)
            }
        )


def find_in(ledger: Ledger, name: str, *tables: RecordTable[Any]) -> Any:
    """Return the record that a name fits.

    Args:
        ledger: The ledger.
        name: A name as in `RecordTable.names`, or ``latest`` for the newest record of the first table.
        tables: The tables to search. An error message lists the records of the last table first.

    Returns:
        The record, of the type of the table that contains it.

    Raises:
        UserError: There is no such record, or the name fits several.
    """
    first = tables[0]
    argument = "|".join(table.kind.upper() for table in tables)
    if name == "latest":
        matches = [(first, record_id) for record_id in first.ids(ledger, most=1)]
    else:
        matches = [(table, record_id) for table in reversed(tables) for record_id in table.names(ledger, name)]
    if len(matches) == 1:
        ((table, record_id),) = matches
        return table.get(ledger, record_id)
    if matches:
        matching_ids = ", ".join(record_id for _, record_id in matches)
        raise UserError(f"{argument}={name!r} fits {matching_ids}; give more of the name")
    all_ids = [record_id for table in reversed(tables) for record_id in table.ids(ledger)]
    if name == "latest" or not all_ids:
        raise UserError(
            f"{first.kind.upper()}={name!r} is unknown: {ledger.path} holds no {first.kind} yet; start one with "
            f"raysearch {first.kind}"
        )
    remedy = did_you_mean(name, [*all_ids, "latest"])
    if (Path(name) / ledger.path.name).is_file():
        remedy = f"a folder of searches is named with --store {shlex.quote(name)}"
    raise UserError(f"{argument}={name!r} is not in {ledger.path}; {remedy}")


def now() -> str:
    """Return the current time in the format of records: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(sep=" ", timespec="microseconds")


def _is_text(hint: Any) -> bool:
    """Return whether a field of this type is a text or None."""
    if get_origin(hint) in (Union, UnionType):
        return all(map(_is_text, get_args(hint)))
    return hint in (str, NoneType) or get_origin(hint) is Literal
