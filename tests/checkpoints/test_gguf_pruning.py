"""llama.cpp computes the pruned model from its GGUF file, and no byte of a kept tensor changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from raysearch.checkpoints.gguf_pruning import GGUFExport, ModelSizes, prune_gguf, refusals
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.errors import UserError
from raysearch.models.stack import LayerStack
from raysearch.models.surgery import remove_layers
from tests.cases import assert_each
from tests.models.conftest import WIDTH, split, write_llama
from tests.models.families import VOCABULARY
from tests.runtimes.llama_cpp_tokens import llama_cpp_log_probs
from tests.sentences import Sentences

TOKENS = [5, 9, 100, 17, 33, 50, 60, 61, 7, 8, 120, 5]


def sizes_of(path: Path) -> ModelSizes:
    reader = gguf.GGUFReader(path)
    fields = reader.fields
    architecture = fields["general.architecture"].contents()
    predicting = fields.get(f"{architecture}.nextn_predict_layers")
    n_layers = fields[f"{architecture}.block_count"].contents() - (predicting.contents() if predicting else 0)
    parameters = [
        sum(int(tensor.n_elements) for tensor in reader.tensors if tensor.name.startswith(f"blk.{layer}."))
        for layer in range(n_layers)
    ]
    return ModelSizes("tiny", Sites.of_layers(parameters), WIDTH, VOCABULARY)


def pruned(path: Path, *layers: int, overwrite: bool = False) -> GGUFExport:
    out = path.with_name(f"{path.stem}-{'-'.join(map(str, layers))}.gguf")
    mask = Mask.of(*layers)
    return prune_gguf(path, mask, out, sizes=sizes_of(path), search_id="greedy-m2-1", overwrite=overwrite)


def metadata(path: Path) -> dict[str, Any]:
    return {name: stored.contents() for name, stored in gguf.GGUFReader(path).fields.items()}


def by_llama_cpp(path: Path) -> np.ndarray[Any, Any]:
    """Return the log-probabilities of the next token in llama.cpp."""
    log_probs = np.full(VOCABULARY, np.nan)
    for token, log_prob in llama_cpp_log_probs(path, TOKENS, VOCABULARY).items():
        log_probs[token] = log_prob
    return log_probs


def by_transformers(path: Path, mask: Mask) -> np.ndarray[Any, Any]:
    """Return the log-probabilities of the next token in transformers, with the mask's layers deleted."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    model = remove_layers(LayerStack(model.eval()), mask)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([TOKENS])).logits[0, -1].double(), -1).numpy()


@pytest.mark.slow
def test_llama_cpp_computes_the_same_as_transformers(tmp_path: Path) -> None:
    """The models are a Llama, models with windows, which depend on the layers' places, and one with experts."""

    def check(case: tuple[str, int, tuple[int, ...]]) -> None:
        architecture, n_layers, layers = case
        path = write_llama(tmp_path / f"{architecture}.gguf", n_layers, architecture=architecture)
        done = pruned(path, *layers)
        mask = Mask.of(*layers)
        expected = by_transformers(path, mask)
        assert np.abs(by_llama_cpp(done.out) - expected).max() < 5e-3
        assert np.abs(by_transformers(path, Mask()) - expected).max() > 0.1, "the removed layers change the result"

    cases = [("llama", 4, (0, 2)), ("gemma2", 4, (1, 2)), ("gemma2", 4, (2,)), ("gemma3", 7, (1, 4))]
    assert_each([*cases, ("qwen3moe", 4, (1, 3))], check)


@pytest.mark.slow
def test_llama_cpp_loads_a_file_whose_lists_were_cut(tmp_path: Path) -> None:
    """The activation of an Apertus has four lists. The model does not load if they have the old length."""
    lists: dict[str, Any] = {f"xielu.{name}": [0.5, 0.6, 0.7, 0.8] for name in ("alpha_n", "alpha_p", "beta", "eps")}
    path = write_llama(tmp_path / "dense.gguf", architecture="apertus", **lists)
    done = pruned(path, 1)
    cut = metadata(done.out)["xielu.beta"]
    assert np.allclose(cut, [0.5, 0.7, 0.8])
    assert np.isfinite(by_llama_cpp(done.out)).all()
    three = write_llama(tmp_path / "three.gguf", 3, architecture="apertus", **lists)
    with pytest.raises(RuntimeError):
        by_llama_cpp(three)


