"""What lies beside the weights goes along as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from raysearch.core.mask import Mask
from raysearch.models.spec import ModelSpec
from tests.models.test_export import dense, exported, speaking


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by place, without weights and config."""
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


def test_names_that_only_transformers_5_knows_are_replaced(tmp_path: Path) -> None:
    spec = speaking("llama", tmp_path)
    backend = Tokenizer(models.WordLevel({f"w{index}": index for index in range(128)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    added = [AddedToken("w5", special=True), "w6"]
    PreTrainedTokenizerFast(tokenizer_object=backend, extra_special_tokens=added).save_pretrained(spec.path)
    written = json.loads((Path(spec.path) / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "TokenizersBackend" and len(written["extra_special_tokens"]) == 2
    exported(spec, Mask.of(1), tmp_path / "pruned")
    config = json.loads((tmp_path / "pruned" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast" and "extra_special_tokens" not in config
    before, after = (AutoTokenizer.from_pretrained(place) for place in (spec.path, tmp_path / "pruned"))
    assert before.extra_special_tokens == after.extra_special_tokens == ["w5", "w6"]
    assert before("w5 w9", return_tensors=None) == after("w5 w9", return_tensors=None)


def test_a_gguf_files_tokenizer_is_one_that_transformers_4_knows(gguf: Path, tmp_path: Path) -> None:
    exported(ModelSpec("tiny", str(gguf)), Mask.of(1), tmp_path / "pruned")
    config = json.loads((tmp_path / "pruned" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] != "TokenizersBackend"
    config = json.loads((tmp_path / "pruned" / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] and config["torch_dtype"] == "float32"


def test_a_model_of_the_hub_is_exported_with_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    spec = speaking("llama", tmp_path)
    cached = tmp_path / "hub" / "models--me--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("a" * 40)
    (cached / "snapshots").mkdir()
    Path(spec.path).rename(cached / "snapshots" / ("a" * 40))
    exported(ModelSpec("tiny", "me/tiny"), Mask.of(1), tmp_path / "pruned")
    source, written = contents(cached / "snapshots" / ("a" * 40)), contents(tmp_path / "pruned")
    assert source["tokenizer.json"] == written["tokenizer.json"]


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """What a folder says of its tokenizer."""
    said: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
    return said


def test_code_goes_along_where_it_runs_and_is_not_named_elsewhere(tmp_path: Path) -> None:
    ...
