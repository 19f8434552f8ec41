"""An empty ledger, and another."""

from contextlib import closing

import pytest

from raysearch.ledger.ledger import Ledger


@pytest.fixture
def ledger(tmp_path):
    with closing(Ledger(tmp_path / "folder" / "ledger.db")) as opened:
        yield opened


@pytest.fixture
def other_ledger(tmp_path):
    with closing(Ledger(tmp_path / "other.db")) as opened:
        yield opened