def test_every_tensor_keeps_its_bytes_and_its_metadata(tmp_path: Path) -> None:
    lists: dict[str, Any] = {"attention.head_count_kv": [2, 1, 4, 3], "feed_forward_length": [96, 95, 94, 93]}
    path = write_llama(
        tmp_path / "q8.gguf", architecture="qwen3moe", quantised=True, leading_dense_block_count=2, **lists
    )
    done = pruned(path, 0, 2)
    before = gguf.GGUFReader(path)
    after = gguf.GGUFReader(done.out)
    old = {tensor.name: tensor for tensor in before.tensors}
    assert len(after.tensors) == 3 + (len(old) - 3) // 2
    for tensor in after.tensors:
        name = tensor.name.replace("blk.0.", "blk.one.").replace("blk.1.", "blk.3.").replace("blk.one.", "blk.1.")
        assert tensor.tensor_type == old[name].tensor_type
        assert tensor.data.tobytes() == old[name].data.tobytes()
    values = {name: stored.contents() for name, stored in after.fields.items() if not name.startswith("GGUF.")}
    changed = {name: value for name, value in values.items() if name not in before.fields}
    assert changed == {"raysearch.removed_layers": [0, 2], "raysearch.search": "greedy-m2-1"}
    assert list(changed) == sorted(changed), "the file has the same bytes in every process"
    cut = {"block_count": 2, "leading_dense_block_count": 1, "attention.head_count_kv": [1, 3]}
    cut |= {"feed_forward_length": [95, 93]}
    for name, stored in before.fields.items():
        if not name.startswith("GGUF."):
            assert values[name] == cut.get(name.removeprefix("qwen3moe."), stored.contents()), name
    assert (done.n_layers, done.size_bytes) == (2, done.out.stat().st_size)


def test_a_list_is_written_if_layers_are_of_another_kind_at_their_new_places(tmp_path: Path) -> None:
    windows = "attention.sliding_window_pattern"
    recurrent = "attention.recurrent_layers"
    interval = "full_attention_interval"
    linear = [True, True, False] * 2
    files = (tmp_path / f"{number}.gguf" for number in range(99))

    def check(case: tuple[str, dict[str, Any], tuple[int, ...], dict[str, Any], int | None]) -> None:
        architecture, keys, layers, expected, build = case
        path = write_llama(next(files), 6, architecture=architecture, **keys)
        done = pruned(path, *layers)
        values = metadata(done.out)
        written = {key: values.get(f"{architecture}.{key}") for key in (windows, recurrent, interval)}
        assert {key: value for key, value in written.items() if value is not None} == expected
        assert done.build == build

    sliding = {"attention.sliding_window": 4}
    cases: list[tuple[str, dict[str, Any], tuple[int, ...], dict[str, Any], int | None]] = [
        ("gemma2", {}, (0, 1), {}, None),  # 1, 3 and 5 attend to all tokens, and so do the new layers 1 and 3
        ("gemma2", {}, (0,), {windows: [False, True, False, True, False]}, 11040),
        ("gemma2", {windows: 3}, (2,), {windows: [True, True, True, True, False]}, 11040),
        ("gemma2", {windows: [1, 0] * 3}, (1, 3, 5), {windows: [1, 1, 1]}, 11040),
        ("gemma2", {windows: [1, 0] * 3}, (0, 1), {windows: [1, 0] * 2}, None),
        ("olmo2", {**sliding, windows: [True] * 3 + [False] + [True] * 2}, (3,), {windows: [True] * 5}, 11040),
        ("gpt-oss", sliding, (1,), {windows: [True, True, False, True, False]}, 11040),
        ("smallthinker", {"attention.sliding_window": 0}, (1,), {}, None),
        ("qwen35", {recurrent: linear, interval: 3}, (1, 4), {recurrent: [True, False] * 2}, 9509),
        ("qwen35", {recurrent: linear, interval: 3}, (0, 1, 2), {recurrent: linear[:3], interval: 3}, None),
        ("qwen35", {interval: 3}, (0,), {recurrent: [True, False, True, True, False]}, 9509),
        ("qwen3next", {}, (5, 0), {recurrent: [True, True, False, True]}, 9509),
        ("qwen35", {interval: 3, "nextn_predict_layers": 1}, (0,), {recurrent: [True, False, True, True, False]}, 9509),
    ]
    assert_each(cases, check)


def test_lists_by_layer_of_any_name_are_cut(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "xielu.eps": [1, 2, 3, 4],
        "of_tomorrow": [1, 2, 3, 4],
        "rope.dimension_sections": [1, 2, 1, 0],
    }
    keys |= {"leading_dense_block_count": 2, "hash_layer_count": 3}
    values = metadata(pruned(write_llama(tmp_path / "lists.gguf", **keys), 1).out)
    assert (values["xielu.eps"], values["llama.of_tomorrow"]) == ([1, 3, 4], [1, 3, 4])
    assert values["llama.rope.dimension_sections"] == [1, 2, 1, 0]
    assert (values["llama.leading_dense_block_count"], values["llama.hash_layer_count"]) == (1, 2)


