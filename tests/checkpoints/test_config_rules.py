"""Values of a config that depend on layers are those of the kept layers."""

from __future__ import annotations

from typing import Any

from raysearch.checkpoints.config_rules import cut_config, image_layers
from raysearch.checkpoints.kept_blocks import KeptBlocks

_KEPT = KeptBlocks.whole([0, 2, 3], 4)  # of four layers


def cut(values: dict[str, Any], n_predicting: int = 0) -> dict[str, Any]:
    return cut_config({"num_hidden_layers": 4, **values}, _KEPT, n_predicting)


def test_values_of_layers_that_predict_stay_at_the_end() -> None:
    assert cut({"layer_types": ["a", "b", "c", "d", "mtp"]}, n_predicting=1)["layer_types"] == ["a", "c", "d", "mtp"]
    assert cut({"num_nextn_predict_layers": 1}, n_predicting=1)["num_nextn_predict_layers"] == 1


def test_the_part_for_text_changes_and_the_others_do_not() -> None:
    vision = {"num_hidden_layers": 4, "layer_types": ["v"] * 4}
    text = {"num_hidden_layers": 4, "layer_types": ["a", "b", "c", "d"]}
    config = {"vision_config": vision, "text_config": text, "vision_feature_layers": [0, 1, 2, 3]}
    written = cut_config(config, _KEPT)
    assert written["vision_config"] == vision
    assert written["vision_feature_layers"] == [0, 1, 2, 3]
    assert written["text_config"] == {"num_hidden_layers": 3, "layer_types": ["a", "c", "d"]}
    repeated = cut_config({**config, "num_hidden_layers": 4, "layer_types": text["layer_types"]}, _KEPT)
    assert (repeated["num_hidden_layers"], repeated["layer_types"]) == (3, ["a", "c", "d"])


def test_layers_at_whose_places_images_are_added_are_known_and_renumbered() -> None:
    config = {
        "vision_config": {"deepstack_visual_indexes": [5]},
        "text_config": {"num_hidden_layers": 4},
        "deepstack_layer_map": [[-2, 0], [-1, 2]],
        "spatial_target_layers": [2, 3],
    }
    assert image_layers(config) == (0, 2, 3)
    assert image_layers({"vision_config": {"deepstack_visual_indexes": [5, 8]}}) == (0, 1)
    assert image_layers({"vision_config": None}) == ()
    written = cut_config(config, _KEPT)
    assert written["deepstack_layer_map"] == [[-2, 0], [-1, 1]]
    assert written["spatial_target_layers"] == [1, 2]
    assert written["vision_config"] == config["vision_config"]
