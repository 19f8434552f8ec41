"""The durable record of every evaluation: nothing in it is ever computed twice.

The ledger is one SQLite file. A row holds the losses of one mask on one shard of one calibration, sample by sample, or
a statistic of the dense model on that shard. Rows are committed, with the write-ahead log synced, before any searcher
sees a score that is computed from them, so a search that is killed loses only the evaluations that are in progress.
Several searches and processes may share the file. SQLite checks the structure of its pages, but not the values in
them, so each row has a checksum of its other columns.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock

from raysearch.core.evaluations import Values
from raysearch.core.json import from_json, to_json
from raysearch.core.mask import Mask
from raysearch.core.statistic import Subject
from raysearch.errors import UserError
from raysearch.generation.score import ScoredText
from raysearch.ledger.machine import reserve_for_this_machine
from raysearch.ledger.schema import CREATE_TABLES, ROWS, SCHEMA_VERSION, TABLES, UPGRADES
from raysearch.text.sentences import what_failed

_log = logging.getLogger(__name__)
_LOCKED_S = 60.0  # SQLite's timeout while another program has the file locked


def checksum(*values: object) -> int:
    """Return the CRC-32 of a row's other columns, in order."""
    crc = 0
    for value in values:
        crc = zlib.crc32(value if isinstance(value, bytes) else repr(value).encode(), crc)
    return crc


def put(connection: sqlite3.Connection, table: str, rows: Iterable[tuple[object, ...]], conflict: str) -> None:
    """Write rows with their checksums.

    Args:
        connection: The connection to the ledger's file, in a transaction.
        table: The name of one of the tables of `ROWS`.
        rows: The values of the columns but ``checksum``.
        conflict: ``IGNORE`` keeps a row of the same key that is already in the table; ``REPLACE`` replaces it.
    """
    rows_with_checksums = [(*row, checksum(*row)) for row in rows]
    connection.executemany(f"INSERT OR {conflict} INTO {table} VALUES (?, ?, ?, ?, ?)", rows_with_checksums)


