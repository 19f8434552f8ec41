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
    """Compare each objective's sum with a plain float64 log-softmax, for logits [n, vocab] and n tokens."""
    batch = Batch.of([[0, *tokens]], [[False, *[True] * len(tokens)]])
    head = Logits(dense.shape[1])
    p = dense.double().log_softmax(-1)
    q = pruned.double().log_softmax(-1)
    middle = torch.logaddexp(p, q) - np.log(2)

    def divergence(first, second):
        return float((first.exp() * (first - second)).sum())

    expected = {
        PerplexityObjective(): -float(q[torch.arange(len(tokens)), torch.tensor(tokens)].sum()),
        KLObjective(): divergence(p, q),
        KLObjective(direction="reverse"): divergence(q, p),
        KLObjective(direction="js"): (divergence(p, middle) + divergence(q, middle)) / 2,
    }
    losses = {objective: float(objective.losses(pruned, batch, head, dense).sum()) for objective in expected}
    errors = {objective: losses[objective] / expected[objective] - 1 for objective in expected}
    assert {objective: error for objective, error in errors.items() if abs(error) > 2e-7} == {}
    assert abs(errors[PerplexityObjective()]) < 3e-8


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
    """On C4, with the logits of the model without two layers."""
    lines = (data_folder / "c4" / "calibration.jsonl").read_text().splitlines()[:1]
    rows = [smollm2_tokenizer(json.loads(line)["text"])["input_ids"][:256] for line in lines]
    layers = smollm2.model.layers
    logits = {}
    fewer_layers = [layer for place, layer in enumerate(layers) if place not in (9, 17)]
    for name, model_layers in (("dense", layers), ("pruned", fewer_layers)):
        smollm2.model.layers = torch.nn.ModuleList(model_layers)
        with torch.inference_mode():
            row_logits = [smollm2(torch.tensor([ids]), use_cache=False).logits[0, :-1].float() for ids in rows]
        logits[name] = torch.cat(row_logits)
        smollm2.model.layers = layers
    assert_exact(logits["dense"], logits["pruned"], [token for ids in rows for token in ids[1:]])
