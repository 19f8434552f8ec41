"""A checkpoint of a mask with halves computes what the dense model computes if these halves return zeros."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from raysearch.checkpoints.block_configs import config_with_blocks, unread, why_not
from raysearch.checkpoints.checkpoint import Checkpoint
from raysearch.checkpoints.config_rules import cut_config
from raysearch.checkpoints.half_formats import formats_of
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.layer_names import LayerNames
from raysearch.checkpoints.pruning import PrunedCheckpoint
from raysearch.checkpoints.quantization import ModuleNames
from raysearch.core.mask import Mask
from raysearch.core.site import Block, Sites
from raysearch.core.space import SPACES
from raysearch.errors import UnsupportedModelError
from raysearch.models.description import describe
from raysearch.models.export import ExportResult, kept_blocks
from raysearch.models.spec import ModelSpec
from tests.cases import assert_each
from tests.checkpoints.test_pruning import same_bytes, weights_of
from tests.models.families import _WIDTHS, FAMILIES, HYBRIDS, N_LAYERS, VOCABULARY, tiny
from tests.models.test_export import exported
from tests.sentences import Sentences

#: An MLP and the next attention; this layer's MLP and attention are one layer of the export. The last mask has a layer
#: between them.
PAIRS = [Mask.of("1m", "2a"), Mask.of("0m", "1a", 2), Mask.of("0m", 1, "2a")]
LONE = [Mask.of("1a", "2a"), Mask.of("0a", "1m", "3a"), Mask.of(0, "2m"), Mask.of("0m", "1a", "2m")]
#: The names of the modules that are added to the hidden state, in families that name them differently.
ATTENTIONS = {"gpt2": "attn", "recurrent_gemma": "temporal_block"}
MLPS = {"recurrent_gemma": "mlp_block", "lfm2": "feed_forward", "granitemoe": "block_sparse_moe"}
#: Norms behind these modules, whose output is added instead.
NORMS = {
    **dict.fromkeys(["gemma2", "gemma3_text"], ("post_attention_layernorm", "post_feedforward_layernorm")),
    "glm4": ("post_self_attn_layernorm", "post_mlp_layernorm"),
    **dict.fromkeys(["olmo2", "exaone4"], ("post_attention_layernorm", "post_feedforward_layernorm")),
}


def write(name: str, build: Callable[[], PreTrainedModel], folder: Path) -> ModelSpec:
    """Write a model whose biases are random, too, and a tokenizer of one word."""
    model = build()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return ModelSpec(name, str(folder), dtype="float32")


def silence(model: Any, name: str, mask: Mask) -> None:
    """Let the modules of removed halves return zeros, by their names in the family."""

    def zeros(module: nn.Module, args: Any, output: Any) -> Any:
        return (output[0] * 0, *output[1:]) if isinstance(output, tuple) else output * 0

    layers = model.transformer.h if name == "gpt2" else model.model.layers
    for half in mask.all_halves:
        layer = layers[half.layer]
        norm_names = NORMS.get(name)
        if norm_names is not None:
            modules = [getattr(layer, norm_names[half.part == "mlp"])]
        elif half.part == "mlp":
            modules = [getattr(layer, MLPS.get(name, "mlp"))]
        else:
            names = (ATTENTIONS.get(name, "self_attn"), "linear_attn", "conv")
            modules = [getattr(layer, module_name) for module_name in names if hasattr(layer, module_name)]
        assert modules, f"{name} has an attention and an MLP in each layer"
        for module in modules:
            module.register_forward_hook(zeros)


def tokens() -> Tensor:
    return torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def masked_logits(spec: ModelSpec, mask: Mask) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(spec.path, dtype=torch.float32)
    silence(model, spec.name, mask)
    logits: Tensor = model(tokens(), use_cache=False).logits
    return logits


def assert_same_logits(spec: ModelSpec, mask: Mask, folder: Path, **options: Any) -> Any:
    """Assert that a checkpoint computes the logits of the dense model with silent halves, and return the model."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    expected = masked_logits(spec, mask)
    with torch.no_grad():
        gap = (model(tokens(), use_cache=False).logits - expected).abs().max() / expected.abs().max()
    assert gap <= 1e-5, f"{mask}: {gap}"
    dense = masked_logits(spec, Mask())
    assert (dense - expected).abs().max() / expected.abs().max() > 1e-3, "the mask changes the model"
    return model


