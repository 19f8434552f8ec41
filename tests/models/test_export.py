"""An exported checkpoint is the masked model, and is written completely or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import raysearch.models.export as export
from raysearch.checkpoints.runtimes import LLAMA_CPP
from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.description import describe
from raysearch.models.export import ExportResult, export_checkpoint
from raysearch.models.spec import ModelSpec
from tests.cases import assert_each
from tests.checkpoints.test_card import EVIDENCE
from tests.models.families import (
    _DELTA,
    _WIDTHS,
    FAMILIES,
    HYBRIDS,
    N_LAYERS,
    OWN_WAYS,
    PASSING,
    STREAMS,
    UNEXPORTABLE,
    tiny,
    write_own_decoder,
)
from tests.sentences import Sentences


def dense(family: str, tmp_path: Path) -> ModelSpec:
    families = FAMILIES | HYBRIDS | OWN_WAYS | STREAMS | PASSING | UNEXPORTABLE
    families[family]().save_pretrained(tmp_path / "dense")
    return ModelSpec(family, str(tmp_path / "dense"))


def exported(
    spec: ModelSpec, mask: Mask, out: Path, *, overwrite: bool = False, prompt: str | None = None
) -> ExportResult:
    evidence = replace(EVIDENCE, size=mask.n_halves) if mask.halves else EVIDENCE
    return export_checkpoint(spec, mask, out, overwrite=overwrite, evidence=evidence, prompt=prompt)


@pytest.mark.slow
def test_every_family_is_exported_and_verified(tmp_path: Path) -> None:
    def check(family: str) -> None:
        out = tmp_path / family / "pruned"
        report = exported(dense(family, tmp_path / family), Mask.of(1, 2), out)
        assert report.max_logit_difference is not None
        assert report.max_logit_difference <= 1e-5
        model: Any = AutoModelForCausalLM.from_pretrained(out)
        assert model.config.get_text_config().num_hidden_layers == report.n_layers == N_LAYERS - 2
        assert report.parameters == model.num_parameters()
        tokens = model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=4, do_sample=False, eos_token_id=None)
        assert tokens.shape == (1, 7)

    assert_each([*FAMILIES, *HYBRIDS], check)


def test_decoders_with_their_own_key_for_the_number_of_layers_are_exported(tmp_path: Path) -> None:
    def check(family: str) -> None:
        out = tmp_path / family / "pruned"
        report = exported(dense(family, tmp_path / family), Mask.of(1), out)
        assert report.max_logit_difference is not None
        assert report.max_logit_difference <= 1e-5
        assert report.n_layers == N_LAYERS - 1
        model: Any = AutoModelForCausalLM.from_pretrained(out)
        assert report.parameters == model.num_parameters()
        if family in ("bart", "blenderbot"):
            assert model.config.encoder_layers == OWN_WAYS[family]().config.encoder_layers, (
                "no encoder layer was removed"
            )

    assert_each(OWN_WAYS, check)


def test_states_of_several_streams_and_what_layers_pass_on_are_exported(tmp_path: Path) -> None:
    def check(family: str) -> None:
        report = exported(dense(family, tmp_path / family), Mask.of(1), tmp_path / family / "pruned")
        assert report.max_logit_difference is not None
        assert report.max_logit_difference < 1e-6, "kernels of some processors round otherwise"
        assert report.n_layers == N_LAYERS - 1

    assert_each(STREAMS | PASSING, check)


def test_an_export_without_what_a_layer_needs_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    with sentences.refused(UnsupportedModelError):
        exported(dense("hy_v4", tmp_path), Mask.of(0, 1, 2), tmp_path / "pruned")


def test_a_decoder_with_its_own_code_is_exported(tmp_path: Path, sentences: Sentences) -> None:
    for depth in ("n_layers", "n_layer", "num_layers"):
        write_own_decoder(tmp_path / depth, depth)
        spec = ModelSpec(depth, str(tmp_path / depth), trust_remote_code=True)
        info = describe(spec)
        assert (info.sites.n_layers, info.hidden_size) == (4, 16)
        assert exported(spec, Mask.of(1), tmp_path / f"{depth}-out").n_layers == 3
    write_own_decoder(tmp_path / "other", "how_deep")
    spec = ModelSpec("other", str(tmp_path / "other"), trust_remote_code=True)
    assert describe(spec).sites.n_layers == 4, "the list with the most parameters"
    with sentences.refused(UnsupportedModelError):
        exported(spec, Mask.of(1), tmp_path / "other-out")


def test_the_rule_that_depends_on_places_is_named(tmp_path: Path, sentences: Sentences) -> None:
    for family, mask in (
        ("jamba", Mask.of(0)),
        ("gemma4_text", Mask.of(3)),
    ):
        with sentences.refused(UnsupportedModelError):
            exported(dense(family, tmp_path / family), mask, tmp_path / f"{family}-out")


def config_value(spec: ModelSpec, mask: Mask, key: str, out: Path) -> Any:
    """Return the value of a key in the config of the model exported without the mask's layers."""
    exported(spec, mask, out, overwrite=True)
    return json.loads((out / "config.json").read_text())[key]


