"""A ledger that another machine has open is refused, and free once that has closed it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from raysearch.errors import UserError
from raysearch.ledger import machine
from raysearch.ledger.ledger import Ledger


def test_one_machine_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    with closing(Ledger(path)), closing(Ledger(path)):
        monkeypatch.setattr(machine, "_boot_id", lambda: "another")
        with pytest.raises(UserError, match=r"ledger=.* is in use on another machine, \S+, and SQLite"):
            Ledger(path)
    for _ in range(2):
        with closing(Ledger(path)), closing(Ledger(path)):
            assert b"another" in (tmp_path / "ledger.db-machine").read_bytes()


@pytest.mark.parametrize("as_link", [True, False])
def test_no_file_of_somebody_else_is_touched(tmp_path: Path, as_link: bool) -> None:
    notes = tmp_path / ("notes.txt" if as_link else "ledger.db-machine")
    notes.write_text("mine")
    if as_link:
        (tmp_path / "ledger.db-machine").symlink_to(notes)
    with pytest.raises(UserError, match=r"ledger=.* cannot be used"):
        Ledger(tmp_path / "ledger.db")
    assert notes.read_text() == "mine"