def test_files_that_cannot_be_pruned_are_refused(tmp_path: Path, sentences: Sentences) -> None:
    path = write_llama(tmp_path / "dense.gguf")
    sizes = sizes_of(path)
    deeper = replace(sizes, sites=Sites.of_layers([*sizes.sites.layer_parameters, 1]))
    larger = replace(sizes, sites=Sites.of_layers(2 * size for size in sizes.sites.layer_parameters))
    (tmp_path / "text.gguf").write_text("no model")
    before, key, after = path.read_bytes().partition(b"llama.block_count\x04\0\0\0")
    (tmp_path / "deep.gguf").write_bytes(before + key + b"\xff" * 4 + after[4:])
    pruned(path, 3)

    def check(case: tuple[str, dict[str, Any]]) -> None:
        name, options = case
        file = tmp_path / f"{name}.gguf"
        if not file.exists() and "keys" in options:
            write_llama(file, **options.pop("keys"))
        files = sorted(tmp_path.iterdir())
        with sentences.refused(UserError):
            prune_gguf(file, Mask.of(1), tmp_path / "out.gguf", **{"sizes": sizes, "search_id": "x", **options})
        assert sorted(tmp_path.iterdir()) == files

    cases: list[tuple[str, dict[str, Any]]] = [
        ("dense", {"sizes": deeper}),
        ("dense", {"sizes": larger}),
        ("deep", {}),
        ("text", {}),
        ("nowhere", {}),
        ("shared", {"keys": {"attention.shared_kv_layers": 2}}),
        ("long", {"keys": {"of_tomorrow": [1, 2, 3]}}),
        ("numbers", {"keys": {"ple.layers": [1, 2]}}),
        ("new", {"keys": {"some_interval": 2}}),
    ]
    assert_each(cases, check)
    smollm3 = write_llama(tmp_path / "smollm3.gguf", 8, architecture="smollm3")
    with sentences.refused(UserError):
        pruned(smollm3, 1)
    assert [str(mask) for mask in refusals(smollm3, [Mask.of(1), Mask.of(6, 7), Mask.of(0, 1, 2, 3)])] == ["{1}"]
    assert refusals(tmp_path / "gone.gguf", [Mask.of(1)]) == {}
    with sentences.refused(UserError):
        pruned(path, 3)
    assert pruned(path, 3, overwrite=True).n_layers == 3
    with sentences.refused(UserError):
        prune_gguf(path, Mask.of(1), path, sizes=sizes, search_id="x", overwrite=True)
    with sentences.refused(UserError):
        prune_gguf(tmp_path / "nowhere.gguf", Mask.of(1), path, sizes=sizes, search_id="x", overwrite=True)


@pytest.mark.parametrize("small_first_part", [True, False])
def test_a_file_in_parts_is_pruned_into_one_file(small_first_part: bool, tmp_path: Path) -> None:
    """The pruned file has the bytes of that from the whole file, whichever part is named."""
    whole = write_llama(tmp_path / "dense.gguf", quantised=True)
    parts = split(whole, small_first_part=small_first_part)
    assert len(parts) == (4 if small_first_part else 3)
    assert [part for part in parts if not gguf.GGUFReader(part).tensors] == (parts[:1] if small_first_part else [])
    expected = pruned(whole, 1).out.read_bytes()
    for part in parts:
        out = tmp_path / f"from-{part.name}"
        done = prune_gguf(part, Mask.of(1), out, sizes=sizes_of(whole), search_id="greedy-m2-1")
        assert done.out.read_bytes() == expected
        assert (done.source, done.source_bytes) == (parts[0], sum(part.stat().st_size for part in parts))
    assert refusals(parts[-1], [Mask.of(1)]) == {}


@pytest.mark.slow
def test_llama_cpp_reads_the_parts_that_are_pruned(tmp_path: Path) -> None:
    whole = write_llama(tmp_path / "dense.gguf")
    parts = split(whole, small_first_part=True)
    assert (by_llama_cpp(parts[0]) == by_llama_cpp(whole)).all()
    done = prune_gguf(parts[2], Mask.of(0, 2), tmp_path / "out.gguf", sizes=sizes_of(whole), search_id="x")
    assert (by_llama_cpp(done.out) == by_llama_cpp(pruned(whole, 0, 2).out)).all()


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path, sentences: Sentences) -> None:
    whole = write_llama(tmp_path / "dense.gguf")
    sizes = sizes_of(whole)
    parts = split(whole)
    first, second, third = (part.read_bytes() for part in parts)

    def prune(source: Path, out: Path = tmp_path / "out.gguf") -> None:
        with sentences.refused(UserError):
            prune_gguf(source, Mask.of(1), out, sizes=sizes, search_id="x", overwrite=True)

    prune(parts[0], out=parts[1])
    parts[1].write_bytes(third)
    prune(parts[2])
    parts[1].unlink()
    prune(parts[0])
    prune(parts[2])
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(first)
    prune(renamed)
    renamed.write_bytes(second)
    prune(renamed)
