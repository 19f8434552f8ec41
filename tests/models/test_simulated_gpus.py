"""On one GPU and on two, both simulated, everything is where it is needed, and the host waits once a unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import accelerate
import accelerate.utils
import numpy as np
import pytest
from accelerate import dispatch_model
from transformers import PreTrainedModel

from raysearch.assessment.spec import SpeedOptions
from raysearch.assessment.speed import SpeedJob
from raysearch.calibration.batch import Batch, Form
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import Objective
from raysearch.calibration.objectives.hidden_cosine import HiddenCosineObjective
from raysearch.calibration.objectives.kl import KLObjective
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.calibration.objectives.task_accuracy import TaskAccuracyObjective
from raysearch.calibration.objectives.task_margin import TaskMarginObjective
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import MaskUnit, StatisticUnit
from raysearch.generation.decoding import generate
from raysearch.models.loading import spread
from raysearch.models.stack import LayerStack
from raysearch.recovery.teacher import TeacherJob
from tests.cases import assert_each
from tests.generation.test_decoding import DECODINGS, Numbers, prompts
from tests.models.families import FAMILIES
from tests.models.simulated_gpus import SimulatedGpus, gpus, guard
from tests.models.test_verification import items

__all__ = ["gpus", "guard"]  # fixtures

#: The last leaves only what is on the first of two GPUs.
MASKS = tuple(Mask.of(*layers) for layers in [(), (0,), (1,), (2,), (0, 3), (1, 2, 3)])
Place = Callable[[PreTrainedModel], PreTrainedModel]


@pytest.fixture(params=["one", "two"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Puts a model on one GPU, or spreads it over two."""
    if request.param == "one":
        return lambda model: model.to("cuda:0")  # type: ignore[arg-type]

    def named(places: dict[str, int]) -> dict[str, str]:  # PyTorch gives numbers to devices that it has
        return {module: f"cuda:{number}" for module, number in places.items()}

    def over_two(model: PreTrainedModel) -> PreTrainedModel:
        size = sum(one.numel() * one.element_size() for one in model.parameters())
        memory = {0: size * 3 // 5, 1: size, "cpu": 0}
        monkeypatch.setattr(accelerate.utils, "get_balanced_memory", lambda *_, **__: memory)
        monkeypatch.setattr(accelerate, "dispatch_model", lambda model, places: dispatch_model(model, named(places)))
        found = spread(model, "tiny")
        assert {str(one.device) for one in found.parameters()} == {"cuda:0", "cuda:1"}
        return found

    return over_two


def text() -> Batch:
    """Five texts, of one of which only the end is scored."""
    scored = np.ones((5, 12), dtype=bool)
    scored[:, 0] = scored[1, :6] = False
    return Batch(np.random.default_rng(0).integers(3, 100, size=scored.shape), scored)


def calibration_of(objective: Objective) -> Calibration:
    batch = items() if objective.form is Form.CHOICES else text()
    return Calibration.create(objective, batch, 5, {"test": 1}, {})


@cache
def known_losses(objective: Objective, family: str) -> Mapping[Any, Any]:
    """The losses of all masks on the CPU."""
    calibration = calibration_of(objective)
    replica = Replica(LayerStack(FAMILIES[family]()), [calibration])
    return replica.evaluate(MaskUnit(calibration.fingerprint, 0, MASKS)).values


@pytest.mark.parametrize(
    ("objective", "families"),
    [
        (PerplexityObjective(), ["llama", "gemma2", "gpt2", "falcon", "mixtral", "deepseek_v3"]),
        (KLObjective(), ["llama"]),
        (HiddenCosineObjective(), ["llama"]),
        (TaskMarginObjective(), ["llama"]),
        (TaskAccuracyObjective("characters"), ["llama"]),
    ],
)
def test_losses(gpus: SimulatedGpus, place: Place, objective: Any, families: list[str]) -> None:
    calibration = calibration_of(objective)

    def check(family: str) -> None:
        known = known_losses(objective, family)
        replica = Replica(LayerStack(place(FAMILIES[family]())), [calibration])
        waits = []
        for masks in (MASKS[:2], MASKS, MASKS[:2]):  # first, whether choices are packed is found out
            gpus.waits.clear()
            found = replica.evaluate(MaskUnit(calibration.fingerprint, 0, masks)).values
            waits.append(len(gpus.waits))
            for mask in masks:
                np.testing.assert_allclose(found[mask], known[mask], rtol=1e-5, atol=1e-5)
        assert waits[1] == waits[2], "the host waits for each mask"

    assert_each(families, check)


def test_statistics(gpus: SimulatedGpus, place: Place) -> None:
    calibration = calibration_of(PerplexityObjective())
    expected = Replica(LayerStack(FAMILIES["gemma2"]()), [calibration])
    replica = Replica(LayerStack(place(FAMILIES["gemma2"]())), [calibration])

    def check(statistic: Statistic) -> None:
        unit = StatisticUnit(calibration.fingerprint, 0, statistic)
        found, known = (one.evaluate(unit).values[statistic] for one in (replica, expected))
        np.testing.assert_allclose(found, known, rtol=1e-5, atol=1e-6)

    assert_each([one for one in Statistic if not one.needs_gradients], check)


@pytest.mark.parametrize("way", ["greedy", "nucleus"])
def test_generated_texts(gpus: SimulatedGpus, place: Place, way: str) -> None:
    texts = []
    for model in (FAMILIES["llama"](), place(FAMILIES["llama"]())):
        with LayerStack(model).bypassed(Mask.of(1)) as pruned:
            texts.append(generate(pruned, Numbers(), prompts(4), DECODINGS[way], 3)[0])
    assert texts[0] == texts[1]


def test_what_a_student_learns_from(gpus: SimulatedGpus, place: Place) -> None:
    job = TeacherJob(0, ((3, 4, 5, 6), (7, 8, 9)), (1, 2), 5)
    known = job.run(Replica(LayerStack(FAMILIES["llama"]())))
    for one, other in zip(job.run(Replica(LayerStack(place(FAMILIES["llama"]())))), known, strict=True):
        assert np.array_equal(one.ids, other.ids) and np.allclose(one.log_p, other.log_p, atol=1e-3)


def test_speeds(gpus: SimulatedGpus, place: Place) -> None:
    model = place(FAMILIES["llama"]())
    job = SpeedJob((Mask.of(1),), SpeedOptions(context_tokens=8, new_tokens=4, repeats=1))
    found = job.run(Replica(LayerStack(model)))[Mask.of(1)]
    n_gpus = len({one.device for one in model.parameters()})
    assert found["working_bytes"] == 500 * n_gpus and found["machine"].endswith("simulated")
