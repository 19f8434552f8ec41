"""Rows with images go through the layers as the model's own forward takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raysearch.calibration.batch import Batch
from raysearch.cli.export_lines import checkpoint_lines
from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError
from raysearch.models import running_proof
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack, image_tensors
from raysearch.models.verification import handed_to_layers, image_logits, relative_gap, verify_images
from tests.cases import assert_each
from tests.models.families import _HEAD, _WIDTHS, N_LAYERS, tiny
from tests.models.test_export import exported
from tests.models.vlms import IMAGE, TEXT, build, write_vlm
from tests.sentences import Sentences

_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
_INTERLEAVED = {"rope_parameters": {**_MROPE["rope_parameters"], "mrope_interleaved": True}}
_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "depth": N_LAYERS,
    "num_heads": 4,
    "out_hidden_size": 32,
    "patch_size": 14,
}
_TOKENS = {"image_token_id": IMAGE, "video_token_id": 260, "vision_start_token_id": 261, "vision_end_token_id": 262}
#: Models of Qwen, whose own processors need torchvision.
QWEN: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"text_config": {**TEXT, **_MROPE}, "vision_config": _TOWER, **_TOKENS},
    "qwen3_vl": {
        "text_config": {**TEXT, **_HEAD, **_INTERLEAVED},
        "vision_config": {**_TOWER, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 2]},
        **_TOKENS,
    },
}


def photo_row(n_answer: int = 3) -> Batch:
    """Return a row with an image of 4 x 6 patches, which takes 2 x 3 tokens, as Qwen's processors make it."""
    random = np.random.default_rng(0)
    ids = np.array([[11, 261, *[IMAGE] * 6, 262, *random.integers(3, 250, size=4 + n_answer)]])
    images = {
        "pixel_values": random.normal(size=(24, 3 * 2 * 14 * 14)).astype(np.float32),
        "image_grid_thw": np.array([[1, 4, 6]]),
        "mm_token_type_ids": (ids == IMAGE).astype(np.int64),
    }
    return Batch(ids, np.arange(ids.size)[None] >= ids.size - n_answer, images=(images,))


def test_layers_get_the_positions_and_features_of_images() -> None:
    """Positions in three dimensions; of Qwen 3 also features that the model adds to the outputs of its first layers."""

    def check(kind: str) -> None:
        model = build(kind, QWEN[kind])
        stack = LayerStack(model)
        batch = photo_row()
        verify_images(stack, batch)
        captured = stack.capture(batch.inputs)
        assert captured.layers_with_features == ([0, 1] if kind == "qwen3_vl" else [])
        mask = Mask.of(2)
        walked = stack.logits(stack.walk(captured, mask)[0])[batch.inputs.predictors]
        text_model: Any = model.get_decoder()
        text_model.layers = nn.ModuleList(layer for index, layer in enumerate(text_model.layers) if index not in mask)
        assert relative_gap(walked, image_logits(model, batch)[0]) <= 1e-5

    assert_each(QWEN, check)


def test_rows_with_images_run_alone() -> None:
    """A shorter row in a batch has the states that it has by itself, and the padding is not part of it."""
    stack = LayerStack(build("qwen2_5_vl", QWEN["qwen2_5_vl"]))
    rows = [photo_row(n_answer) for n_answer in (2, 5)]
    images = [row.images[0] for row in rows if row.images is not None]
    together = Batch.of([row.input_ids[0] for row in rows], [row.scored[0] for row in rows], images=(*images,))
    states = stack.walk(stack.capture(together.inputs), Mask.of(1))
    for index, row in enumerate(rows):
        alone = stack.walk(stack.capture(row.inputs), Mask.of(1))
        assert torch.equal(states[index, : row.input_ids.size], alone[0])
    assert not states[0, rows[0].input_ids.size :].any()


def test_numbers_of_images_have_the_dtype_of_the_weights() -> None:
    (images,) = photo_row().images or ()
    tensors = image_tensors(images, torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        "pixel_values": torch.bfloat16,
        "image_grid_thw": torch.int64,
        "mm_token_type_ids": torch.int64,
    }


def test_a_model_that_uses_images_between_its_layers_otherwise_is_refused(sentences: Sentences) -> None:
    """What this model adds for an image depends on the hidden state, so it cannot be recorded."""
    model = build("qwen3_vl", QWEN["qwen3_vl"])
    text_model: Any = model.get_decoder()

    def scaled(hidden: torch.Tensor, places: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return hidden * (1 + places[..., None] * features.mean())

    text_model._deepstack_process = scaled
    with sentences.refused(UnsupportedModelError):
        verify_images(LayerStack(model), photo_row())


def test_what_layers_are_handed_has_the_features_of_images() -> None:
    model = build("qwen3_vl", QWEN["qwen3_vl"])
    before = handed_to_layers(LayerStack(model), photo_row())
    assert handed_to_layers(LayerStack(model), photo_row()) == before
    model.get_parameter("model.visual.deepstack_merger_list.1.linear_fc2.bias").data += 1
    after = handed_to_layers(LayerStack(model), photo_row())
    assert [old != new for old, new in zip(before, after, strict=True)] == [False, True, False, False]
    moved = photo_row()
    (images,) = moved.images or ()
    images["image_grid_thw"][:] = [[1, 6, 4]]
    assert all(old != new for old, new in zip(after, handed_to_layers(LayerStack(model), moved), strict=True))


def test_an_export_that_reads_images_otherwise_is_refused(
    tmp_path: Path, sentences: Sentences, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint's projector of images differs; on text it is the same model."""
    spec = write_vlm(tmp_path / "llava", "llava")

    def reload_other(*args: Any) -> Any:
        reloaded = reload(*args)
        reloaded.get_parameter("model.multi_modal_projector.linear_2.weight").data += 0.1
        return reloaded

    reload = running_proof._reload
    monkeypatch.setattr(running_proof, "_reload", reload_other)
    with sentences.refused(UnsupportedModelError):
        exported(spec, Mask.of(1), tmp_path / "pruned")


def test_an_export_without_an_image_in_its_proof_says_why(tmp_path: Path, sentences: Sentences) -> None:
    """It has no processor, or one whose images do not fit the model."""
    spec = write_vlm(tmp_path / "llava", "llava")
    processor = tmp_path / "llava" / "processor_config.json"
    processor.write_text(processor.read_text().replace("28", "56"))
    other_size = exported(spec, Mask.of(1), tmp_path / "pruned")
    processor.unlink()
    no_processor = exported(ModelSpec(spec.path, spec.path), Mask.of(1), tmp_path / "pruned-too")
    for export in (other_size, no_processor):
        assert export.image_text is not None
        sentences.check(export.image_text)
        assert export.image_text in (export.out / "README.md").read_text()
        assert export.image_text in checkpoint_lines(export, export.out, None, public=False)


def test_the_export_of_a_model_of_text_says_nothing_of_images(tmp_path: Path) -> None:
    tiny("llama", **_WIDTHS).save_pretrained(tmp_path / "llama")
    export = exported(ModelSpec("llama", str(tmp_path / "llama")), Mask.of(1), tmp_path / "pruned")
    assert export.image_text is None
    assert "image" not in (export.out / "README.md").read_text()
