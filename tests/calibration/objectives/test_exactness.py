"""Losses in float32 lie on no side of those in float64."""

import json

import numpy as np
import pytest
import torch

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.kl import KLObjective
from raysearch.calibration.objectives.perplexity import PerplexityObjective


class Logits:
    """A head whose states are its logits."""

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def logits(self, hidden):
        return hidden

    last_hidden = logits

    def fused_log_probs(self, hidden, tokens):
        return None


def assert_exact(dense, pruned, tokens):
    """Compare each objective's mean with a plain float64 log-softmax: logits [n, vocab] and the n tokens."""
    batch = Batch.of([[0, *tokens]], [[False, *[True] * len(tokens)]])
    head = Logits(dense.shape[1])
    p, q = dense.double().log_softmax(-1), pruned.double().log_softmax(-1)
    middle = torch.logaddexp(p, q) - np.log(2)

    def divergence(one, other):
        return float((one.exp() * (one - other)).sum())

    expected = {
        PerplexityObjective(): -float(q[torch.arange(len(tokens)), torch.tensor(tokens)].sum()),
        KLObjective(): divergence(p, q),
        KLObjective(direction="reverse"): divergence(q, p),
        KLObjective(direction="js"): (divergence(p, middle) + divergence(q, middle)) / 2,
    }
    found = {one: float(one.losses(pruned, batch, head, dense).sum()) for one in expected}
    off = {one: found[one] / expected[one] - 1 for one in expected}
    assert {one: off[one] for one in off if abs(off[one]) > 2e-7} == {}
    assert abs(off[PerplexityObjective()]) < 3e-8


@pytest.fixture(scope="module")
def normal():
    """Two arrays of normal numbers, [128, vocab], and 128 tokens."""
    generator = torch.Generator().manual_seed(0)
    arrays = [torch.randn(128, 49152, generator=generator) for _ in range(2)]
    return *arrays, torch.randint(49152, (128,), generator=generator).tolist()


@pytest.mark.parametrize(("scale", "shift"), [(3, 0), (3, 20), (3, -20), (6, 0)])
def test_on_random_logits(scale, shift, normal):
    first, second, tokens = normal
    dense = first * scale + shift
    assert_exact(dense, dense + second, tokens)


@pytest.mark.real
@pytest.mark.data
def test_on_the_real_model(smollm2, smollm2_tokenizer, data_folder):
    """On C4 and what the model without two layers says of it."""
    lines = (data_folder / "c4" / "calibration.jsonl").read_text().splitlines()[:1]
    rows = [smollm2_tokenizer(json.loads(line)["text"])["input_ids"][:256] for line in lines]
    layers = smollm2.model.layers
    logits = {}
    for name, kept in (("dense", layers), ("pruned", [layer for at, layer in enumerate(layers) if at not in (9, 17)])):
        smollm2.model.layers = torch.nn.ModuleList(kept)
        with torch.inference_mode():
            found = [smollm2(torch.tensor([ids]), use_cache=False).logits[0, :-1].float() for ids in rows]
        logits[name] = torch.cat(found)
        smollm2.model.layers = layers
    assert_exact(logits["dense"], logits["pruned"], [token for ids in rows for token in ids[1:]])
