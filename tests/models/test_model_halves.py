"""The halves of a model are known before it is loaded: from layers with random weights."""

from pathlib import Path

import pytest

from raysearch.errors import UnsupportedModelError
from raysearch.models.description import describe
from raysearch.models.loading import load_model
from raysearch.models.model_halves import halves_of
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack
from tests.models.families import FAMILIES
from tests.sentences import Sentences


def _spec(family: str, folder: Path) -> ModelSpec:
    FAMILIES[family]().save_pretrained(folder)
    return ModelSpec(family, str(folder), dtype="float32", halves=True)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_moe"])
def test_the_halves_have_the_parameters_of_their_modules(family: str, tmp_path: Path):
    spec = _spec(family, tmp_path)
    info = describe(spec)
    stack = LayerStack(load_model(info.model))
    assert len(info.sites.parts) == 2 * len(stack.layers)
    for layer, module in enumerate(stack.layers):
        attention, mlp = info.sites.parts[2 * layer : 2 * layer + 2]
        # In these families the names tell the halves: the norms of the MLP have names of their own.
        of_attention = sum(
            weights.numel()
            for name, weights in module.named_parameters()
            if name.startswith(("self_attn", "input_layernorm"))
            or (name.startswith("post_attention_layernorm") and family == "gemma3_text")
        )
        assert attention.parameters == of_attention
        assert attention.parameters + mlp.parameters == info.sites[layer].parameters
        assert attention.cost + mlp.cost == 1


def test_the_halves_are_those_of_the_loaded_layers(tmp_path: Path):
    info = describe(_spec("gemma3_text", tmp_path))
    stack = LayerStack(load_model(info.model))
    for halves, module in zip(halves_of(info), stack.layers, strict=True):
        assert {*halves.part_of} == {name for name, _ in module.named_parameters()}


def test_a_model_whose_layers_have_no_halves_is_refused(tmp_path: Path, sentences: Sentences):
    for family in ("phi", "falcon"):
        spec = _spec(family, tmp_path / family)
        with sentences.refused(UnsupportedModelError, case=family):
            describe(spec)
