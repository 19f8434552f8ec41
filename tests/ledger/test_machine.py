"""A ledger that another machine has open is refused, and can be opened after that machine has closed it."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from raysearch.errors import UserError
from raysearch.ledger import machine
from raysearch.ledger.ledger import Ledger
from tests.sentences import Sentences


def test_one_machine_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences) -> None:
    path = tmp_path / "ledger.db"
    sentences.hide(re.compile("(?<=on another machine, )[^,]+"), "name")
    with closing(Ledger(path)), closing(Ledger(path)):
        monkeypatch.setattr(machine, "_boot_id", lambda: "another")
        with sentences.refused(UserError):
            Ledger(path)
    for _ in range(2):
        with closing(Ledger(path)), closing(Ledger(path)):
            assert b"another" in (tmp_path / "ledger.db-machine").read_bytes()