class Ledger:
    """All recorded evaluations, by calibration, mask and shard.

    Args:
        path: The SQLite file. The file and its folder are created if they do not exist.

    Raises:
        UserError: The file cannot be opened, is no ledger, is of another version, or is in use on another machine.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.explaining():
            self._file = path.resolve()  # absolute, since :memory: is no file for SQLite
            if self._file.exists() and not self._file.is_file():
                raise OSError(errno.EINVAL, "it is not a file, but a folder or a device")
            places = (self._file, self._file.parent)
            self.is_read_only = self._file.is_file() and not all(os.access(place, os.W_OK) for place in places)
            if not self.is_read_only:
                if self._file.parent.is_file() or self._file.parent.is_char_device():
                    raise OSError(errno.ENOTDIR, "its folder is a file or a device")
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self.file_with_suffix("lock").touch()  # FileLock would wait forever if the file cannot be created
            self.connection = sqlite3.connect(self.address, uri=True, timeout=_LOCKED_S, isolation_level=None)
            # Damaged text that cannot be decoded is read too, since its checksum is wrong.
            self.connection.text_factory = lambda content: content.decode(errors="surrogateescape")
            self._machine: BinaryIO | None = None
            try:
                if self.is_read_only:
                    self._check_format((SCHEMA_VERSION,))
                else:
                    # SQLite does not wait for other processes when it changes the journal mode.
                    with FileLock(self.file_with_suffix("lock"), fallback_to_soft=False):
                        machine_file = self._file.with_name(f"{self._file.name}-machine")
                        self._machine = reserve_for_this_machine(path, machine_file)
                        self._prepare()
                self._identity = self._file.stat()
            except BaseException:
                self.close()  # an open connection would keep the next one from merging the log into the file
                raise

    def file_with_suffix(self, name: str) -> Path:
        """Return the path of a file that belongs to the ledger, such as a lock: ``ledger.db.NAME``."""
        return self._file.with_name(f"{self._file.name}.{name}")

    @property
    def address(self) -> str:
        """The file as a URI for SQLite, with the mode in which it may be opened."""
        if not self.is_read_only:
            return self._file.as_uri()
        log = self._file.with_name(f"{self._file.name}-wal")
        if log.is_file() and log.stat().st_size > 0:
            return f"{self._file.as_uri()}?mode=ro"
        # With mode=ro, SQLite would need to create files next to it, which a read-only folder does not allow.
        return f"{self._file.as_uri()}?immutable=1"

    def _prepare(self) -> None:
        """Create the tables of a new file, or upgrade an old file to this format."""
        version = self._check_format((0, *UPGRADES, SCHEMA_VERSION))
        tables = {name for (name,) in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version == 0 and tables - TABLES:
            raise UserError(f"ledger={self.path} is a database of something else; name another file with ledger=…")
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        if version == SCHEMA_VERSION:
            return
        if version:
            _log.info("%s is converted from format %d to %d", self.path, version, SCHEMA_VERSION)
        upgrades = [UPGRADES[old_version] for old_version in range(version, SCHEMA_VERSION)] if version else []
        statements = "\n".join([*upgrades, CREATE_TABLES, f"PRAGMA user_version = {SCHEMA_VERSION};"])
        self.connection.executescript(f"BEGIN IMMEDIATE;\n{statements}\nCOMMIT;")

    def _check_format(self, supported: Collection[int]) -> int:
        """Return the file's format, or refuse one that is not supported."""
        version: int = self.connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in supported:
            raise UserError(
                f"ledger={self.path} was written by another version of raysearch (format {version}, this one reads "
                f"{SCHEMA_VERSION}); name another file with ledger=…"
            )
        return version

    def evaluations(self, calibration: str, subjects: Iterable[Subject]) -> dict[Subject, dict[int, Values]]:
        """Return the recorded evaluations of masks or statistics on a calibration.

        Args:
            calibration: The fingerprint of the calibration.
            subjects: The masks or statistics.

        Returns:
            For each subject that has a recorded shard, the values by shard.

        Raises:
            UserError: The file cannot be read, or a row is damaged.
        """
        by_text = {str(subject): subject for subject in subjects}
        condition = "calibration = ? AND subject IN (SELECT value FROM json_each(?))"
        shards_by_text: dict[str, dict[int, Values]] = defaultdict(dict)
        for _, text, shard, samples in self.rows("evaluations", condition, calibration, json.dumps([*by_text])):
            shards_by_text[text][shard] = np.frombuffer(samples, dtype="<f8")
        return {by_text[text]: shards for text, shards in shards_by_text.items()}

    def masks(self, calibration: str) -> Iterator[tuple[Mask, dict[int, Values]]]:
        """Yield every mask that has a recorded shard of a calibration, with its samples' losses by shard."""
        rows = self.rows("evaluations", "calibration = ? AND subject GLOB '{*' ORDER BY subject", calibration)
        for text, group in groupby(rows, key=lambda row: row[1]):
            yield Mask.parse(text), {shard: np.frombuffer(samples, dtype="<f8") for _, _, shard, samples in group}

    def record(
        self,
        calibration: str,
        shard: int,
        values: Mapping[Subject, Values],
        texts: Mapping[Subject, Sequence[ScoredText]] | None = None,
    ) -> None:
        """Write the results of a unit, all or none. A row that another process wrote first stays.

        Args:
            calibration: The fingerprint of the calibration.
            shard: The shard's index, from 0.
            values: The values of each mask, or of a statistic.
            texts: The generated texts of each mask, one for each sample; None if nothing was generated.

        Raises:
            UserError: The file cannot be written.
        """
        value_rows = [
            (calibration, str(subject), shard, subject_values.astype("<f8").tobytes())
            for subject, subject_values in values.items()
        ]
        text_rows = [
            (calibration, str(mask), shard, zlib.compress(to_json([*mask_texts], list[ScoredText]).encode(), level=9))
            for mask, mask_texts in (texts or {}).items()
        ]
        with self.transaction() as connection:
            put(connection, "evaluations", value_rows, "IGNORE")
            put(connection, "texts", text_rows, "IGNORE")

    def texts(self, calibration: str, mask: Mask) -> list[ScoredText]:
        """Return the texts that a model without the mask's layers generated.

        Args:
            calibration: The fingerprint of the calibration.
            mask: The mask.

        Returns:
            One text for each sample of the recorded shards, in order; empty if there are none.

        Raises:
            UserError: The file cannot be read, or a row is damaged.
        """
        texts: list[ScoredText] = []
        for *_, content in self.rows("texts", "calibration = ? AND mask = ? ORDER BY shard", calibration, str(mask)):
            texts.extend(from_json(list[ScoredText], zlib.decompress(content).decode()))
        return texts

    def read(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows of a query, each read when it is needed.

        Args:
            query: The SQL statement.
            values: The values of its parameters.

        Yields:
            A row, as SQLite returns it.

        Raises:
            UserError: The file cannot be read.
        """
        with self.explaining():
            # `yield from` would close the cursor when a loop ends early, perhaps after the file was closed.
            for row in self.connection.execute(query, values):  # noqa: UP028
                yield row

    def rows(self, table: str, where: str, *values: str) -> Iterator[Any]:
        """Yield rows of a table of `ROWS`, as `checked` does: the columns of the key, then the content.

        Args:
            table: The table's name.
            where: The SQL condition.
            values: The values of its parameters.

        Returns:
            An iterator of rows.

        Raises:
            UserError: The file cannot be read, or a row is damaged.
        """
        key, content = ROWS[table]
        return self.checked(f"SELECT {', '.join(key)}, {content}, checksum FROM {table} WHERE {where}", values)

    def checked(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows of a query, without the last column, which is the checksum of the preceding ones.

        Args:
            query: The SQL statement.
            values: The values of its parameters.

        Yields:
            A row without its checksum.

        Raises:
            UserError: The file cannot be read, or a row does not have its checksum: a disk or a person has changed it.
        """
        for *row, stored_checksum in self.read(query, values):
            if stored_checksum != checksum(*row):
                raise _explained(self.path, sqlite3.DatabaseError("malformed: an entry is not what was written"))
            yield row

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit all changes of the ``with`` block together, or none of them; other processes wait.

        Raises:
            UserError: The file cannot be written, or it was deleted, moved or replaced. It is not changed.
        """
        if self.is_read_only:
            raise UserError(
                f"ledger={self.path} cannot be written, nor perhaps its folder; copy it to another place, or name "
                "another with ledger=…"
            )
        if not self._is_in_place():
            raise UserError(
                f"ledger={self.path} was deleted, moved or replaced while it was in use; put it back, and the same "
                "command goes on from there"
            )
        with self.explaining(), self.connection:
            self.connection.execute("BEGIN IMMEDIATE")
            yield self.connection

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Turn errors of SQLite and of the system into sentences with a remedy.

        Raises:
            UserError: SQLite or the system reports a problem of the file, its companion files or their disk.
        """
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeError) as error:
            raise _explained(self.path, error) from error

    def compact(self) -> None:
        """Return the space of deleted rows to the disk.

        Raises:
            UserError: Another process uses the file, or its disk has no room for a copy.
        """
        with self.explaining():
            self.connection.execute("VACUUM")
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _is_in_place(self) -> bool:
        """Return whether the path still leads to the open file; SQLite would continue to write into a deleted one."""
        with suppress(OSError):
            return os.path.samestat(self._file.stat(), self._identity)
        return False  # it was deleted

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        self.connection.close()
        if self._machine is not None:
            self._machine.close()


