"""The durable record of every evaluation: nothing in it is ever computed twice.

One SQLite file. A row is what one mask lost on one shard of one calibration, sample by sample, or a statistic of the
dense model there. Rows are committed, with the write-ahead log synced, before any searcher sees an answer made of them;
so a search killed at any moment loses only what was in flight. Several searches and processes may share the file.
SQLite looks after its own pages, not after what is in them: each row has a checksum of its other columns.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from raysearch.core.json import from_json, to_json
from raysearch.core.mask import Mask
from raysearch.core.statistic import Subject
from raysearch.errors import UserError, what_failed
from raysearch.generation.score import ScoredText
from raysearch.ledger.machine import keep_for_this_machine

SubjectT = TypeVar("SubjectT", bound=Subject)

SCHEMA_VERSION = 7
#: The statements that make a ledger of the next format of one of this format. Tests keep a small ledger of each.
UPGRADES: dict[int, str] = {}
_LOCKED_S = 60.0  # how long another program may keep the file locked
TABLES = {"evaluations", "claims", "searches", "studies", "assessments", "texts"}
#: The tables that are not records of a class: the columns that name a row, and the one that two ledgers agree on.
ROWS = {
    "evaluations": (("calibration", "subject", "shard"), "samples"),
    "texts": (("calibration", "mask", "shard"), "texts"),
    "assessments": (("model", "mask", "assessment"), "result"),
}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS evaluations (
    calibration TEXT NOT NULL,     -- fingerprint
    subject     TEXT NOT NULL,     -- a mask, {21,22,25}, or a statistic's name
    shard       INTEGER NOT NULL,  -- 0-based
    samples     BLOB NOT NULL,     -- little-endian float64: each sample's loss, or the statistic's rows
    checksum    INTEGER NOT NULL,  -- CRC-32 of the other columns
    PRIMARY KEY (calibration, subject, shard)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claims (
    calibration TEXT NOT NULL,
    subject     TEXT NOT NULL,
    shard       INTEGER NOT NULL,
    owner       TEXT NOT NULL,     -- see claims.py
    PRIMARY KEY (calibration, subject, shard)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS searches (
    search_id     TEXT PRIMARY KEY,
    state         TEXT NOT NULL,   -- running | finished | stopped | failed | interrupted
    failure       TEXT,            -- why, if it failed
    updated       TEXT NOT NULL,   -- UTC, ISO 8601
    mlflow_run_id TEXT,
    checksum      INTEGER NOT NULL,
    fingerprints  TEXT NOT NULL,   -- JSON: of the model, the text and the whole calibration
    config        TEXT NOT NULL,   -- JSON, resolved
    result        TEXT NOT NULL    -- JSON: null before there is one
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS studies (
    study_id      TEXT PRIMARY KEY,
    updated       TEXT NOT NULL,   -- UTC, ISO 8601
    mlflow_run_id TEXT,
    checksum      INTEGER NOT NULL,
    config        TEXT NOT NULL,   -- JSON, resolved
    cells         TEXT NOT NULL,   -- JSON: each cell's labels and its search
    facts         TEXT NOT NULL,   -- JSON
    assessed      TEXT NOT NULL    -- JSON
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS assessments (
    model      TEXT NOT NULL,      -- fingerprint of the dense model
    mask       TEXT NOT NULL,      -- {21,22,25}
    assessment TEXT NOT NULL,      -- fingerprint of what is assessed, see assessments.py
    result     TEXT NOT NULL,      -- JSON
    checksum   INTEGER NOT NULL,
    PRIMARY KEY (model, mask, assessment)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS texts (
    calibration TEXT NOT NULL,     -- fingerprint
    mask        TEXT NOT NULL,     -- {21,22,25}
    shard       INTEGER NOT NULL,  -- 0-based
    texts       BLOB NOT NULL,     -- zlib of JSON: what was generated for each sample
    checksum    INTEGER NOT NULL,
    PRIMARY KEY (calibration, mask, shard)
) WITHOUT ROWID;
"""


def checksum(*values: object) -> int:
    """Return the CRC-32 of a row's other columns, in order."""
    total = 0
    for value in values:
        total = zlib.crc32(value if isinstance(value, bytes) else repr(value).encode(), total)
    return total