@pytest.mark.slow
def test_pairs_are_ordinary_checkpoints_of_every_family(tmp_path: Path) -> None:
    """The families have norms of queries and keys, sandwich norms, biases, experts, windows, and linear attentions."""
    families = "llama qwen2 qwen3 gemma2 gemma3_text olmo2 glm4 phi3 gpt2 qwen3_moe mixtral deepseek_v3 gpt_oss smollm3"
    hybrids = "qwen3_next lfm2 recurrent_gemma"

    def check(name: str) -> None:
        spec = write(name, (FAMILIES | HYBRIDS)[name], tmp_path / name)
        for number, mask in enumerate(PAIRS):
            out = tmp_path / f"{name}-{number}"
            export = exported(spec, mask, out)
            assert export.max_logit_difference == 0
            model = assert_same_logits(spec, mask, out)
            assert model.config.num_hidden_layers == export.n_layers == N_LAYERS - mask.n_halves // 2
            assert model.config.model_type == AutoConfig.from_pretrained(spec.path).model_type
            assert model.num_parameters() == export.parameters

    assert_each([*families.split(), *hybrids.split()], check)


def test_each_half_keeps_its_bytes(tmp_path: Path) -> None:
    spec = write("qwen2", FAMILIES["qwen2"], tmp_path / "dense")
    exported(spec, Mask.of("1m", "2a"), tmp_path / "pruned")
    layers = {0: (0, 0), 1: (1, 2), 2: (3, 3)}
    before = weights_of(tmp_path / "dense")
    after = weights_of(tmp_path / "pruned")
    for name, values in after.items():
        source = name
        if name.startswith("model.layers."):
            _, _, number, within = name.split(".", 3)
            attention, mlp = layers[int(number)]
            layer = attention if within.startswith(("self_attn.", "input_layernorm.")) else mlp
            source = f"model.layers.{layer}.{within}"
        assert same_bytes(values, before[source]), name
    assert len(after) == len(before) * 3 / N_LAYERS + (len(before) % N_LAYERS) / N_LAYERS


def test_lists_of_a_config_follow_the_half_that_they_describe() -> None:
    kept = KeptBlocks(Sites.of_equal_layers(4).blocks(Mask.of("1m", "2a")), 4)
    assert kept.blocks == ((0, 0), (1, 2), (3, 3))
    cases: list[tuple[str, Any, Any]] = [
        ("layer_types", ["a", "b", "c", "d"], ["a", "b", "d"]),
        ("no_rope_layers", [1, 2, 3, 4], [1, 2, 4]),
        ("num_attention_heads_per_layer", [1, 2, 3, 4], [1, 2, 4]),
        ("mlp_layer_types", ["a", "b", "c", "d"], ["a", "c", "d"]),
        ("intermediate_size", [1, 2, 3, 4], [1, 3, 4]),
        ("mlp_only_layers", [0, 2], [0, 1]),
        ("mlp_only_layers", [0, 1], [0]),
        ("full_attn_idxs", [1, 3], [1, 2]),
        ("full_attn_idxs", [2, 3], [2]),
        ("max_window_layers", 2, 2),
        ("unknown", [1, 5, 5, 7], [1, 5, 7]),
    ]
    for name, before, after in cases:
        config = {"model_type": "qwen2", "num_hidden_layers": 4, name: before}
        assert cut_config(config, kept) == config | {"num_hidden_layers": 3, name: after}, name
    leading = {"model_type": "deepseek_v3", "num_hidden_layers": 4, "first_k_dense_replace": 2}
    assert cut_config(leading, kept)["first_k_dense_replace"] == 1, "the MLP of layer 1 is removed"