def _explained(path: Path, error: Exception) -> UserError:
    """Return an error that describes the problem of the file or its disk, and the remedy."""
    cause = what_failed(error)
    if "full" in cause or "No space" in cause:
        remedy = "free some space on its disk, and the same command goes on from there"
    elif any(word in cause for word in ("malformed", "not a database", "decode")):
        remedy = "put back a copy of it, or move it away and name another with ledger=…"
    elif "locked" in cause:
        remedy = "another program has kept it locked for a minute; end that, and the same command goes on from there"
    else:
        remedy = "name another with ledger=…, or another folder with store=…"
    return UserError(f"ledger={path} cannot be used ({cause}); {remedy}")


@contextmanager
def opened(path: Path) -> Iterator[Ledger]:
    """Open an existing ledger, and close it at the end.

    Raises:
        UserError: There is no ledger at the path, or it cannot be used.
    """
    if not path.is_file():
        stores_below = sorted(file.parent for file in path.parent.glob(f"*/{path.name}"))
        if stores_below:
            remedy = f"did you mean --store {shlex.quote(str(stores_below[0]))}?"
        else:
            remedy = "start a search with raysearch search, or name it with --store"
        raise UserError(f"there is no ledger at {path}; {remedy}")
    with closing(Ledger(path)) as ledger:
        yield ledger
