"""The decoder's layers are found among the names of tensors, and renumbered."""

from __future__ import annotations

from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.layer_names import LayerNames
from raysearch.errors import UnsupportedModelError
from tests.sentences import Sentences


def names_of(stack: str, n_layers: int, part: str = "mlp.weight") -> list[str]:
    return [f"{stack}.{layer}.{part}" for layer in range(n_layers)]


def test_the_decoder_is_told_from_other_stacks() -> None:
    towers = [
        *names_of("vision_tower.vision_model.encoder.layers", 4),
        *names_of("model.visual.blocks", 4),
        *names_of("audio_tower.layers", 4),
        *names_of("talker.model.layers", 4),
        *names_of("model.encoder.layers", 4),
        *names_of("mtp.layers", 4),
        *names_of("model.vqmodel.decoder.up", 4),
    ]
    for stack in ("model.layers", "language_model.model.layers", "transformer.h", "h", "model.decoder.layers"):
        experts = [f"{name}.experts.{expert}" for name in names_of(stack, 4, "mlp") for expert in range(6)]
        assert LayerNames.of([*towers, *experts, "lm_head.weight"], 4).stack == stack


def test_a_decoder_may_be_called_an_encoder() -> None:
    names = LayerNames.of([*names_of("bert.encoder.layer", 4), *names_of("vision_model.encoder.layers", 4)], 4)
    assert names.stack == "bert.encoder.layer"
    assert names.is_in_layer("bert.encoder.layer.3.mlp.weight")
    assert not names.is_in_layer("bert.encoder.layer.4.mlp.weight")
    assert not names.is_in_layer("vision_model.encoder.layer.3.mlp.weight")


def test_layers_are_renumbered_and_heads_that_predict_follow_them() -> None:
    names = LayerNames.of(names_of("model.layers", 6), 4)
    new_names = {
        "model.layers.0.mlp.weight": "model.layers.0.mlp.weight",
        "model.layers.1.mlp.weight": None,
        "model.layers.2.mlp.experts.2.weight": "model.layers.1.mlp.experts.2.weight",
        "model.layers.3.mlp.weight": "model.layers.2.mlp.weight",
        "model.layers.4.eh_proj.weight": "model.layers.3.eh_proj.weight",
        "model.layers.5.eh_proj.weight": "model.layers.4.eh_proj.weight",
        "model.norm.weight": "model.norm.weight",
        "mtp.layers.0.mlp.weight": "mtp.layers.0.mlp.weight",
    }
    assert {name: names.renamed(name, KeptBlocks.whole([0, 2, 3], 4)) for name in new_names} == new_names
    predicting = {name for name in new_names if names.is_predicting(name)}
    assert predicting == {"model.layers.4.eh_proj.weight", "model.layers.5.eh_proj.weight", "mtp.layers.0.mlp.weight"}


def test_a_list_of_single_tensors_is_no_list_of_layers() -> None:
    """Gemma 3n has a few projections of its streams, which may be as many as the layers that are left."""
    projections = [f"model.altup_projections.{place}.weight" for place in range(4)]
    layers = [f"model.layers.{layer}.{part}.weight" for layer in range(4) for part in ("attn", "mlp")]
    assert LayerNames.of([*projections, *layers], 4).stack == "model.layers"


def test_names_of_an_unknown_form_are_refused(sentences: Sentences) -> None:
    for names in (["weight"], names_of("model.layers", 3), names_of("model.a", 4) + names_of("model.b", 4)):
        with sentences.refused(UnsupportedModelError):
            LayerNames.of(names, 4)
