"""The durable record of every evaluation: nothing in it is ever computed twice.

One SQLite file. A row is what one mask lost on one shard of one calibration, sample by sample, or a statistic of the
dense model there. Rows are committed, with the write-ahead log synced, before any searcher sees an answer made of them;
so a search killed at any moment loses only what was in flight. Several searches and processes may share the file.
What is sealed bears a checksum, see sealing.py.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from raysearch.core.statistic import Subject
from raysearch.errors import UserError, what_failed
from raysearch.ledger.checksum import BrokenSealError, sealed, unsealed, unsealed_json
from raysearch.ledger.locks import locked

SubjectT = TypeVar("SubjectT", bound=Subject)

SCHEMA_VERSION = 7
_LOCKED_S = 60.0  # how long another program may keep the file locked
_TABLES = {"evaluations", "claims", "searches", "studies", "assessments"}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS evaluations (
    calibration TEXT NOT NULL,     -- fingerprint
    subject     TEXT NOT NULL,     -- a mask, {21,22,25}, or a statistic's name
    shard       INTEGER NOT NULL,  -- 0-based
    samples     BLOB NOT NULL,     -- little-endian float64: each sample's loss, or the statistic's rows; sealed
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
    search_id        TEXT PRIMARY KEY,
    config        BLOB NOT NULL,   -- JSON, resolved; sealed
    state         TEXT NOT NULL,   -- running | finished | stopped | failed | interrupted
    failure       TEXT,            -- why, if it failed
    fingerprints  BLOB,            -- JSON: of the model, the text and the whole calibration; sealed
    result        BLOB,            -- JSON, sealed
    updated       TEXT NOT NULL    -- UTC, ISO 8601
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS studies (
    study_id TEXT PRIMARY KEY,
    config   BLOB NOT NULL,        -- JSON, resolved; sealed
    cells    BLOB NOT NULL,        -- JSON: each cell's labels and its run, see studies.py; sealed
    updated  TEXT NOT NULL         -- UTC, ISO 8601
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS assessments (
    model      TEXT NOT NULL,      -- fingerprint of the dense model
    mask       TEXT NOT NULL,      -- {21,22,25}
    assessment TEXT NOT NULL,      -- fingerprint of what is assessed, see assessments.py
    result     BLOB NOT NULL,      -- JSON, sealed
    PRIMARY KEY (model, mask, assessment)
) WITHOUT ROWID;
"""


class Ledger:
    """Every evaluation ever made, by calibration, mask and shard.

    Args:
        path: The SQLite file; made with its folder if it does not exist.

    Raises:
        UserError: The file cannot be opened, is no ledger, or was written by another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.explaining():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.absolute()  # SQLite takes names such as :memory: for no file
            if self._file.is_file() and self._file.stat().st_size == 1:  # which SQLite would take for an empty one
                raise sqlite3.DatabaseError("file is not a database")
            self.connection = sqlite3.connect(self._file, timeout=_LOCKED_S, isolation_level=None)
            with locked(path.with_name(f"{path.name}.lock")):  # SQLite does not wait for a change of journal mode
                self._prepare()
            self._identity = self._file.stat()

    def _prepare(self) -> None:
        """Makes the tables of a new file, or checks that an old one is of this format."""
        version = self.connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION):
            raise UserError(
                f"ledger={self.path} was written by another version of raysearch (format {version}, this one reads "
                f"{SCHEMA_VERSION}); name another file with ledger=…"
            )
        tables = {name for (name,) in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version == 0 and tables - _TABLES:
            raise UserError(f"ledger={self.path} is a database of something else; name another file with ledger=…")
        damage = [row for (row,) in self.connection.execute("PRAGMA integrity_check(1)") if row != "ok"]
        if damage:
            raise sqlite3.DatabaseError(f"malformed: {damage[0]}")
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.executescript(_SCHEMA)
        self.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def known(
        self, calibration: str, subjects: Iterable[SubjectT]
    ) -> dict[SubjectT, dict[int, npt.NDArray[np.float64]]]:
        """What is known of some masks or statistics.

        Args:
            calibration: The calibration's fingerprint.
            subjects: What is asked for.

        Returns:
            For each subject of which anything is known, by shard: summed nats per sample, float64 [B], or the
            statistic's rows, flat.
        """
        by_text = {str(subject): subject for subject in subjects}
        rows = self.read(
            "SELECT subject, shard, samples FROM evaluations WHERE calibration = ? "
            "AND subject IN (SELECT value FROM json_each(?))",
            (calibration, json.dumps(list(by_text))),
        )
        found: dict[SubjectT, dict[int, npt.NDArray[np.float64]]] = defaultdict(dict)
        for text, shard, samples in rows:
            found[by_text[text]][shard] = self.samples(samples, calibration, text, shard)
        return dict(found)

    def record(self, calibration: str, shard: int, values: Mapping[Subject, npt.NDArray[np.float64]]) -> None:
        """Makes a unit's values durable, all or none. What another process wrote first stays."""
        rows = {(calibration, str(subject), shard): of.astype("<f8").tobytes() for subject, of in values.items()}
        with self.transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO evaluations VALUES (?, ?, ?, ?)",
                [(*key, sealed(content, *key)) for key, content in rows.items()],
            )

    def read(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """The rows that a query gives, read as they are iterated over.

        Raises:
            UserError: The file cannot be read.
        """
        with self.explaining():
            # not yield from, which closes the cursor of a loop that was left, perhaps after the file
            for row in self.connection.execute(query, values):  # noqa: UP028
                yield row

    def samples(self, kept: bytes, calibration: str, subject: str, shard: int) -> npt.NDArray[np.float64]:
        """The numbers of a row of ``evaluations``, flat.

        Raises:
            UserError: They are not those that were written.
        """
        with self.explaining():
            return np.frombuffer(unsealed(kept, calibration, subject, shard), dtype="<f8")

    def json(self, kept: bytes | None, *place: object) -> Any:
        """A JSON value of a row, as `sealed_json` was given it.

        Raises:
            UserError: It is not what was written.
        """
        with self.explaining():
            return unsealed_json(kept, *place)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that happens inside becomes durable together, or not at all; other processes wait.

        Raises:
            UserError: The file cannot be written, and is as it was before; or it is no longer there.
        """
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
        """Says what is wrong with the file, those beside it or their disk, and the way out.

        Raises:
            UserError: SQLite or the system has refused something.
        """
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeError, BrokenSealError) as error:
            raise _explained(self.path, error) from error

    def _is_in_place(self) -> bool:
        """Whether the file that is open is the one that others find: SQLite writes on to one that is gone."""
        try:
            return os.path.samestat(self._file.stat(), self._identity)
        except OSError:
            return False

    def close(self) -> None:
        """Closes the file. Closing twice is harmless."""
        self.connection.close()


def _explained(path: Path, error: Exception) -> UserError:
    """What is wrong with the file or its disk, and the way out."""
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

    Args:
        path: The SQLite file.

    Raises:
        UserError: There is none, or it cannot be used.
    """
    if not path.is_file():
        raise UserError(f"there is no ledger at {path}; start a search with raysearch search, or name it with --store")
    with closing(Ledger(path)) as ledger:
        yield ledger
