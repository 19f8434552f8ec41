"""A tiny real decoder and a calibration on it."""

import copy
from contextlib import ExitStack, closing

import numpy as np
import pytest

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.evaluation.replica import Replica
from raysearch.models.stack import LayerStack
from tests.cli.conftest import cwd, world
from tests.models.families import FAMILIES

__all__ = ["cwd", "world"]  # fixtures of another folder


@pytest.fixture(scope="session")
def model():
    return FAMILIES["llama"]()


@pytest.fixture(scope="session")
def calibration():
    ids = np.random.default_rng(0).integers(0, 100, size=(5, 12))
    scored = np.ones(ids.shape, dtype=bool)
    scored[:, 0] = False
    scored[1, :6] = False  # only the end of this sample is scored
    return Calibration.create(PerplexityObjective(), Batch(ids, scored), 2, {"test": 1}, {})


@pytest.fixture(scope="session")
def make_replica(model, calibration):
    return lambda: Replica(LayerStack(copy.deepcopy(model)), [calibration])


@pytest.fixture(scope="session")
def replica(make_replica):
    """A replica that tests share and must not change, since every new replica checks its model first."""
    return make_replica()


@pytest.fixture
def closed_in_the_end():
    """A function that takes an evaluator; evaluators and their ledgers are closed after the test."""
    with ExitStack() as stack:

        def close_later(evaluator):
            stack.enter_context(closing(evaluator.ledger))
            return stack.enter_context(closing(evaluator))

        yield close_later