def test_a_list_of_an_unknown_half_is_refused_only_if_the_halves_differ_in_it(sentences: Sentences) -> None:
    kept = KeptBlocks(Sites.of_equal_layers(4).blocks(Mask.of("1m", "2a")), 4)
    with sentences.refused(UnsupportedModelError):
        cut_config({"num_hidden_layers": 4, "unknown": [1, 5, 6, 7]}, kept)


def test_modules_of_a_quantisation_follow_their_halves() -> None:
    within = ("self_attn.q_proj.weight_packed", "mlp.up_proj.weight", "input_layernorm.weight")
    tensors = [f"model.layers.{layer}.{name}" for layer in range(4) for name in within]
    part_of = {
        "self_attn.q_proj.weight": "attention",
        "mlp.up_proj.weight": "mlp",
        "input_layernorm.weight": "attention",
    }
    kept = KeptBlocks(Sites.of_equal_layers(4).blocks(Mask.of("1m", "2a")), 4, part_of)  # type: ignore[arg-type]
    mend = ModuleNames.of(LayerNames.of(tensors, 4), kept, tensors).mend
    assert mend(["model.layers.1.self_attn", "model.layers.2.self_attn.q_proj", "layers.2.mlp"]) == [
        "model.layers.1.self_attn",
        "layers.1.mlp",
    ]
    assert mend(["model.layers.1", "model.layers.3"]) == [
        "model.layers.1.input_layernorm",
        "model.layers.1.self_attn.q_proj",
        "model.layers.2",
    ]
    assert mend([r"re:.*layers\.(1|2)\.mlp.*"]) == [r"re:model\.layers\.1\.mlp\.up_proj$"]


def test_a_tensor_of_no_half_is_refused_only_where_halves_part(tmp_path: Path, sentences: Sentences) -> None:
    write("llama", FAMILIES["llama"], tmp_path)
    source = Checkpoint.open(tmp_path)
    assert PrunedCheckpoint.of(source, KeptBlocks.whole([0, 1], N_LAYERS)).tensors, "no half needs to be known"
    kept = KeptBlocks((Block(0, 1),), N_LAYERS, {"mlp.up_proj.weight": "mlp"})
    with sentences.refused(UnsupportedModelError):
        _ = PrunedCheckpoint.of(source, kept).tensors


#: Models that `block_configs` describes. Llama 3 has scaled rotary embeddings.
WITH_BLOCK_CONFIGS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": FAMILIES["llama"],
    "llama_tied": FAMILIES["llama_tied"],
    "qwen2": FAMILIES["qwen2"],
    "mistral": partial(tiny, "mistral", **_WIDTHS, sliding_window=None),
    "llama_bias": partial(tiny, "llama", **_WIDTHS, attention_bias=True, mlp_bias=True),
    "llama_wide": partial(tiny, "llama", **{**_WIDTHS, "intermediate_size": 256}),
    "llama_3": partial(
        tiny,
        "llama",
        **_WIDTHS,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
}


def greedy(model: Any, **options: Any) -> list[Any]:
    answer = model.generate(
        tokens(), max_new_tokens=12, min_new_tokens=12, do_sample=False, eos_token_id=None, **options
    )
    return list(answer.tolist())


