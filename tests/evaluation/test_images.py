"""Losses on images are those of the whole model without the mask's layers, run by transformers alone."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from transformers import AutoModelForMultimodalLM, AutoProcessor

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.configuration import build
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.evaluation.prepared_data import prepare_data
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MaskUnit, StatisticUnit
from raysearch.models.description import describe
from raysearch.models.loading import load_model
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack
from tests.models.test_export import exported
from tests.models.test_images import QWEN, photo_row
from tests.models.vlms import IMAGE, VLMS, write_photos, write_vlm
from tests.models.vlms import build as build_model
from tests.sentences import Sentences

MASK = Mask.of(1, 2)
MASKS = (Mask(), Mask.of(0), MASK)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return write_vlm(tmp_path_factory.mktemp("vlm") / "llava", "llava")


def calibrated(spec: ModelSpec, photos: Path, *overrides: str) -> Calibration:
    """Return the calibration of a model on all rows of a file, in shards of up to three rows."""
    data = [
        f"data.path={photos}",
        "data.samples=all",
        "data.sampling=sequential",
        "data.shard_samples=3",
        "data.seq_len=512",
    ]
    search = build.search_spec([f"model={spec.path}", "model.cache=false", "data=image_text", *data, *overrides])
    return prepare_data(search.evaluation, describe(spec)).calibrations[0]


def replica_of(spec: ModelSpec, *calibrations: Calibration) -> Replica:
    return Replica(LayerStack(load_model(locate(spec))), calibrations)


def losses(replica: Replica, calibration: Calibration) -> dict[Mask, list[float]]:
    """Return the loss of each row of a calibration by mask, sorted, since rows are dealt to the shards."""
    values: dict[Mask, list[float]] = {mask: [] for mask in MASKS}
    for shard in range(calibration.n_shards):
        result = replica.evaluate(MaskUnit(calibration.fingerprint, shard, MASKS))
        for mask in MASKS:
            values[mask] += result.values[mask].tolist()
    return {mask: sorted(rows) for mask, rows in values.items()}


def without_layers(model: Any, mask: Mask) -> Any:
    """Return a copy of a model of transformers without the mask's layers."""
    pruned = copy.deepcopy(model)
    decoder = pruned.get_decoder()
    kept_layers = [layer for layer in range(len(decoder.layers)) if layer not in mask]
    decoder.layers = nn.ModuleList(decoder.layers[layer] for layer in kept_layers)
    decoder.config.num_hidden_layers = len(kept_layers)
    if (kinds := getattr(decoder.config, "layer_types", None)) is not None:
        decoder.config.layer_types = [kinds[layer] for layer in kept_layers]
    return pruned


@torch.inference_mode()
def whole_losses(model: Any, processor: Any, photos: Path) -> list[float]:
    """Return the loss of the answer in each row, by transformers' own model, processor and chat template, sorted."""
    losses = []
    for row in map(json.loads, photos.read_text().splitlines()):
        names = row["image"] if isinstance(row["image"], list) else [row["image"]]
        images = [{"type": "image", "image": Image.open(photos.parent / name)} for name in names]
        turns = [
            {"role": "user", "content": [*images, {"type": "text", "text": row["question"]}]},
            {"role": "assistant", "content": [{"type": "text", "text": row["answer"]}]},
        ]
        inputs = processor.apply_chat_template(turns, tokenize=True, return_dict=True, return_tensors="pt")
        logits = model(**inputs, use_cache=False).logits[0].double()
        # The text ends in the bytes of the answer, <end> and a line break.
        places = range(logits.shape[0] - len(row["answer"]) - 2, logits.shape[0] - 1)
        targets = inputs["input_ids"][0, [*places]]
        predictions = logits[[place - 1 for place in places]]
        losses.append(float(functional.cross_entropy(predictions, targets, reduction="sum")))
    return sorted(losses)


@pytest.mark.parametrize("kind", VLMS)
def test_losses_are_those_of_the_whole_model_and_of_the_export(kind: str, photos: Path, tmp_path: Path) -> None:
    spec = write_vlm(tmp_path / "dense", kind)
    calibration = calibrated(spec, photos)
    values = losses(replica_of(spec, calibration), calibration)
    model = AutoModelForMultimodalLM.from_pretrained(spec.path).eval()
    processor = AutoProcessor.from_pretrained(spec.path)
    for mask in MASKS:
        np.testing.assert_allclose(
            values[mask], whole_losses(without_layers(model, mask), processor, photos), rtol=1e-5
        )
    assert max(np.abs(np.subtract(values[MASK], values[Mask()]))) > 0.1, "the layers matter"
    export = exported(spec, MASK, tmp_path / "pruned")
    reloaded = AutoModelForMultimodalLM.from_pretrained(export.out).eval()
    processor = AutoProcessor.from_pretrained(export.out)
    np.testing.assert_allclose(values[MASK], whole_losses(reloaded, processor, photos), rtol=1e-5)
    assert export.max_logit_difference is not None
    assert export.max_logit_difference <= 1e-5
    assert export.image_text == "The comparison included an image, which the model's own processor encoded."
    assert export.image_text in (export.out / "README.md").read_text()