def test_the_config_describes_the_kept_layers(tmp_path: Path) -> None:
    """It has lists with a value for each layer, lists of indices, periods, and counts of leading layers."""
    kinds = ["sliding_attention", "full_attention"]
    for family, key, cases in (
        ("gemma3_text", "layer_types", [(Mask.of(1, 2), kinds)]),
        ("qwen3_moe", "mlp_only_layers", [(Mask.of(0), [1]), (Mask.of(1), [0, 1]), (Mask.of(1, 2), [0])]),
        ("glm4_moe", "first_k_dense_replace", [(Mask.of(0), 1), (Mask.of(0, 1), 0), (Mask.of(3), 2)]),
        ("ernie4_5_moe", "moe_layer_end_index", [(Mask.of(0), 1), (Mask.of(1, 2), 0), (Mask.of(3), 2)]),
        ("recurrent_gemma", "block_types", [(Mask.of(0, 3), ["attention", "recurrent"])]),
        ("minicpm3", "scale_depth", [(Mask.of(0, 1, 2), 1.0)]),
    ):
        spec = dense(family, tmp_path / family)
        for mask, expected in cases:
            assert config_value(spec, mask, key, tmp_path / "pruned") == expected, (family, mask)
    spec = dense("kimi_linear", tmp_path / "kimi")
    numbers = config_value(spec, Mask.of(0, 3), "linear_attn_config", tmp_path / "pruned")
    assert (numbers["full_attn_layers"], numbers["kda_layers"], numbers["num_heads"]) == ([1], [2], 4)


def test_a_depth_under_two_keys_is_changed_under_both(tmp_path: Path) -> None:
    """Otherwise the checkpoint would have one more layer, a random one, with little effect in 16 bits."""
    tiny("xlstm", vocab_size=128, hidden_size=32, num_heads=4, num_hidden_layers=4).save_pretrained(tmp_path / "dense")
    spec = ModelSpec("xlstm", str(tmp_path / "dense"), dtype="bfloat16")
    assert config_value(spec, Mask.of(3), "num_blocks", tmp_path / "pruned") == 3


def test_weights_that_the_config_does_not_describe_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    monkeypatch.setattr("raysearch.checkpoints.config_file.shrink_config", lambda *_: None)
    monkeypatch.setattr("raysearch.checkpoints.pruning.cut_config", lambda config, *_: config)
    with sentences.refused(UnsupportedModelError):
        exported(dense("llama", tmp_path), Mask.of(1), tmp_path / "pruned")


def test_values_by_layer_are_renumbered_with_their_layers(tmp_path: Path, sentences: Sentences) -> None:
    spec = dense("gemma4_text", tmp_path)
    for mask, layers in [(Mask.of(0), ["0", "2"]), (Mask.of(1, 2), ["1"])]:
        values = config_value(spec, mask, "per_layer_config", tmp_path / "pruned")
        assert values == {layer: {"head_dim": 16} for layer in layers}, mask
    # Its last layer must have full attention.
    with sentences.refused(UnsupportedModelError):
        exported(spec, Mask.of(3), tmp_path / "last")


def test_the_card_leaves_out_llama_cpp_if_it_would_run_another_model(tmp_path: Path) -> None:
    spec = dense("smollm3", tmp_path)
    out = tmp_path / "out"
    for mask, fits in ((Mask.of(3), True), (Mask.of(0), False)):
        exported(spec, mask, out, overwrite=True)
        card = (out / "README.md").read_text()
        assert ("| Ollama |" in card, "convert_hf_to_gguf" in card) == (fits, fits)
        reason = (
            "would run another model: it derives which layers rotate positions from their places, which have changed"
        )
        assert (f"{LLAMA_CPP.text} {reason}." in card) is not fits


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    exported(dense("llama_tied", tmp_path), Mask.of(1), tmp_path / "pruned")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_16_bits_stay_16_bits(tmp_path: Path) -> None:
    model: Any = FAMILIES["llama"]()
    model.to(torch.bfloat16).save_pretrained(tmp_path / "dense")
    spec = ModelSpec("llama", str(tmp_path / "dense"), dtype="float32")  # of the search
    assert exported(spec, Mask.of(1), tmp_path / "pruned").max_logit_difference == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "pruned").dtype == torch.bfloat16
    modes = {(tmp_path / "pruned" / name).stat().st_mode for name in ("model.safetensors", "config.json")}
    assert len(modes) == 1, "the weights are as readable as the config"


