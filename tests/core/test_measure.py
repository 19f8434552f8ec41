import math

import pytest

from raysearch.core.measure import PERPLEXITY, Measure
from raysearch.errors import UserError
from tests.sentences import Sentences


def test_a_loss_reads_as_its_readout():
    assert PERPLEXITY.read(math.log(20)) == pytest.approx(20)
    assert PERPLEXITY.read(1000) == math.inf
    assert Measure("errors per item", "sample", "accuracy").read(0.25) == 0.75
    assert Measure("nats per answer", "sample", "margin").read(-0.5) == 0.5
    assert Measure("1 - cosine per token", "token", "cosine").read(0.25) == 0.75
    assert Measure("nats per token", "token").read(0.25) == 0.25


def test_the_divisor_is_tokens_samples_or_nothing():
    assert [Measure("nats", per).divisor(100, 7) for per in ("token", "sample", "set")] == [100, 7, 1]


def test_an_unknown_readout_is_refused(sentences: Sentences):
    with sentences.refused(UserError):
        Measure("errors per item", "sample", "f1")