def test_the_vision_tower_runs_once_for_each_row(llava: ModelSpec, photos: Path) -> None:
    calibration = calibrated(llava, photos)
    replica = replica_of(llava, calibration)
    losses(replica, calibration)  # checks the model first
    rows: list[int] = []
    tower: Any = replica.stack.model.get_submodule("model.vision_tower")
    tower.register_forward_hook(lambda module, args, output: rows.append(len(output.last_hidden_state)))
    losses(replica, calibration)
    assert sorted(rows) == [1, 1, 1, 2], "once for each row, whatever the number of masks; a row has two images"


def test_another_picture_is_another_calibration(llava: ModelSpec, photos: Path, tmp_path: Path) -> None:
    before = calibrated(llava, photos)
    assert calibrated(llava, photos).fingerprint == before.fingerprint
    other = write_photos(tmp_path / "other")
    Image.new("RGB", (40, 28), "red").save(other.parent / "pictures" / "0.png")
    after = calibrated(llava, other)
    assert after.fingerprint != before.fingerprint
    assert after.text_fingerprint != before.text_fingerprint
    keys = [{key for shard in calibration.shards for key in shard.keys} for calibration in (before, after)]
    assert len(keys[0] & keys[1]) == 2, "two rows do not show the picture"


def test_a_calibration_travels_with_its_images(llava: ModelSpec, photos: Path) -> None:
    """A replica on another machine needs no file of the data."""
    calibration = calibrated(llava, photos)
    sent: Calibration = pickle.loads(pickle.dumps(calibration))
    assert losses(replica_of(llava, sent), sent) == losses(replica_of(llava, calibration), calibration)


def test_shards_hold_their_own_images(llava: ModelSpec, photos: Path) -> None:
    """Losses do not depend on how rows are dealt to shards; the cost counts the places of images."""
    whole = calibrated(llava, photos, "data.shard_samples=4")
    single = calibrated(llava, photos, "data.shard_samples=1")
    assert (whole.n_shards, single.n_shards) == (1, 4)
    assert losses(replica_of(llava, whole), whole) == losses(replica_of(llava, single), single)
    (batch,) = whole.shards
    assert sorted((batch.input_ids == IMAGE).sum(axis=1)) == [4, 4, 4, 8]


def test_other_objectives_and_statistics_see_the_images(llava: ModelSpec, photos: Path, tmp_path: Path) -> None:
    calibration = calibrated(llava, photos, "objective=kl", "data.shard_samples=4")
    other = write_photos(tmp_path / "other")
    for file in (other.parent / "pictures").iterdir():
        Image.new("RGB", (40, 28), "red").save(file)
    red = calibrated(llava, other, "objective=kl", "data.shard_samples=4")
    replica = replica_of(llava, calibration, red)
    values = [losses(replica, part) for part in (calibration, red)]
    assert values[0][Mask()] == pytest.approx([0.0] * 4, abs=1e-9)
    assert values[0][MASK] != values[1][MASK]
    statistic = Statistic.BLOCK_INFLUENCE
    influences, red_influences = (
        replica.evaluate(StatisticUnit(part.fingerprint, 0, statistic)).values[statistic] for part in (calibration, red)
    )
    assert influences.shape == (4, 4)
    assert np.abs(influences - red_influences).max() > 1e-4


def test_masks_that_lose_features_of_images_are_refused(sentences: Sentences, tmp_path: Path, photos: Path) -> None:
    """Qwen 3 adds features of images to the outputs of its first layers; other masks are judged."""
    folder = tmp_path / "qwen3_vl"
    model = build_model("qwen3_vl", QWEN["qwen3_vl"])
    model.save_pretrained(folder)
    calibration = Calibration.create(PerplexityObjective(), photo_row(), 1, {}, {})
    replica = Replica(LayerStack(model), [calibration])
    values = replica.evaluate(MaskUnit(calibration.fingerprint, 0, (Mask(), Mask.of(2, 3)))).values
    assert values[Mask()] != values[Mask.of(2, 3)]
    halves = Mask.of("2m", "3a")
    assert replica.evaluate(MaskUnit(calibration.fingerprint, 0, (halves,))).values[halves] != values[Mask()]
    for mask in (Mask.of(1), Mask.of("1m", "2a")):
        with sentences.refused(UnsupportedModelError, str(mask)):
            replica.evaluate(MaskUnit(calibration.fingerprint, 0, (Mask(), mask)))
    overrides = [f"model={folder}", "data=image_text", f"data.path={photos}", "remove=1"]
    with sentences.refused(UserError):
        search = build.search_spec(overrides)
        search.problem(describe(search.evaluation.model))
    search = build.search_spec([*overrides, "protect=[0,1]"])
    assert search.problem(describe(search.evaluation.model)).free == (2, 3)