@pytest.mark.slow
def test_layers_may_lack_an_attention_or_an_mlp(tmp_path: Path) -> None:
    """The checkpoint's own code computes the same logits, and generates the same tokens with a KV cache."""

    def check(name: str) -> None:
        spec = write(name, WITH_BLOCK_CONFIGS[name], tmp_path / name)
        for number, mask in enumerate(LONE):
            out = tmp_path / f"{name}-{number}"
            assert exported(spec, mask, out).max_logit_difference == 0
            model = assert_same_logits(spec, mask, out, trust_remote_code=True)
            masked = AutoModelForCausalLM.from_pretrained(spec.path, dtype=torch.float32)
            silence(masked, spec.name, mask)
            assert greedy(model) == greedy(masked, use_cache=False)
            config = json.loads((out / "config.json").read_text())
            assert config["architectures"] == ["DeciLMForCausalLM"]
            missing = [
                [part for part, key in (("attention", "attention"), ("mlp", "ffn")) if block[key]["no_op"]]
                for block in config["block_configs"]
            ]
            blocks = Sites.of_equal_layers(N_LAYERS).blocks(mask)
            assert missing == [[part for part in block._fields if getattr(block, part) is None] for block in blocks]
            skips = {str(layer): {"skip": parts} for layer, parts in enumerate(missing) if parts}
            assert config["per_layer_config"] == skips
            widths = [block["ffn"] for block in config["block_configs"] if not block["ffn"]["no_op"]]
            key = "ffn_mult" if name == "llama_wide" else "intermediate_size"
            assert all(key in width and len(width) == 2 for width in widths)

    assert_each(WITH_BLOCK_CONFIGS, check)


def test_the_tokenizer_is_read_by_the_same_class(tmp_path: Path) -> None:
    """transformers chooses it by the model type for some families, whatever the class in the tokenizer's config."""
    spec = write("qwen2", FAMILIES["qwen2"], tmp_path / "dense")
    exported(spec, Mask.of("1a"), tmp_path / "pruned")
    named = [json.loads((tmp_path / name / "tokenizer_config.json").read_text()) for name in ("dense", "pruned")]
    assert named[1] == named[0] | {"tokenizer_class": "Qwen2Tokenizer"}
    read = [AutoTokenizer.from_pretrained(tmp_path / name, trust_remote_code=True) for name in ("dense", "pruned")]
    assert type(read[0]) is type(read[1])


def test_a_saved_copy_is_the_same_model(tmp_path: Path) -> None:
    spec = write("llama", FAMILIES["llama"], tmp_path / "dense")
    exported(spec, LONE[1], tmp_path / "pruned")
    AutoModelForCausalLM.from_pretrained(tmp_path / "pruned", trust_remote_code=True).save_pretrained(tmp_path / "copy")
    assert_same_logits(spec, LONE[1], tmp_path / "copy", trust_remote_code=True)


def test_a_card_tells_the_halves_of_each_layer_and_the_runtimes(tmp_path: Path) -> None:
    spec = write("llama", FAMILIES["llama"], tmp_path / "dense")

    def card_of(mask: Mask) -> tuple[ExportResult, str]:
        out = tmp_path / str(mask).strip("{}")
        export = exported(spec, mask, out)
        assert not (out / "mergekit.yaml").exists()
        return export, (out / "README.md").read_text()

    export, card = card_of(Mask.of("0a", "1m", "2a"))
    assert "without 3 of the 8 halves of its layers" in card
    assert "| 0 | none | 0 |\n| 1 | 1 | 2 |\n" in card
    assert "trust_remote_code=True" in card
    assert "vLLM 0.32.0 does not run a first layer without attention." in card
    assert "MLX 0.32.2 does not run MLPs in this form whose width is no multiple of 256." in card
    assert "vllm serve" not in card
    record = json.loads((export.out / "raysearch.json").read_text())
    assert record["mask"] == ["0a", "1m", "2a"]
    blocks = [{"attention": None, "mlp": 0}, {"attention": 1, "mlp": 2}, {"attention": 3, "mlp": 3}]
    assert record["blocks"] == blocks
    _, card = card_of(Mask.of("1a"))
    assert "`vllm serve ./1a --trust-remote-code`" in card
    _, card = card_of(Mask.of("1m", "2a"))
    assert "trust_remote_code" not in card
    assert "`vllm serve ./1m,2a`" in card


