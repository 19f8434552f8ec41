import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from raysearch.models.shared_weights import pack, unpack
from tests.cases import assert_each
from tests.models.families import FAMILIES, give_own_code


def test_a_model_comes_back_as_it_was():
    def check(family):
        model = FAMILIES[family]()
        ids = torch.arange(10)[None]
        rebuilt = unpack(*pack(copy.deepcopy(model)))
        with torch.inference_mode():
            assert torch.equal(rebuilt.forward(input_ids=ids).logits, model.forward(input_ids=ids).logits)

    assert_each(FAMILIES, check)


def test_the_tensors_are_shared_not_copied():
    model = FAMILIES["llama"]()
    _, arrays = pack(model)
    rebuilt = unpack(*pack(model))
    addresses = {array.ctypes.data for array in arrays}
    assert {parameter.data_ptr() for parameter in model.parameters()} <= addresses
    assert [p.data_ptr() for p in rebuilt.parameters()] == [p.data_ptr() for p in model.parameters()]


def test_half_precision_travels():
    for model in (FAMILIES["llama"]().bfloat16(), FAMILIES["llama"]().half()):
        rebuilt = unpack(*pack(model))
        assert all(torch.equal(a, b) for a, b in zip(rebuilt.parameters(), model.parameters(), strict=True))


def test_tied_weights_stay_tied():
    model = FAMILIES["gemma2"]()
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    rebuilt = unpack(*pack(model))
    assert rebuilt.get_input_embeddings().weight is rebuilt.get_output_embeddings().weight


def test_a_model_of_own_code_goes_to_a_process_that_has_not_loaded_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    modules = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    FAMILIES["llama"]().save_pretrained(tmp_path / "own")
    give_own_code(tmp_path / "own")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "own", trust_remote_code=True)
    (tmp_path / "packed").write_bytes(pickle.dumps(pack(model)))
    there = (
        "import pickle, sys; from raysearch.models.shared_weights import unpack; "
        "print(type(unpack(*pickle.load(open(sys.argv[1], 'rb')))).__name__)"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": modules}
    done = subprocess.run(
        [sys.executable, "-c", there, tmp_path / "packed"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "Own", done.stderr
