"""A stack is compared with the model's own forward, and packed choices with plain rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysearch.calibration.batch import Batch, Choices
from raysearch.calibration.packing import pack
from raysearch.errors import UnsupportedModelError
from raysearch.models import verification
from raysearch.models.stack import LayerStack
from raysearch.models.verification import dense_states, packs, relative_gap, rows_interact, verify
from tests.cases import assert_each
from tests.models.families import BY_LENGTH, FAMILIES, HYBRIDS, PASSING, REFUSED, STREAMS, VOCABULARY, tiny
from tests.sentences import Sentences

#: Families whose layers attend to fewer tokens than a packed row has here, or that accept no positions.
PLAIN = {
    *("mistral", "gemma2", "gemma3_text", "gemma3", "gemma4_text", "cohere2", "gpt_oss", "exaone4", "bloom", "mpt"),
    "deepseek_v4",
}


def test_router_logits_are_not_computed() -> None:
    """A config may require a loss over the routers, which do not run if stand-ins replace the layers."""
    model = FAMILIES["mixtral"]()
    model.config.output_router_logits = True
    verify(LayerStack(model))


def test_a_model_of_one_layer_verifies() -> None:
    verify(LayerStack(tiny("llama", vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)))


def test_a_tail_that_is_not_position_wise_is_refused(sentences: Sentences) -> None:
    """The tail of this model adds the embedding to the last state."""
    model = FAMILIES["llama"]()
    stack = LayerStack(model)
    norm = model.get_submodule("model.norm")
    embeddings: list[torch.Tensor] = []
    model.get_submodule("model.embed_tokens").register_forward_hook(lambda *call: embeddings.append(call[2]))
    norm.register_forward_hook(lambda *call: call[2] + embeddings[-1])
    with sentences.refused(UnsupportedModelError):
        verify(stack)


def test_models_that_attend_to_later_tokens_are_refused(sentences: Sentences) -> None:
    widths = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
    verify(LayerStack(tiny("bert", vocab_size=128, is_decoder=True, **widths)))
    for model in (tiny("bert", vocab_size=128, **widths), tiny("bert", vocab_size=128, **widths).bfloat16()):
        with sentences.refused(UnsupportedModelError):
            verify(LayerStack(model))


def test_models_in_8_bits_that_depend_on_the_batch_are_refused(sentences: Sentences) -> None:
    model = tiny("bert", vocab_size=128, hidden_size=32, intermediate_size=48, num_attention_heads=4)
    vars(model)["is_loaded_in_8bit"] = True
    with sentences.refused(UnsupportedModelError):
        verify(LayerStack(model))


def test_states_of_another_shape_are_refused(sentences: Sentences) -> None:
    """XLNet's layers transpose the states, and CPM-Ant's prepend a prompt to the tokens."""
    for model in (
        tiny("xlnet", vocab_size=128, d_model=32, n_layer=4, n_head=4, d_inner=48),
        tiny(
            "cpmant", vocab_size=128, hidden_size=32, num_attention_heads=4, dim_head=8, dim_ff=48, num_hidden_layers=4
        ),
    ):
        with sentences.refused(UnsupportedModelError):
            verify(LayerStack(model))


def test_named_values_between_layers_are_refused(sentences: Sentences) -> None:
    widths = {"hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16, "feed_forward_size": 48}
    chunks = {"local_attn_chunk_length": 16, "axial_pos_shape": [4, 16], "axial_pos_embds_dim": [16, 16]}
    model = tiny("reformer", vocab_size=128, **widths, **chunks, attn_layers=["local"] * 4, is_decoder=True)
    with sentences.refused(UnsupportedModelError):
        verify(LayerStack(model))


def test_layers_that_exchange_more_than_the_hidden_state_are_refused(sentences: Sentences) -> None:
    for family, build in REFUSED.items():
        with sentences.refused(UnsupportedModelError, case=family):
            verify(LayerStack(build()))


def items() -> Batch:
    """Return four questions with two or three choices; the last question has as many tokens as two others together."""
    rng = np.random.default_rng(0)
    rows = []
    scored = []
    item = []
    for sample, length in enumerate((4, 7, 10, 25)):
        prompt = rng.integers(3, VOCABULARY, size=length).tolist()
        for _ in range(2 + sample % 2):
            answer = rng.integers(3, VOCABULARY, size=rng.integers(1, 5)).tolist()
            rows.append(prompt + answer)
            scored.append([False] * len(prompt) + [True] * len(answer))
            item.append(sample)
    return Batch.of(rows, scored, Choices(np.array(item), np.diff(item, prepend=-1) > 0, np.ones(len(rows), np.int64)))


def test_packing_is_used_if_it_is_exact() -> None:
    def check(family: str) -> None:
        batch = items()
        exact = family not in PLAIN | {*HYBRIDS}
        for dtype in (torch.float32, torch.bfloat16):
            stack = LayerStack((FAMILIES | HYBRIDS | STREAMS)[family]().to(dtype))  # type: ignore[arg-type]
            assert packs(stack, batch) is exact, dtype
            if exact and dtype is torch.float32:
                assert pack(batch, together=True).n_tokens < pack(batch).n_tokens
                plain = dense_states(stack, batch.inputs)
                for together in (False, True):
                    assert relative_gap(dense_states(stack, pack(batch, together)), plain) <= 1e-5

    assert_each([*FAMILIES, *HYBRIDS, *STREAMS], check)


def test_rows_that_depend_on_the_batch_are_detected() -> None:
    random = np.random.default_rng(0)
    rows = [random.integers(3, VOCABULARY, size=length) for length in (5, 30, 33)]

    families = BY_LENGTH | FAMILIES | HYBRIDS | STREAMS | PASSING
    interacting = {*BY_LENGTH, "deepseek_v4", "hy_v4", "glm_moe_dsa"}

    def check(family: str) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            stack = LayerStack(families[family]().to(dtype))  # type: ignore[arg-type]
            assert rows_interact(stack, rows) is (family in interacting), dtype
            if family in interacting:
                assert not rows_interact(stack, [rows[0], rows[0][:4]][::-1]), "short rows do not interact"

    assert_each(families, check)


def test_rows_that_depend_on_the_batch_are_detected_without_a_setting() -> None:
    random = np.random.default_rng(0)
    rows = [random.integers(3, VOCABULARY, size=length) for length in (5, 30, 33)]
    for build in (BY_LENGTH["deepseek_v32"], STREAMS["deepseek_v4"], PASSING["hy_v4"]):
        stack = LayerStack(build())
        stack.model.config.index_topk = 99  # the indexers have their own value
        assert rows_interact(stack, rows), stack.kind


def test_a_wrong_state_with_a_large_channel_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits, one channel of some tokens may be a thousand times as large as the others."""
    stack = LayerStack(FAMILIES["llama"]())
    stack.model.bfloat16()
    plain = torch.ones(8, 64)
    plain[0, 3] = 1000.0
    wrong = plain.clone()
    wrong[5] = -1.0
    states = iter([wrong.bfloat16(), plain.bfloat16()])
    monkeypatch.setattr(verification, "dense_states", lambda *_: next(states))
    monkeypatch.setattr(stack, "last_hidden", lambda hidden: hidden)
    assert packs(stack, items()) is False


def test_rows_beyond_a_window_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = LayerStack(FAMILIES["llama"]())
    batch = items()
    monkeypatch.setattr(stack.model.config, "sliding_window", batch.input_ids.shape[1], raising=False)
    assert packs(stack, batch) is True
    monkeypatch.setattr(stack.model.config, "sliding_window", batch.input_ids.shape[1] - 1)
    assert packs(stack, batch) is False


def test_packing_is_not_tried_with_attention_that_accepts_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = LayerStack(FAMILIES["llama"]())
    stack.model.config._attn_implementation = "flash_attention_2"
    monkeypatch.setattr(verification, "dense_states", lambda *_: pytest.fail("it may end the CUDA context"))
    assert packs(stack, items()) is False
