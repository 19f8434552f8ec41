import copy
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.hub import HF_MODULES_CACHE
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from raysearch.models.shared_weights import attach, detach
from tests.cases import assert_each
from tests.models.families import FAMILIES, give_own_code
from tests.models.vlms import IMAGE, VLMS, build


def test_a_model_comes_back_as_it_was():
    def check(family):
        model = FAMILIES[family]()
        ids = torch.arange(10)[None]
        rebuilt = attach(*detach(copy.deepcopy(model)))
        with torch.inference_mode():
            assert torch.equal(rebuilt.forward(input_ids=ids).logits, model.forward(input_ids=ids).logits)

    assert_each(FAMILIES, check)


def test_the_tensors_are_shared_not_copied():
    model = FAMILIES["llama"]()
    _, arrays = detach(model)
    rebuilt = attach(*detach(model))
    addresses = {array.ctypes.data for array in arrays}
    assert {parameter.data_ptr() for parameter in model.parameters()} <= addresses
    assert [p.data_ptr() for p in rebuilt.parameters()] == [p.data_ptr() for p in model.parameters()]


def test_half_precision_is_kept():
    for model in (FAMILIES["llama"]().bfloat16(), FAMILIES["llama"]().half()):
        rebuilt = attach(*detach(model))
        assert all(torch.equal(a, b) for a, b in zip(rebuilt.parameters(), model.parameters(), strict=True))


def test_tied_weights_stay_tied():
    model = FAMILIES["gemma2"]()
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    rebuilt = attach(*detach(model))
    assert rebuilt.get_input_embeddings().weight is rebuilt.get_output_embeddings().weight


def test_a_model_of_own_code_goes_to_a_process_that_has_not_loaded_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = [folder for folder in sys.path if folder != HF_MODULES_CACHE]  # another test may have filled that
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*before])
    FAMILIES["llama"]().save_pretrained(tmp_path / "own")
    give_own_code(tmp_path / "own")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "own", trust_remote_code=True)
    detached = detach(model)
    monkeypatch.setattr(sys, "path", before)  # from here on, this process is like one that has not loaded the class
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]
    rebuilt = attach(*detached)
    assert type(rebuilt).__name__ == "Own", "its class was imported again"
    assert type(rebuilt) is not type(model), "its class was imported again"


def test_a_model_that_reads_images_goes_to_a_process_that_has_built_none():
    """The projector of LLaVA reads the states of an inner layer of the tower."""
    model = build("llava", VLMS["llava"][0])
    inputs = {"input_ids": torch.tensor([[5, *[IMAGE] * 4, 6]]), "pixel_values": torch.ones(1, 3, 28, 28)}
    with torch.inference_mode():
        expected = model(**inputs).logits
        detached = detach(build("llava", VLMS["llava"][0]))
        built_classes = dict(_CAN_RECORD_REGISTRY)
        _CAN_RECORD_REGISTRY.clear()  # from here on, this process is like a new one
        try:
            assert torch.equal(attach(*detached)(**inputs).logits, expected)
        finally:
            _CAN_RECORD_REGISTRY.update(built_classes)