def test_files_of_a_large_model_are_compared_without_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysearch.models.export_proof.memory_bytes", lambda: 2**30)
    spec = write("llama", FAMILIES["llama"], tmp_path / "dense")
    for mask in (PAIRS[0], LONE[1]):
        export = exported(spec, mask, tmp_path / str(mask).strip("{}"))
        assert export.max_logit_difference is None
        model = AutoModelForCausalLM.from_pretrained(export.out, trust_remote_code=True)
        assert export.parameters == model.num_parameters()


def test_models_without_a_format_are_refused_before_anything_is_written(tmp_path: Path, sentences: Sentences) -> None:
    """The same function tells it before a search."""
    builders = {name: FAMILIES[name] for name in ("qwen3", "mistral", "gemma2", "qwen3_moe")}
    builders["gelu"] = partial(tiny, "llama", **_WIDTHS, hidden_act="gelu")
    builders["head"] = partial(tiny, "llama", **_WIDTHS, head_dim=16)
    for name, build in builders.items():
        spec = write(name, build, tmp_path / name)
        with sentences.refused(UnsupportedModelError, name):
            exported(spec, Mask.of("1a"), tmp_path / "out")
        assert not (tmp_path / "out").exists()
        info = describe(spec)
        for space in SPACES.values():
            why_not = {form.name: form.why_not for form in formats_of({**info.config, **info.code}, space)}
            assert (why_not["checkpoint"] is None) == space.keeps_blocks, (name, space.name)
    for name, build in WITH_BLOCK_CONFIGS.items():
        info = describe(write(name, build, tmp_path / name))
        why_not = {form.name: form.why_not for form in formats_of({**info.config, **info.code}, SPACES["halves"])}
        assert why_not["checkpoint"] is None, name


def test_a_config_gives_what_follows_from_no_other_key() -> None:
    """Without its own value, transformers gives a Mistral windows, and a Qwen 2 as many heads of keys as Qwen 2 has."""
    widths = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    mistral = {**widths, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None}
    assert why_not(mistral) is None
    assert why_not({**widths, "model_type": "llama"}) is None, "as many heads of keys as of queries"
    for key in ("num_key_value_heads", "sliding_window"):
        reason = why_not({name: value for name, value in mistral.items() if name != key})
        assert reason == f"block_configs needs {key}, which the config does not give"


def test_models_of_nemotron_nas_themselves_are_not_those_of_raysearch() -> None:
    block = {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 2.6, "no_op": False}}
    config = {"architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "block_configs": [block] * 4}
    assert not unread(config)


def test_mlx_reads_the_type_of_scaled_rotary_embeddings_by_its_newer_name() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    config["rope_scaling"] = {"type": "linear", "factor": 4.0}
    written = config_with_blocks(config, KeptBlocks((Block(0, 0), Block(None, 1)), 2))
    assert written["rope_scaling"] == {"rope_type": "linear", "type": "linear", "factor": 4.0}


def test_other_code_does_not_run_with_that_of_raysearch(tmp_path: Path, sentences: Sentences) -> None:
    """The code of such a checkpoint must be trusted, so a checkpoint with code of its tokenizer is refused."""
    spec = write("llama", WITH_BLOCK_CONFIGS["llama"], tmp_path / "dense")
    settings = {"auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    (tmp_path / "dense" / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "dense" / "tokenization_own.py").write_text("raise SystemExit('it has run')\n")
    with sentences.refused(UnsupportedModelError):
        exported(spec, Mask.of("2a"), tmp_path / "out")
    assert exported(spec, Mask.of("1m", "2a"), tmp_path / "pairs").max_logit_difference == 0


def test_a_model_without_halves_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    spec = write("phi", FAMILIES["phi"], tmp_path / "dense")
    with sentences.refused(UnsupportedModelError):
        kept_blocks(describe(spec), PAIRS[0])
