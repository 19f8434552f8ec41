"""On one or two simulated GPUs, tensors are on the right device, and the host waits once for each unit."""

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
from raysearch.searching.speed_options import SpeedOptions
from tests.cases import assert_each
from tests.generation.test_decoding import DECODINGS, Numbers, prompts
from tests.models.families import FAMILIES, PASSING
from tests.models.simulated_gpus import SimulatedGpus, gpus, guard
from tests.models.test_verification import items

__all__ = ["gpus", "guard"]  # fixtures

pytestmark = pytest.mark.slow

#: The last mask keeps only layers on the first of two GPUs.
MASKS = tuple(Mask.of(*layers) for layers in [(), (0,), (1,), (2,), (0, 3), (1, 2, 3)])
_FAMILIES = FAMILIES | PASSING
Place = Callable[[PreTrainedModel], PreTrainedModel]


@pytest.fixture(params=["one", "two"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A function that moves a model to one GPU, or spreads it over two."""
    if request.param == "one":
        return lambda model: model.to("cuda:0")  # type: ignore[arg-type]

    def named(places: dict[str, int]) -> dict[str, str]:  # PyTorch accepts numbers only of devices that exist
        return {module: f"cuda:{number}" for module, number in places.items()}

    def over_two(model: PreTrainedModel) -> PreTrainedModel:
        size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        memory = {0: size * 3 // 5, 1: size, "cpu": 0}
        monkeypatch.setattr(accelerate.utils, "get_balanced_memory", lambda *_, **__: memory)
        monkeypatch.setattr(accelerate, "dispatch_model", lambda model, places: dispatch_model(model, named(places)))
        model = spread(model, "tiny")
        assert {str(parameter.device) for parameter in model.parameters()} == {"cuda:0", "cuda:1"}
        return model

    return over_two


def text() -> Batch:
    """Return five texts. Only the end of one of them is scored."""
    scored = np.ones((5, 12), dtype=bool)
    scored[:, 0] = scored[1, :6] = False
    return Batch(np.random.default_rng(0).integers(3, 100, size=scored.shape), scored)


def calibration_of(objective: Objective) -> Calibration:
    batch = items() if objective.form is Form.CHOICES else text()
    return Calibration.create(objective, batch, 5, {"test": 1}, {})


@cache
def cpu_losses(objective: Objective, family: str) -> Mapping[Any, Any]:
    """Return the losses of all masks on the CPU."""
    calibration = calibration_of(objective)
    replica = Replica(LayerStack(_FAMILIES[family]()), [calibration])
    return replica.evaluate(MaskUnit(calibration.fingerprint, 0, MASKS)).values


@pytest.mark.parametrize(
    ("objective", "families"),
    [
        (PerplexityObjective(), ["llama", "gemma2", "gpt2", "falcon", "mixtral", "deepseek_v3", "hy_v4"]),
        (KLObjective(), ["llama"]),
        (HiddenCosineObjective(), ["llama"]),
        (TaskMarginObjective(), ["llama"]),
        (TaskAccuracyObjective("characters"), ["llama"]),
    ],
)
def test_losses(gpus: SimulatedGpus, place: Place, objective: Any, families: list[str]) -> None:
    calibration = calibration_of(objective)

    def check(family: str) -> None:
        expected = cpu_losses(objective, family)
        replica = Replica(LayerStack(place(_FAMILIES[family]())), [calibration])
        waits = []
        for masks in (MASKS[:2], MASKS, MASKS[:2]):  # the first call also decides whether choices are packed
            gpus.waits.clear()
            losses = replica.evaluate(MaskUnit(calibration.fingerprint, 0, masks)).values
            waits.append(len(gpus.waits))
            for mask in masks:
                np.testing.assert_allclose(losses[mask], expected[mask], rtol=1e-5, atol=1e-5)
        assert waits[1] == waits[2], "the host waits for each mask"

    assert_each(families, check)


def test_statistics(gpus: SimulatedGpus, place: Place) -> None:
    calibration = calibration_of(PerplexityObjective())
    cpu_replica = Replica(LayerStack(FAMILIES["gemma2"]()), [calibration])
    replica = Replica(LayerStack(place(FAMILIES["gemma2"]())), [calibration])

    def check(statistic: Statistic) -> None:
        unit = StatisticUnit(calibration.fingerprint, 0, statistic)
        rows = replica.evaluate(unit).values[statistic]
        np.testing.assert_allclose(rows, cpu_replica.evaluate(unit).values[statistic], rtol=1e-5, atol=1e-6)

    assert_each([statistic for statistic in Statistic if not statistic.needs_gradients], check)


@pytest.mark.parametrize("way", ["greedy", "nucleus"])
def test_generated_texts(gpus: SimulatedGpus, place: Place, way: str) -> None:
    texts = []
    for model in (FAMILIES["llama"](), place(FAMILIES["llama"]())):
        with LayerStack(model).bypassed(Mask.of(1)) as pruned:
            texts.append(generate(pruned, Numbers(), prompts(4), DECODINGS[way], 3)[0])
    assert texts[0] == texts[1]


def test_answers_of_a_teacher(gpus: SimulatedGpus, place: Place) -> None:
    job = TeacherJob(0, ((3, 4, 5, 6), (7, 8, 9)), (1, 2), 5)
    cpu_answers = job.run(Replica(LayerStack(FAMILIES["llama"]())))
    answers = job.run(Replica(LayerStack(place(FAMILIES["llama"]()))))
    for answer, expected in zip(answers, cpu_answers, strict=True):
        assert np.array_equal(answer.ids, expected.ids)
        assert np.allclose(answer.log_p, expected.log_p, atol=1e-3)


def test_speeds(gpus: SimulatedGpus, place: Place) -> None:
    model = place(FAMILIES["llama"]())
    job = SpeedJob((Mask.of(1),), SpeedOptions(context_tokens=8, new_tokens=4, repeats=1))
    result = job.run(Replica(LayerStack(model)))[Mask.of(1)]
    n_gpus = len({parameter.device for parameter in model.parameters()})
    assert result["working_bytes"] == 500 * n_gpus
    assert result["machine"].endswith("simulated")
