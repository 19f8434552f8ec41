"""A file that is not a lock is never changed by a lock, and a device is refused as a ledger."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.locks import locked
from tests.sentences import Sentences

TEXT = "a file of the user's\n"


@pytest.mark.parametrize("name", ["ledger.db.lock", "ledger.db.name.lock", "ledger.db-machine"])
@pytest.mark.parametrize("kind", ["link", "hard link", "file"])
def test_a_users_file_in_the_place_of_a_lock_is_not_changed(
    tmp_path: Path, name: str, kind: str, sentences: Sentences
) -> None:
    users_file = tmp_path / "mine.txt"
    lock = tmp_path / name
    users_file.write_text(TEXT)
    if kind == "file":
        lock.write_text(TEXT)
    else:
        (os.symlink if kind == "link" else os.link)(users_file, lock)
    try:
        with closing(Ledger(tmp_path / "ledger.db")) as ledger, locked(ledger, "name", "SEARCH"):
            pass
    except UserError as error:
        sentences.check(str(error))
    else:
        assert name == "ledger.db.lock", "only this file is locked without reading or writing it"
        assert kind != "link", "only this file is locked without reading or writing it"
    assert users_file.read_text() == lock.read_text() == TEXT


def test_a_device_is_refused_as_a_ledger(sentences: Sentences) -> None:
    with sentences.refused(UserError):
        Ledger(Path("/dev/null"))
    assert not Path("/dev/null.lock").exists()


def test_a_linked_ledger_has_the_locks_of_the_file_itself(tmp_path: Path, sentences: Sentences) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "elsewhere" / "ledger.db")
    with (
        closing(Ledger(tmp_path / "link.db")) as linked,
        closing(Ledger(tmp_path / "elsewhere" / "ledger.db")) as ledger,
        locked(linked, "name", "SEARCH"),
        sentences.refused(UserError),
        locked(ledger, "name", "SEARCH"),
    ):
        pass