def test_the_empty_mask_exports_the_dense_model(tmp_path: Path) -> None:
    assert exported(dense("llama", tmp_path), Mask(), tmp_path / "same").n_layers == N_LAYERS
    assert "--gguf" not in (tmp_path / "same" / "README.md").read_text()


@pytest.mark.parametrize("family", UNEXPORTABLE)
def test_a_model_that_no_config_describes_is_refused(family: str, tmp_path: Path, sentences: Sentences) -> None:
    spec = dense(family, tmp_path)
    with sentences.refused(UnsupportedModelError):
        exported(spec, Mask.of(0), tmp_path / "pruned")
    assert [path.name for path in tmp_path.iterdir()] == ["dense"]


def test_a_layer_that_depends_on_its_place_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    """Only the verification detects it: the checkpoint loads and runs, but differs a little, least in 16 bits."""
    widths = {"vocab_size": 128, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64, "bos_token_id": 1}
    tiny("gpt2", **widths, eos_token_id=2, scale_attn_by_inverse_layer_idx=True).save_pretrained(tmp_path / "dense")
    for dtype in ("float32", "bfloat16"):
        with sentences.refused(UnsupportedModelError):
            exported(ModelSpec("gpt2", str(tmp_path / "dense"), dtype=dtype), Mask.of(2), tmp_path / "pruned")
        assert not (tmp_path / "pruned").exists()


def test_a_model_that_transformers_does_not_write_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    kinds = ["full_attention", *["linear_attention"] * 3]  # the config requires both kinds
    tiny("olmo_hybrid", **_WIDTHS, **_DELTA, layer_types=kinds).save_pretrained(tmp_path / "dense")
    with sentences.refused(UnsupportedModelError):
        exported(ModelSpec("olmo_hybrid", str(tmp_path / "dense")), Mask.of(0), tmp_path / "pruned")
    assert not (tmp_path / "pruned").exists()


