"""An empty ledger; and the tiny model and calibration of the evaluation tests."""

import pytest

from raysearch.ledger.ledger import Ledger
from tests.evaluation.conftest import calibration, closed_in_the_end, make_replica, model

__all__ = ["calibration", "closed_in_the_end", "make_replica", "model"]


@pytest.fixture
def ledger(tmp_path):
    opened = Ledger(tmp_path / "folder" / "ledger.db")
    yield opened
    opened.close()
