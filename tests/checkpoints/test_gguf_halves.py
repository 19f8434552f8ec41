"""A GGUF file whose layers have their attentions and MLPs from different layers is the model of its halves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from raysearch.checkpoints.gguf_halves import parts_of_tensors
from raysearch.checkpoints.gguf_pruning import refusals
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.models.halves import LayerHalves
from tests.cases import assert_each
from tests.checkpoints.gguf_of_halves import random_file, silenced, silent_file, without
from tests.checkpoints.test_gguf_pruning import by_llama_cpp, metadata
from tests.models.conftest import write_llama
from tests.models.families import FAMILIES, HYBRIDS, OWN_WAYS
from tests.models.test_gguf_config import CASES
from tests.models.test_halves import Probe
from tests.sentences import Sentences

_ARCHITECTURES = {name.replace("-", ""): kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
_RENAMED = {"deepseek_v3": "deepseek2", "glm4_moe": "glm4moe", "ernie4_5": "ernie45", "ernie4_5_moe": "ernie45moe"}


@pytest.mark.slow
def test_llama_cpp_computes_the_same_as_transformers(tmp_path: Path) -> None:
    """A Llama, models with norms after their halves and with windows, one with norms of heads, one with experts."""

    def check(case: tuple[str, tuple[int | str, ...]]) -> None:
        architecture, parts = case
        model = next(case for case in CASES if case.architecture == architecture)
        checkpoint, file = random_file(model, tmp_path)
        done = without(file, *parts)
        assert done.architecture == architecture
        expected = silenced(checkpoint, *parts)
        assert np.abs(by_llama_cpp(done.out) - expected).max() < 5e-3
        assert np.abs(silenced(checkpoint) - expected).max() > 0.1, "the removed halves change the result"

    pair = ("1m", "2a")
    cases = [("llama", pair), ("gemma2", pair), ("gemma3", ("0m", "1a", 3)), ("qwen3", ("0m", "1a", "2m", "3a"))]
    assert_each([*cases, ("qwen3moe", (0, *pair))], check)


@pytest.mark.slow
def test_llama_cpp_computes_the_same_from_quantised_halves(tmp_path: Path) -> None:
    def check(case: tuple[str, str]) -> None:
        architecture, quantisation = case
        file = write_llama(
            tmp_path / f"{architecture}-{quantisation}.gguf",
            architecture=architecture,
            quantised=True,
            quantisation=quantisation,
        )
        expected = by_llama_cpp(silent_file(file, Mask.of("1m", "2a"), tmp_path / "silent.gguf"))
        assert np.abs(by_llama_cpp(without(file, "1m", "2a").out) - expected).max() < 1e-3

    assert_each([("llama", "Q8_0"), ("llama", "Q4_0"), ("gemma3", "Q4_0")], check)


def test_halves_keep_their_bytes_and_their_metadata(tmp_path: Path) -> None:
    lists: dict[str, Any] = {"attention.head_count_kv": [2, 1, 4, 3], "feed_forward_length": [96, 95, 94, 93]}
    file = write_llama(
        tmp_path / "q8.gguf", architecture="qwen3moe", quantised=True, leading_dense_block_count=3, **lists
    )
    done = without(file, "0m", "1a", "2m", "3a")
    before = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    after = gguf.GGUFReader(done.out).tensors
    for tensor in after:
        _, place, name = ([*tensor.name.split(".", 2), "", ""])[:3]
        source = f"blk.{2 * int(place) + ('ffn' in name)}.{name}" if place.isdecimal() else tensor.name
        assert tensor.data.tobytes() == before[source].data.tobytes(), tensor.name
        assert tensor.tensor_type == before[source].tensor_type
    values = metadata(done.out)
    prefix = "qwen3moe."
    assert values[f"{prefix}block_count"] == done.n_layers == 2
    assert values[f"{prefix}attention.head_count_kv"] == [2, 4]
    assert values[f"{prefix}feed_forward_length"] == [95, 93]
    assert values[f"{prefix}leading_dense_block_count"] == 1, "the MLPs of layers 1 and 3, of which 1 has no experts"
    assert values["raysearch.mask"] == "{0m,1a,2m,3a}"
    assert "raysearch.removed_layers" not in values


def test_windows_stay_with_their_attentions(tmp_path: Path) -> None:
    windows = "gemma2.attention.sliding_window_pattern"
    file = write_llama(tmp_path / "gemma2.gguf", 6, architecture="gemma2")

    def check(case: tuple[tuple[int | str, ...], list[bool] | None]) -> None:
        parts, expected = case
        done = without(file, *parts)
        assert metadata(done.out).get(windows) == expected
        assert done.build == (None if expected is None else 11040)

    cases: list[tuple[tuple[int | str, ...], list[bool] | None]] = [
        (("5a", "4m"), None),  # the attentions 0 to 4
        (("0m", "1a"), [True, True, False, True, False]),
        (("0m", "1a", 2), None),  # the attentions 0, 3, 4 and 5
    ]
    assert_each(cases, check)


def test_the_halves_of_tensors_are_those_that_compute_with_them() -> None:
    """The names of GGUF files agree with the behaviour of layers, for all families that both programs have."""
    compared = []

    def check(name: str) -> None:
        probe = Probe((FAMILIES | HYBRIDS | OWN_WAYS)[name]())
        config = probe.model.config.get_text_config()
        architecture = _RENAMED.get(name, config.model_type.removesuffix("_text").replace("_", ""))
        if not isinstance(probe.halves, LayerHalves) or architecture not in _ARCHITECTURES:
            return
        table = gguf.get_tensor_name_map(_ARCHITECTURES[architecture], config.num_hidden_layers)
        halves = {}
        for parameter, part in probe.halves.part_of.items():
            tensor = table.get_name(f"{probe.prefix}.{parameter}", try_suffixes=(".weight", ".bias"))
            if tensor is not None:
                halves[tensor.split(".", 2)[2]] = part
        if halves:
            compared.append(name)
            assert parts_of_tensors(halves) == halves

    # The norms of the first OLMo have no weights, so its MLP may run beside the attention.
    assert_each(sorted({*FAMILIES, *HYBRIDS, *OWN_WAYS} - {"olmo"}), check)
    assert len(compared) > 20
    assert {"gpt_oss", "qwen3_next", "gemma2", "olmo2", "falcon_h1", "lfm2"} <= {*compared}


def test_halves_of_files_that_are_not_understood_are_refused(tmp_path: Path, sentences: Sentences) -> None:
    pair = ("1m", "2a")

    def check(case: tuple[str, dict[str, Any]]) -> None:
        architecture, keys = case
        file = write_llama(tmp_path / f"{len([*tmp_path.iterdir()])}.gguf", architecture=architecture, **keys)
        sentences.hide(str(file), "file")
        with sentences.refused(UserError):
            without(file, *pair)
        assert [*refusals(file, [Mask(), Mask.of(*pair)])] == [Mask.of(*pair)]

    cases: list[tuple[str, dict[str, Any]]] = [
        ("smollm3", {}),
        ("llama", {"of_tomorrow": [1, 2, 3, 4]}),
        ("gptneox", {"use_parallel_residual": 1}),
    ]
    assert_each(cases, check)
    file = random_file(next(case for case in CASES if case.architecture == "falcon"), tmp_path)[1]
    sentences.hide(str(file), "file")
    with sentences.refused(UserError):
        without(file, *pair)
