"""The recovered checkpoint of models that bring more than weights and a tokenizer."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from raysearch.core.mask import Mask
from raysearch.models.spec import ModelSpec
from raysearch.recovery.checkpoint import RecoveryEvidence, write_checkpoint
from raysearch.recovery.trainer import TrainingRows
from tests.calibration.tokenizers import PLAIN, characters
from tests.models.families import give_own_code
from tests.recovery.test_training import OPTIONS, rows, run


@pytest.mark.parametrize("method", ["lora", "full"])
def test_code_several_templates_and_a_pattern_of_targets(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model_folder = tmp_path / "own"
    shutil.copytree(checkpoint, model_folder)
    characters(template={"default": PLAIN, "other": PLAIN}).save_pretrained(model_folder)
    assert (model_folder / "additional_chat_templates").is_dir()
    give_own_code(model_folder)
    model = ModelSpec("own", str(model_folder), trust_remote_code=True)
    options = replace(OPTIONS, method=method, targets=".*(q|v)_proj", learning_rate=1e-3)
    data = TrainingRows.of(rows(tokenizer), options)
    folder = tmp_path / "kept"
    trained = run(model_folder, data, options, folder, trust_remote_code=True)
    secret = "glpat-" + "x7" * 10
    evidence = RecoveryEvidence(
        "recover-1", "search-1", "own", Mask(), 2, options, 12, {"path": f"/{secret}.txt"}, {}, trained, "0"
    )
    write_checkpoint(model, folder / "trained", out := tmp_path / "out", evidence)
    assert (out / "additional_chat_templates/other.jinja").is_file()
    assert not [file for file in ("README.md", "raysearch.json") if secret in (out / file).read_text()]
    healed = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=model.trust_remote_code)
    assert type(healed).__name__ == "Own"
    assert (out / "config.json").read_bytes() == (model_folder / "config.json").read_bytes()
    if method == "lora":
        adapter = json.loads((out / "adapter/adapter_config.json").read_text())
        assert adapter["target_modules"] == ".*(q|v)_proj"
        assert adapter["base_model_name_or_path"] is None
        texts = [file.read_text() for suffix in ("json", "md") for file in out.glob(f"**/*.{suffix}")]
        assert not [text for text in texts if str(tmp_path) in text], "others read it on other machines"
        pruned = AutoModelForCausalLM.from_pretrained(model_folder, trust_remote_code=True)
        assert (
            PeftModel.from_pretrained(pruned, str(out / "adapter")).peft_config["default"].to_dict()["r"]
            == options.lora_r
        )