def test_a_folder_in_the_way_is_only_replaced_on_demand(tmp_path: Path, sentences: Sentences) -> None:
    spec = dense("llama", tmp_path)
    out = tmp_path / "pruned"
    out.mkdir()
    exported(spec, Mask.of(1), out)  # an empty folder is not in the way
    with sentences.refused(UserError):
        exported(spec, Mask.of(2), out)
    (tmp_path / "file").touch()
    for name in (
        "file",
        "dense",
        ".",
    ):
        with sentences.refused(UserError):
            exported(spec, Mask.of(1), tmp_path / name, overwrite=True)
    (tmp_path / "file").unlink()
    (out / "stale.txt").touch()
    exported(spec, Mask.of(2), out, overwrite=True)
    assert json.loads((out / "raysearch.json").read_text())["mask"] == [2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense", "pruned"]
    assert not (out / "stale.txt").exists()


def test_a_failed_export_does_not_change_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = dense("llama", tmp_path)
    out = tmp_path / "pruned"
    exported(spec, Mask.of(1), out)
    monkeypatch.setattr("raysearch.models.running_proof.relative_gap", lambda *_: float("nan"))
    with pytest.raises(UnsupportedModelError):
        exported(spec, Mask.of(2), out, overwrite=True)
    assert json.loads((out / "raysearch.json").read_text())["mask"] == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense", "pruned"]


def speaking(family: str, tmp_path: Path) -> ModelSpec:
    """Write a dense model with a tokenizer."""
    spec = dense(family, tmp_path)
    write_tokenizer(spec.path)
    return spec


def write_tokenizer(folder: str) -> None:
    """Write a tokenizer whose words are w0 … w127."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{index}": index for index in range(128)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="w0").save_pretrained(folder)


def test_a_prompt_may_use_all_positions(tmp_path: Path) -> None:
    spec = speaking("gpt2", tmp_path)
    for n_tokens, most_words in ((60, 5), (64, 1)):
        report = exported(spec, Mask.of(1), tmp_path / "out", overwrite=True, prompt="w3 " * n_tokens)
        assert report.after
        assert len(report.after.split()) <= most_words


def test_the_tokenizer_is_exported_and_both_models_generate(tmp_path: Path, sentences: Sentences) -> None:
    spec = speaking("llama", tmp_path)
    report = exported(spec, Mask.of(1), tmp_path / "pruned", prompt="w3 w4 w5")
    assert report.before
    assert report.after
    assert report.before != report.after
    assert report.before.startswith(" w"), "the continuation begins after the prompt"
    assert report.after.startswith(" w"), "the continuation begins after the prompt"
    assert AutoTokenizer.from_pretrained(tmp_path / "pruned")("w7 w9")["input_ids"] == [7, 9]
    assert "AutoTokenizer.from_pretrained" in (tmp_path / "pruned" / "README.md").read_text()
    for out, prompt in (
        (tmp_path / "new", "w3 " * 9999),
        (tmp_path / "new", " "),
        (Path("/proc/pruned"), None),
    ):
        with sentences.refused(UserError):
            exported(spec, Mask.of(1), out, prompt=prompt)
        assert not out.exists()


def test_a_model_that_cannot_generate_without_its_layers_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    """A cache counts tokens by layers of attention: without them, logits are right, but generation fails."""
    remedy = "; choose a mask that keeps a layer of each kind"
    r"cannot be exported without \{3\}: transformers does not generate with .* Attention layers.*" + remedy
    with sentences.refused(UnsupportedModelError):
        exported(dense("qwen3_next", tmp_path), Mask.of(3), tmp_path / "pruned")  # the only layer of attention
    assert not (tmp_path / "pruned").exists()


def test_a_model_that_never_generates_is_exported_without_a_continuation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    def generate(*_: Any, **__: Any) -> None:
        raise ValueError("no cache")

    spec = speaking("llama", tmp_path)
    monkeypatch.setattr("transformers.LlamaForCausalLM.generate", generate, raising=False)
    assert exported(spec, Mask.of(1), tmp_path / "pruned").n_layers == N_LAYERS - 1
    with sentences.refused(UnsupportedModelError):
        exported(spec, Mask.of(1), tmp_path / "other", prompt="w3")


def test_a_prompt_needs_a_tokenizer(tmp_path: Path, sentences: Sentences) -> None:
    spec = dense("llama", tmp_path)
    with sentences.refused(UserError):
        exported(spec, Mask.of(1), tmp_path / "out", prompt="hello")


def test_a_gguf_file_is_exported_like_any_other_model(gguf: Path, tmp_path: Path) -> None:
    exported(ModelSpec("tiny", str(gguf)), Mask.of(1), tmp_path / "pruned")
    assert "quantization_config" not in json.loads((tmp_path / "pruned" / "config.json").read_text())
    assert "name the same model in Hugging Face format" in (tmp_path / "pruned" / "mergekit.yaml").read_text()


@pytest.mark.real
@pytest.mark.slow
def test_the_demo_model_generates_without_three_layers(tmp_path: Path, smollm2_folder: Path) -> None:
    spec = ModelSpec("smollm2-135m", str(smollm2_folder))
    prompt = "The capital of France is"
    report = exported(spec, Mask.of(21, 22, 25), tmp_path / "pruned", prompt=prompt)
    assert (report.n_layers, report.parameters) == (27, 123_894_720)
    assert report.max_logit_difference is not None
    assert report.max_logit_difference <= 1e-5
    assert report.before
    assert "Paris" in report.before
    assert report.after
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "pruned")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "pruned")
    tokens = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=24, do_sample=False)
    text = tokenizer.decode(tokens[0], skip_special_tokens=True)
    assert " ".join(text.split()) == f"{prompt}{report.after}"


def test_the_next_export_repairs_what_a_killed_export_left(tmp_path: Path) -> None:
    out = tmp_path / "pruned"
    partial = tmp_path / ".pruned.partial"
    replaced = tmp_path / ".pruned.replaced"
    partial.mkdir()
    replaced.mkdir()
    (replaced / "before").touch()
    with pytest.raises(KeyboardInterrupt), export.replacing(out) as folder:
        assert [*folder.iterdir()] == [], "the replaced folder is put back"
        assert (out / "before").exists(), "the replaced folder is put back"
        raise KeyboardInterrupt
    assert [file.name for file in tmp_path.iterdir()] == ["pruned"]
    assert (out / "before").exists()
    with export.replacing(out) as folder:
        (folder / "after").touch()
    assert [file.name for file in tmp_path.rglob("*")] == ["pruned", "after"]
