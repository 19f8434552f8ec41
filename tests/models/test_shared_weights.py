import copy

import torch

from raysearch.models.shared_weights import pack, unpack
from tests.cases import assert_each
from tests.models.families import FAMILIES


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
