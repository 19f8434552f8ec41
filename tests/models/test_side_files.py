"""The other files of a checkpoint are copied to its export without changes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

from raysearch.checkpoints.side_files import mend_tokenizer_config
from raysearch.core.mask import Mask
from raysearch.models.spec import ModelSpec
from tests.models.families import N_LAYERS, give_own_code
from tests.models.test_export import exported, speaking


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of a folder's files by relative path, without weights and config."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    files = [file for file in files if file.suffix != ".safetensors" and file.name != "config.json"]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def test_the_files_of_a_tokenizer_are_copied_byte_for_byte(tmp_path: Path) -> None:
    spec = speaking("llama", tmp_path)
    folder = Path(spec.path)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "w0", "additional_special_tokens": ["w7"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text('{"pad_token": "w0"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    exported(spec, Mask.of(1), tmp_path / "pruned")
    written = contents(tmp_path / "pruned")
    assert {place: written[place] for place in contents(folder)} == contents(folder)


def test_names_of_transformers_5_are_replaced(tmp_path: Path) -> None:
    spec = speaking("llama", tmp_path)
    backend = Tokenizer(models.WordLevel({f"w{index}": index for index in range(128)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    added = [AddedToken("w5", special=True), "w6"]
    PreTrainedTokenizerFast(tokenizer_object=backend, extra_special_tokens=added).save_pretrained(spec.path)
    shutil.copytree(spec.path, tmp_path / "mended")
    written = json.loads((Path(spec.path) / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "TokenizersBackend"
    assert len(written["extra_special_tokens"]) == 2
    mend_tokenizer_config(tmp_path / "mended")
    config = json.loads((tmp_path / "mended" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "extra_special_tokens" not in config
    before, after = (AutoTokenizer.from_pretrained(place) for place in (spec.path, tmp_path / "mended"))
    assert before.extra_special_tokens == after.extra_special_tokens == ["w5", "w6"]
    assert before("w5 w9", return_tensors=None) == after("w5 w9", return_tensors=None)


def test_the_tokenizer_of_a_gguf_file_is_written_for_transformers_4(gguf: Path, tmp_path: Path) -> None:
    exported(ModelSpec("tiny", str(gguf), dtype="float32"), Mask.of(1), tmp_path / "pruned")
    config = json.loads((tmp_path / "pruned" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] != "TokenizersBackend"
    config = json.loads((tmp_path / "pruned" / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["torch_dtype"] == "float32"


def test_a_model_of_the_hub_is_exported_with_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    spec = speaking("llama", tmp_path)
    cached = tmp_path / "hub" / "models--me--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("a" * 40)
    (cached / "snapshots").mkdir()
    Path(spec.path).rename(cached / "snapshots" / ("a" * 40))
    exported(ModelSpec("tiny", "me/tiny"), Mask.of(1), tmp_path / "pruned")
    source = contents(cached / "snapshots" / ("a" * 40))
    written = contents(tmp_path / "pruned")
    assert source["tokenizer.json"] == written["tokenizer.json"]


def test_code_is_copied_whether_it_may_run_or_not(tmp_path: Path) -> None:
    spec = speaking("llama", tmp_path)
    folder = Path(spec.path)
    give_own_code(folder)
    (folder / "parts").mkdir()
    (folder / "parts" / "more.py").write_text("")
    pruned = tmp_path / "pruned"
    exported(replace(spec, trust_remote_code=True), Mask.of(1), pruned)
    assert (pruned / "code.py").is_file()
    assert (pruned / "parts" / "more.py").is_file()
    model = AutoModelForCausalLM.from_pretrained(pruned, trust_remote_code=True)
    assert (type(model).__name__, model.config.num_hidden_layers) == ("Own", N_LAYERS - 1)
    # Now the model is of a kind for which transformers has a class, too, as Phi-3.
    changes = {
        "config.json": {"model_type": "llama"},
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["a.B", None]}},
    }
    for name, change in changes.items():
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(config | change))
    exported(spec, Mask.of(1), pruned, overwrite=True)
    assert {file: written for file, written in contents(pruned).items() if file in contents(folder)} == contents(folder)
    written = json.loads((pruned / "config.json").read_text())
    assert written["auto_map"] == {"AutoConfig": "code.OwnConfig", "AutoModelForCausalLM": "code.Own"}
    assert type(AutoModelForCausalLM.from_pretrained(pruned)).__name__ == "LlamaForCausalLM"


def test_a_model_that_sees_is_exported_with_its_processor(tmp_path: Path) -> None:
    spec = speaking("gemma3", tmp_path)
    words = [f"w{index}" for index in range(10)]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        spec.path, extra_special_tokens={"image_token": "w1", "boi_token": "w2", "eoi_token": "w3"}
    )
    Gemma3Processor(Gemma3ImageProcessorPil(), tokenizer, image_seq_length=4).save_pretrained(spec.path)
    exported(spec, Mask.of(1), tmp_path / "pruned")
    picture = Image.new("RGB", (28, 28))
    read = [
        AutoProcessor.from_pretrained(place)(text=" ".join(["w2", *words[4:]]), images=picture, return_tensors="pt")
        for place in (spec.path, tmp_path / "pruned")
    ]
    assert read[0].keys() == read[1].keys() >= {"pixel_values"}
    assert all(torch.equal(read[0][name], read[1][name]) for name in read[0])
