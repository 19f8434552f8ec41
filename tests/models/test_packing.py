"""Packed choices give the states of plain rows, or are not used: in every family."""

import numpy as np
import pytest
import torch

from raysearch.calibration.batch import Batch, Choices
from raysearch.calibration.packing import pack
from raysearch.core.mask import Mask
from raysearch.models.stack import LayerStack, relative_gap
from tests.cases import assert_each
from tests.models.families import FAMILIES, HYBRIDS, VOCABULARY

#: Whose layers look no further than some tokens back (fewer than a packed row has here), or know no positions.
PLAIN = {"mistral", "gemma2", "gemma3_text", "gemma3", "gemma4_text", "cohere2", "gpt_oss", "exaone4", "bloom", "mpt"}


def items():
    rng = np.random.default_rng(0)
    rows, scored, item = [], [], []
    for sample in range(3):
        prompt = rng.integers(3, VOCABULARY, size=4 + 3 * sample).tolist()
        for _ in range(2 + sample % 2):
            answer = rng.integers(3, VOCABULARY, size=rng.integers(1, 5)).tolist()
            rows.append(prompt + answer)
            scored.append([False] * len(prompt) + [True] * len(answer))
            item.append(sample)
    return Batch.of(rows, scored, Choices(np.array(item), np.diff(item, prepend=-1) > 0, np.ones(len(rows), np.int64)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packing_is_used_where_it_is_exact(dtype: torch.dtype):
    def check(family):
        model, batch = (FAMILIES | HYBRIDS)[family](), items()
        stack = LayerStack(model if dtype is torch.float32 else model.bfloat16())
        assert stack.packs(batch) is (family not in PLAIN | {*HYBRIDS})
        if family not in PLAIN | {*HYBRIDS} and dtype is torch.float32:
            assert relative_gap(stack._states(pack(batch)), stack._states(batch.inputs)) <= 1e-5

    assert_each([*FAMILIES, *HYBRIDS], check)


def test_a_state_that_is_wrong_beside_a_large_channel_is_seen(monkeypatch):
    """As a state of 16 bits may have it: one channel of some tokens is a thousand times as large as the others."""
    stack = LayerStack(FAMILIES["llama"]())
    stack.model.bfloat16()
    plain = torch.ones(8, 64)
    plain[0, 3] = 1000.0
    wrong = plain.clone()
    wrong[5] = -1.0
    states = iter([wrong.bfloat16(), plain.bfloat16()])
    monkeypatch.setattr(stack, "_states", lambda _: next(states))
    monkeypatch.setattr(stack, "last_hidden", lambda hidden: hidden)
    assert stack.packs(items()) is False


def test_rows_beyond_a_window_are_not_packed(monkeypatch):
    stack, batch = LayerStack(FAMILIES["llama"]()), items()
    monkeypatch.setattr(stack.model.config, "sliding_window", batch.input_ids.shape[1], raising=False)
    assert stack.packs(batch) is True
    monkeypatch.setattr(stack.model.config, "sliding_window", batch.input_ids.shape[1] - 1)
    assert stack.packs(batch) is False


def test_packing_is_not_tried_with_attention_that_takes_no_mask(monkeypatch):
    stack = LayerStack(FAMILIES["llama"]())
    stack.model.config._attn_implementation = "flash_attention_2"
    monkeypatch.setattr(stack, "_states", lambda _: pytest.fail("it may end the CUDA context"))
    assert stack.packs(items()) is False


def test_the_last_hidden_state_is_that_of_transformers():
    def check(family):
        stack, batch = LayerStack(FAMILIES[family]()), items()
        real = torch.tensor(batch.attention_mask)
        with torch.no_grad():
            hidden = stack.walk(stack.capture(batch.inputs), Mask())
            own = stack.model.base_model(
                input_ids=torch.tensor(batch.input_ids), attention_mask=real.long(), use_cache=False
            ).last_hidden_state
            assert relative_gap(stack.last_hidden(hidden[real]), own[real]) <= 1e-6

    assert_each(FAMILIES, check)
