"""What the runtimes would run in place of a pruned checkpoint, and what they leave of the masks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from raysearch.checkpoints import mlx, vllm
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.llama_cpp import DEPTHS
from raysearch.checkpoints.periods import WINDOW, Key, PeriodRule, PlacedRule, Values
from raysearch.checkpoints.runtimes import (
    LLAMA_CPP,
    MLX,
    RUNTIMES,
    TRANSFORMERS,
    VLLM,
    Runtime,
    place_limits,
    readings,
)
from raysearch.core.mask import Mask
from raysearch.core.place_limits import PlaceLimits
from raysearch.core.site import Sites
from tests.models.families import FAMILIES, N_LAYERS
from tests.models.test_export import dense, exported

_WINDOWS = "derives which layers attend to a window only from their places, which have changed"
_EXPERTS = "derives which layers have experts from their places, which have changed"
_ROTATED = "derives which layers rotate positions from their places, which have changed"
_ATTEND = "derives which layers attend from their places, which have changed"
_FULL = "derives which layers attend to all tokens from their places, which have changed"


def kept(mask: Mask, n_layers: int) -> KeptBlocks:
    return KeptBlocks(Sites.of_equal_layers(n_layers).blocks(mask), n_layers)


def misread(runtime: Runtime, config: Mapping[str, Any], mask: Mask, n_layers: int) -> str | None:
    return runtime.misread(Values.of_config(config), kept(mask, n_layers))


def unions(limits: PlaceLimits, n_layers: int) -> Iterator[Mask]:
    """Yield every union of groups without a protected layer that leaves a layer and an allowed number of layers."""
    groups = [range(first, first + limits.group) for first in range(0, n_layers - limits.group + 1, limits.group)]
    groups = [group for group in groups if limits.protected.isdisjoint(group)]
    for number in range(1, len(groups) + 1):
        for chosen in combinations(groups, number):
            mask = Mask.of(*(layer for group in chosen for layer in group))
            if len(mask) < n_layers and n_layers - len(mask) not in limits.refused_depths:
                yield mask


def values_of(rule: PeriodRule | PlacedRule, family: str, is_gguf: bool = False) -> Values:
    """Return the values of a model for which a rule holds; a period is 3 if the rule has a key for it."""
    values: dict[Key | None, Any] = {rule.only_with: True}
    if isinstance(rule, PeriodRule):
        values[rule.key] = "LLG" if rule.repeats else 3
        values[WINDOW] = 0 if rule.windows is False else 4
    return Values(family, values.get, is_gguf)


def test_every_rule_of_every_runtime_limits_the_masks() -> None:
    """A union of groups is never refused; without the limits, some mask is refused for the reason of the rule."""
    n_rules = 0
    for runtime in RUNTIMES.values():
        rules: list[PeriodRule | PlacedRule] = [*runtime.periods, *runtime.placed]
        for rule in rules:
            alone = replace(runtime, periods=[], placed=[])
            alone = replace(alone, periods=[rule]) if isinstance(rule, PeriodRule) else replace(alone, placed=[rule])
            is_listed = isinstance(rule, PeriodRule) and rule.as_list is not None and runtime is not LLAMA_CPP
            for family in rule.families or ("llama",):
                values = values_of(rule, family)
                n_layers = 3 * runtime.limits(values, 40).group + 1
                for mask in unions(runtime.limits(values, n_layers), n_layers):
                    assert runtime.misread(values, kept(mask, n_layers)) is None, (runtime.name, family, mask)
                singles = [kept(Mask.of(layer), n_layers) for layer in range(n_layers)]
                is_noticed = any(rule.about in (alone.misread(values, single) or "") for single in singles)
                reasons = alone.limits(values, n_layers).reasons
                assert is_noticed is not is_listed, (runtime.name, rule.about, family)
                assert bool(reasons) is not is_listed, (runtime.name, rule.about, family)
                assert all(rule.about in reason and runtime.text in reason for reason in reasons), reasons
                n_rules += 1
    assert n_rules > 100


def test_raysearch_writes_a_list_for_a_gguf_file_where_llama_cpp_reads_one() -> None:
    for rule in LLAMA_CPP.periods:
        for family in rule.families or ("llama",):
            limits = LLAMA_CPP.limits(values_of(rule, family, is_gguf=True), 24)
            assert any(rule.about in reason for reason in limits.reasons) is (rule.as_list is None), (rule, family)


def test_properties_that_are_derived_from_places() -> None:
    llama4 = {"model_type": "llama4_text", "interleave_moe_layer_step": 2, "sliding_window": None}
    deepseek = {"model_type": "deepseek_v3", "moe_layer_freq": 2}
    indexed = {"model_type": "glm_moe_dsa", "index_topk_freq": 2}
    gpt_oss = {"model_type": "gpt_oss", "sliding_window": 128}
    exaone4 = {"model_type": "exaone4", "sliding_window": 4, "sliding_window_pattern": "LG"}
    ling = {"model_type": "bailing_hybrid", "layer_group_size": 2}
    forgets = "computes how fast a layer forgets from its place, which has changed"
    cases: list[tuple[Runtime, dict[str, Any], Mask, str | None]] = [
        (VLLM, gpt_oss, Mask.of(1), _WINDOWS),
        (VLLM, gpt_oss, Mask.of(1, 2), None),
        (VLLM, {"model_type": "gpt_oss", "sliding_window": None}, Mask.of(1), None),
        (MLX, gpt_oss, Mask.of(1), None),
        (VLLM, llama4, Mask.of(0), _EXPERTS),
        (VLLM, llama4, Mask.of(0, 1), None),
        (VLLM, llama4, Mask.of(3), None),  # the last layer, so no other layer moves
        (MLX, llama4, Mask.of(0, 1), _ROTATED),
        (VLLM, {"model_type": "qwen3_moe", "decoder_sparse_step": 2}, Mask.of(0), None),  # an export has a list
        (VLLM, deepseek, Mask.of(0), _EXPERTS),
        (VLLM, {"model_type": "deepseek_v3", "moe_layer_freq": [0, 1, 1, 1]}, Mask.of(0), None),
        (VLLM, indexed, Mask.of(0, 1), "derives which layers choose the tokens to attend to from their places, which"),
        (VLLM, indexed, Mask.of(2, 3), None),
        (VLLM, indexed | {"index_topk_pattern": "FFSF"}, Mask.of(0), None),
        (VLLM, ling, Mask.of(0, 1), forgets),
        (VLLM, ling | {"short_conv_kernel_size": 4}, Mask.of(0, 1), None),
        (VLLM, ling | {"short_conv_kernel_size": 4}, Mask.of(0), _FULL),
        (VLLM, {"model_type": "PanguEmbedded", "interleaved_sliding_window": [4, 8]}, Mask.of(0), _WINDOWS),
        (VLLM, {"model_type": "PanguEmbedded", "interleaved_sliding_window": [4, 8, 8, 8]}, Mask.of(0), None),
        (VLLM, {"model_type": "llama", "decoder_sparse_step": 2}, Mask.of(0), None),
        (MLX, {"model_type": "gemma3_text", "sliding_window_pattern": 2}, Mask.of(0), _WINDOWS),
        (MLX, {"model_type": "gemma3_text"}, Mask.of(0), None),  # its default period is longer than the model
        (MLX, {"model_type": "qwen3_next"}, Mask.of(0), _ATTEND),
        (MLX, exaone4, Mask.of(0), _WINDOWS),
        (MLX, exaone4, Mask.of(0, 1), None),
        (TRANSFORMERS, {"model_type": "minimax"}, Mask.of(3), forgets),
        (TRANSFORMERS, {"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, Mask.of(3), None),
        (TRANSFORMERS, {"model_type": "gpt2"}, Mask.of(0), None),
        (TRANSFORMERS, {"model_type": "gemma4_text"}, Mask.of(3), _FULL),
        (TRANSFORMERS, {"model_type": "gemma4_text"}, Mask.of(0), None),
        (TRANSFORMERS, {"model_type": "qwen3_moe", "decoder_sparse_step": 2}, Mask.of(0), None),
    ]
    for runtime, config, mask, expected in cases:
        text = misread(runtime, config, mask, 4)
        assert text == expected or (expected and text and text.startswith(expected)), (runtime.name, config, mask, text)


def test_numbers_of_layers_by_which_llama_cpp_recognises_a_model() -> None:
    gemma2 = {"model_type": "gemma2", "sliding_window": 4}
    wording = "computes a gemma2 of 46 layers differently from one of 4"
    assert misread(LLAMA_CPP, gemma2, Mask.of(*range(4, 46)), 46) == wording
    lite = {"model_type": "deepseek_v2"}
    assert misread(LLAMA_CPP, lite, Mask.of(5), 27) is None, (
        "DeepSeek-V2-Lite is computed in the same way with 26 layers"
    )
    assert misread(LLAMA_CPP, lite, Mask.of(5, 6), 27)
    assert misread(LLAMA_CPP, lite, Mask.of(5, 6, 7), 30)
    for family, groups in DEPTHS.items():
        for n_layers in {*range(1, 66)} & {30, *(depth for depths in groups for depth in depths)}:
            limits = place_limits(Values.of_config({"model_type": family}), n_layers, ["llama.cpp"])
            for n_kept in range(1, n_layers):
                refused = any((n_layers in depths) != (n_kept in depths) for depths in groups)
                assert (n_kept in limits.refused_depths) is refused, (family, n_layers, n_kept)
            everything = len(limits.refused_depths) == n_layers - 1
            assert (limits.protected == {*range(n_layers)}) is everything, (family, n_layers)


def test_the_limits_of_several_runtimes_hold_together() -> None:
    gemma3 = Values.of_config({"model_type": "gemma3_text", "sliding_window": 4, "sliding_window_pattern": 6})
    assert place_limits(gemma3, 26, ["vllm", "transformers"]) == PlaceLimits()
    assert place_limits(gemma3, 26, []) == PlaceLimits()
    both = place_limits(gemma3, 26, ["llama.cpp", "mlx"])
    assert (both.group, both.protected) == (6, frozenset())
    assert both.reasons == (
        f"{LLAMA_CPP.text} derives which layers attend to a window only from their places, one in 6, so "
        "layers are removed in groups of 6",
        f"{MLX.text} derives which layers attend to a window only from their places, one in 6, so layers are "
        "removed in groups of 6",
    )
    llama4 = Values.of_config({"model_type": "llama4_text", "interleave_moe_layer_step": 3})
    assert place_limits(llama4, 24, ["vllm", "mlx"]).group == 12
    gemma4 = place_limits(Values.of_config({"model_type": "gemma4_text"}), 30, list(RUNTIMES))
    assert gemma4.group == 1
    assert gemma4.protected == {29}
    (reason,) = gemma4.reasons
    assert reason.endswith("which layers attend to all tokens from their places, the last one, so layer 29 stays")
    minimax = place_limits(Values.of_config({"model_type": "minimax"}), 4, ["transformers"])
    assert minimax.protected == {0, 1, 2, 3}
    assert minimax.reasons[0].endswith("computes how fast a layer forgets from its place, so every layer stays")


def test_tiny_models_are_read_as_their_files_say(tmp_path: Path) -> None:
    cases: list[tuple[str, Mask, dict[str, str | None]]] = [
        ("llama", Mask.of(1), {"vllm": None, "llama.cpp": None, "mlx": None}),
        ("gemma2", Mask.of(0, 1), {"llama.cpp": None}),
        ("gemma2", Mask.of(2), {"llama.cpp": _WINDOWS, "vllm": None, "mlx": None}),
        ("gpt_oss", Mask.of(0), {"llama.cpp": _WINDOWS, "vllm": _WINDOWS, "mlx": None}),
        ("gpt_oss", Mask.of(0, 1), {"llama.cpp": None, "vllm": None}),
        ("gemma3", Mask.of(1), {"llama.cpp": None}),
        ("gemma4_text", Mask.of(1), {"llama.cpp": None}),
        ("olmo2", Mask.of(1), {"llama.cpp": None}),
        ("exaone4", Mask.of(3), {"llama.cpp": None}),
        ("smollm3", Mask.of(0), {"llama.cpp": _ROTATED, "vllm": None, "mlx": None}),
    ]
    for family, mask, expected in cases:
        FAMILIES[family]().save_pretrained(tmp_path / family)
        found = {
            reading.runtime: reading.misread
            for reading in readings(tmp_path / family, mask, Sites.of_equal_layers(N_LAYERS))
        }
        assert expected.items() <= found.items(), (family, mask, found)


def test_a_runtime_without_code_for_a_model_is_not_offered(tmp_path: Path) -> None:
    def refusals(config: dict[str, Any]) -> list[str]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return [reading.sentence for reading in readings(tmp_path, Mask.of(1), Sites.of_equal_layers(4))]

    fallback = "It tries the code of transformers instead."
    assert refusals({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}) == ["", "", ""]
    assert refusals({"architectures": ["SlugForCausalLM"], "model_type": "slug"}) == [
        f"{VLLM.text} has no code for the architecture SlugForCausalLM. {fallback}",
        f"{LLAMA_CPP.text} has no code for the architecture SlugForCausalLM.",
        f"{MLX.text} has no code for the model type slug.",
    ]
    assert refusals({"model_type": "mistral"}) == [
        f"{VLLM.text} has no code for a config without architectures. {fallback}",
        f"{LLAMA_CPP.text} has no code for a config without architectures.",
        "",
    ]


def test_the_card_has_commands_of_runtimes_that_run_the_model(tmp_path: Path) -> None:
    spec = dense("gpt_oss", tmp_path)
    out = tmp_path / "out"
    for mask, fits in ((Mask.of(0, 1), True), (Mask.of(0), False)):
        done = exported(spec, mask, out, overwrite=True)
        card = (out / "README.md").read_text()
        runtimes = [reading.runtime for reading in done.readings if reading.fits]
        assert runtimes == (["vllm", "llama.cpp", "mlx"] if fits else ["mlx"])
        assert ("`vllm serve ./out`" in card, "convert_hf_to_gguf" in card, "| Ollama |" in card) == (fits, fits, fits)
        assert "| `mlx_lm.generate --model ./out --prompt 'Once upon a time'` |" in card
        for runtime in (VLLM, LLAMA_CPP):
            assert (f"{runtime.text} would run another model: it {_WINDOWS}." in card) is not fits


def test_every_rule_names_the_line_that_it_was_read_from() -> None:
    """`experiments/runtimes/rules.py` compares these lines with the sources of the runtimes."""
    lines = (Path(__file__).parents[2] / "experiments/runtimes/rules.txt").read_text().splitlines()
    for module, runtime in ((vllm, VLLM), (mlx, MLX)):
        text = Path(str(module.__file__)).read_text()
        places = re.findall(r"# .*?([\w/]+\.py:\d+)", text)
        assert (
            len(places)
            == len(re.findall(r"(?:Period|Placed)Rule\(", text))
            == len(runtime.periods) + len(runtime.placed)
        )
        for place in places:
            assert any(line.startswith(f"{runtime.title} {place}: ") for line in lines), place