def put(connection: sqlite3.Connection, table: str, rows: Iterable[tuple[object, ...]], conflict: str) -> None:
    """Write rows of a table of `ROWS` with their checksums; what is there already stays by ``IGNORE`` as `conflict`."""
    whole = [(*row, checksum(*row)) for row in rows]
    connection.executemany(f"INSERT OR {conflict} INTO {table} VALUES (?, ?, ?, ?, ?)", whole)


class Ledger:
    """Every evaluation ever made, by calibration, mask and shard.

    Args:
        path: The SQLite file; made with its folder if it does not exist.

    Raises:
        UserError: The file cannot be opened, is not a ledger, was written by another version, or is in use on another
            machine.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.explaining():
            self._file = path.resolve()  # one name for all that lies beside it; SQLite takes :memory: for no file
            if self._file.exists() and not self._file.is_file():
                raise OSError(errno.EINVAL, "it is not a file, but a folder or a device")
            places = (self._file, self._file.parent)
            self.is_read_only = self._file.is_file() and not all(os.access(one, os.W_OK) for one in places)
            if not self.is_read_only:
                if self._file.parent.is_file() or self._file.parent.is_char_device():
                    raise OSError(errno.ENOTDIR, "its folder is a file or a device")
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self.beside("lock").touch()  # FileLock would try for ever where no file can be made
            self.connection = sqlite3.connect(self.address, uri=True, timeout=_LOCKED_S, isolation_level=None)
            # Also where it is damaged and cannot be decoded: its checksum tells.
            self.connection.text_factory = lambda content: content.decode(errors="surrogateescape")
            self._machine: BinaryIO | None = None
            try:
                if self.is_read_only:
                    self._check_format((SCHEMA_VERSION,))
                else:
                    # SQLite does not wait for a change of journal mode
                    with FileLock(self.beside("lock"), fallback_to_soft=False):
                        self._machine = keep_for_this_machine(path, self._file.with_name(f"{self._file.name}-machine"))
                        self._prepare()
                self._identity = self._file.stat()
            except BaseException:
                self.close()  # one left open would keep the next from folding its log into the file
                raise

    def beside(self, name: str) -> Path:
        """Return the place of a file that belongs to this one, such as a lock."""
        return self._file.with_name(f"{self._file.name}.{name}")

    @property
    def address(self) -> str:
        """The file as SQLite takes it, with how it may be opened."""
        if not self.is_read_only:
            return self._file.as_uri()
        log = self._file.with_name(f"{self._file.name}-wal")
        has_log = log.is_file() and log.stat().st_size > 0
        # without a log to read, SQLite must be told that it needs no files beside this one
        return f"{self._file.as_uri()}?{'mode=ro' if has_log else 'immutable=1'}"

    def _prepare(self) -> None:
        """Make the tables of a new file, or bring an old one to this format."""
        version = self._check_format((0, *UPGRADES, SCHEMA_VERSION))
        tables = {name for (name,) in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version == 0 and tables - TABLES:
            raise UserError(f"ledger={self.path} is a database of something else; name another file with ledger=…")
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        steps = [UPGRADES[one] for one in range(version, SCHEMA_VERSION)] if version else []
        whole = "\n".join([*steps, _SCHEMA, f"PRAGMA user_version = {SCHEMA_VERSION};"])
        if version != SCHEMA_VERSION:
            self.connection.executescript(f"BEGIN IMMEDIATE;\n{whole}\nCOMMIT;")

    def _check_format(self, known: Collection[int]) -> int:
        """Return the file's format, which must be one of those that are known."""
        version: int = self.connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in known:
            raise UserError(
                f"ledger={self.path} was written by another version of raysearch (format {version}, this one reads "
                f"{SCHEMA_VERSION}); name another file with ledger=…"
            )
        return version

    def known(
        self, calibration: str, subjects: Iterable[SubjectT]
    ) -> dict[SubjectT, dict[int, npt.NDArray[np.float64]]]:
        """Return what is known of some masks or statistics on the calibration of a fingerprint.

        Returns:
            For each subject of which anything is known, by shard: each sample's loss, before it is divided by its
            measure's count, float64 [B], or the statistic's rows, flat.
        """
        by_text = {str(subject): subject for subject in subjects}
        named = "calibration = ? AND subject IN (SELECT value FROM json_each(?))"
        rows = self.rows("evaluations", named, calibration, json.dumps([*by_text]))
        found: dict[SubjectT, dict[int, npt.NDArray[np.float64]]] = defaultdict(dict)
        for _, text, shard, samples in rows:
            found[by_text[text]][shard] = np.frombuffer(samples, dtype="<f8")
        return dict(found)

    def masks(self, calibration: str) -> Iterator[tuple[Mask, dict[int, npt.NDArray[np.float64]]]]:
        """Yield every mask of which anything is known on a calibration, with its samples' losses by shard."""
        rows = self.rows("evaluations", "calibration = ? AND subject GLOB '{*' ORDER BY subject", calibration)
        for text, group in groupby(rows, key=lambda row: row[1]):
            yield Mask.parse(text), {shard: np.frombuffer(samples, dtype="<f8") for _, _, shard, samples in group}

    def record(
        self,
        calibration: str,
        shard: int,
        values: Mapping[Subject, npt.NDArray[np.float64]],
        texts: Mapping[Subject, Sequence[ScoredText]] | None = None,
    ) -> None:
        """Make a unit's values durable, with what was generated for them, all or none.

        What another process wrote first stays.
        """
        losses = [(calibration, str(subject), shard, of.astype("<f8").tobytes()) for subject, of in values.items()]
        packed = [
            (calibration, str(mask), shard, zlib.compress(to_json([*of], list[ScoredText]).encode(), level=9))
            for mask, of in (texts or {}).items()
        ]
        with self.transaction() as connection:
            put(connection, "evaluations", losses, "IGNORE")
            put(connection, "texts", packed, "IGNORE")

    def texts(self, calibration: str, mask: Mask) -> list[ScoredText]:
        """Return what a mask generated for each sample of a calibration, shard by shard; empty if nothing is known."""
        rows = self.rows("texts", "calibration = ? AND mask = ? ORDER BY shard", calibration, str(mask))
        return [one for *_, content in rows for one in from_json(list[ScoredText], zlib.decompress(content).decode())]

    def read(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows that a query gives, read as they are iterated over.

        Raises:
            UserError: The file cannot be read.
        """
        with self.explaining():
            # not yield from, which closes the cursor of a loop that was left, perhaps after the file
            for row in self.connection.execute(query, values):  # noqa: UP028
                yield row

    def rows(self, table: str, where: str, *values: str) -> Iterator[Any]:
        """Yield rows of a table of `ROWS`, as `checked` does."""
        key, content = ROWS[table]
        return self.checked(f"SELECT {', '.join(key)}, {content}, checksum FROM {table} WHERE {where}", values)

    def checked(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows that a query gives, without the last column, which is the checksum of the others.

        Raises:
            UserError: The file cannot be read, or a disk or a hand has changed a row or put it in another place.
        """
        for *row, kept in self.read(query, values):
            if kept != checksum(*row):
                raise _explained(self.path, sqlite3.DatabaseError("malformed: an entry is not what was written"))
            yield row

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Make all that happens inside durable together, or not at all; other processes wait.

        Raises:
            UserError: The file cannot be written, and is as it was before; or it is no longer there.
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
        """Explain what is wrong with the file, those beside it or their disk, and the way out.

        Raises:
            UserError: SQLite or the system has refused something.
        """
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeError) as error:
            raise _explained(self.path, error) from error

    def compact(self) -> None:
        """Give the space of rows that are gone back to the disk.

        Raises:
            UserError: Another process uses the file, or its disk has no room for a copy.
        """
        with self.explaining():
            self.connection.execute("VACUUM")
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _is_in_place(self) -> bool:
        """Return whether the file that is open is the one that others find: SQLite writes on to one that is gone."""
        try:
            return os.path.samestat(self._file.stat(), self._identity)
        except OSError:
            return False

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        self.connection.close()
        if self._machine is not None:
            self._machine.close()


def _explained(path: Path, error: Exception) -> UserError:
    """Return the sentence that says what is wrong with the file or its disk, and the remedy."""
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
    """A ledger that is there, closed at the end.

    Raises:
        UserError: There is none, or it cannot be used.
    """
    if not path.is_file():
        below = sorted(file.parent for file in path.parent.glob(f"*/{path.name}"))
        remedy = "start a search with raysearch search, or name it with --store"
        if below:
            remedy = f"did you mean --store {shlex.quote(str(below[0]))}?"
        raise UserError(f"there is no ledger at {path}; {remedy}")
    with closing(Ledger(path)) as ledger:
        yield ledger
