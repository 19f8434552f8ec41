"""Speed and memory: dense and pruned in one run, medians, one measurement for masks of one size."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch

from raysearch.assessment import speed
from raysearch.cli.study_tables import assessment_table
from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError
from raysearch.evaluation.replica import Replica
from raysearch.searching.speed_options import SpeedOptions
from tests.assessment.conftest import Assess
from tests.cli.conftest import World
from tests.sentences import Sentences

OPTIONS = SpeedOptions(context_tokens=8, new_tokens=6, repeats=2)
WORDS = [f"assess.speed.{key}={value}" for key, value in vars(OPTIONS).items()]


def test_dense_and_masks_are_timed_in_turn(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    times = iter(range(1, 100))
    fewer = Mask.of(1, 2)

    def timed(model, vocab_size, options):
        calls = [layer.__dict__.get("forward") is not None for layer in replica.stack.layers]
        turns.append(Mask.of(*(number for number, bypassed in enumerate(calls) if bypassed)))
        return speed._Timing(prefill_s=0.5, decode_s=float(next(times)))

    monkeypatch.setattr(speed, "_time", timed)
    options = dataclasses.replace(OPTIONS, repeats=3)
    summaries = speed.SpeedJob((fewer,), options).run(replica)
    assert turns == [Mask(), fewer] * 5, "one turn to warm up, one for memory, then three"
    assert summaries[Mask()]["decode_s"] == [5, 7, 9]
    assert summaries[fewer]["decode_s"] == [6, 8, 10]
    assert summaries[fewer]["decode_tokens_per_s"] == pytest.approx(5 / 8)
    assert summaries[fewer]["prefill_tokens_per_s"] == pytest.approx(8 / 0.5)
    results = speed.speed_results(summaries[fewer])
    retention = results["decode_tokens_per_s"].retention
    assert retention
    assert retention.value == pytest.approx(7 / 8)
    ratios = [5 / 6, 7 / 8, 9 / 10]
    assert retention.error == pytest.approx(math.sqrt(math.pi / 2) * np.std(ratios, ddof=1) / math.sqrt(3))
    speeds = results["decode_tokens_per_s"].estimate
    assert speeds.error == pytest.approx(math.sqrt(math.pi / 2) * np.std([5 / 6, 5 / 8, 5 / 10], ddof=1) / math.sqrt(3))
    assert results["peak_memory_bytes"].estimate.error is None
    of_dense = math.sqrt(math.pi / 2) * np.std([5 / 5, 5 / 7, 5 / 9], ddof=1) / math.sqrt(3)
    assert results["decode_tokens_per_s"].detail["dense_error"] == pytest.approx(of_dense)
    table = assessment_table("", fewer, {}, results)
    assert "±" in "".join(table.columns[1]._cells), "the dense model's error is shown"  # type: ignore[arg-type]


def test_a_model_that_cannot_generate_with_a_mask_is_one_sentence(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ValueError("matC_old has wrong shape")

    monkeypatch.setattr(replica.stack.model, "generate", broken)
    with sentences.refused(UnsupportedModelError):
        speed.SpeedJob((Mask.of(1),), OPTIONS).run(replica)


def test_each_mask_is_compared_with_the_dense_model_just_before_it(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([1.0] * 8 + [2.0, 4.0, 10.0, 5.0] * 2)  # dense, a mask, dense on a slower machine, another mask
    monkeypatch.setattr(speed, "_time", lambda *arguments: speed._Timing(prefill_s=0.5, decode_s=next(times)))
    first = Mask.of(1)
    second = Mask.of(1, 2)
    summaries = speed.SpeedJob((first, second), OPTIONS).run(replica)
    retentions = {
        mask: speed.speed_results(summaries[mask])["decode_tokens_per_s"].retention for mask in (first, second)
    }
    assert [retention.value for retention in retentions.values() if retention] == pytest.approx([0.5, 2.0])


def test_weights_of_removed_layers_do_not_count(replica: Replica) -> None:
    summaries = speed.SpeedJob((Mask.of(0, 3),), OPTIONS).run(replica)
    model = replica.stack.model
    held = [*model.parameters(), *model.buffers()]
    assert summaries[Mask()]["weights_bytes"] == sum(tensor.numel() * tensor.element_size() for tensor in held)
    layer = sum(parameter.numel() * parameter.element_size() for parameter in replica.stack.layers[0].parameters())
    assert summaries[Mask()]["weights_bytes"] - summaries[Mask.of(0, 3)]["weights_bytes"] == 2 * layer
    pruned = summaries[Mask.of(0, 3)]
    assert pruned["peak_memory_bytes"] == pruned["weights_bytes"] + pruned["working_bytes"]
    assert len(pruned["decode_s"]) == 2
    assert min(pruned["decode_s"] + pruned["prefill_s"]) > 0


def test_memory_has_a_fallback_that_says_so(replica: Replica, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(speed, "_PROC", tmp_path / "nothing")
    summaries = speed.SpeedJob((), OPTIONS).run(replica)
    assert "lower bound" in summaries[Mask()]["memory_source"]


def test_growth_of_memory_is_seen() -> None:
    memory = speed.PeakMemory.of([torch.device("cpu")])
    block = torch.ones(64 * 2**20 // 4)
    del block
    assert 60 * 2**20 < memory.growth() < 100 * 2**20


def test_masks_of_one_size_are_measured_once(assess: Assess, world: World) -> None:
    assessments = assess([Mask.of(0, 2), Mask.of(1, 3), Mask.of(4)], *WORDS)
    assert assessments.computed == 3, "the dense model, and two sizes"
    assert assessments.values[Mask.of(0, 2)] == assessments.values[Mask.of(1, 3)]
    assert {metric.unit for metric in assessments.metrics} == {"tokens/s", "bytes"}
    repeated = assess([Mask.of(1, 2)], *WORDS)
    assert repeated.computed == 0
    assert repeated.values[Mask.of(1, 2)] == assessments.values[Mask.of(0, 2)]


def test_speeds_that_stand_side_by_side_are_of_one_run(assess: Assess) -> None:
    first = assess([Mask.of(4)], *WORDS)
    more = assess([Mask.of(4), Mask.of(3, 4)], *WORDS)
    assert more.computed == 3
    assert more.values[Mask.of(4)] != first.values[Mask.of(4)]
    for results in more.by_mask.values():
        decoding = results["decode_tokens_per_s"]
        assert decoding.retention
        assert decoding.retention.value == pytest.approx(decoding.estimate.value / decoding.detail["dense"])


def test_a_gpu_is_waited_for_and_counts_its_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU, so the calls of torch.cuda are recorded instead."""
    gpu = torch.device("cuda", 0)
    calls = list[str]()
    values = {"memory_allocated": 1000, "max_memory_allocated": 1250}

    def answer(name: str, device: torch.device) -> int | None:
        calls.append(name)
        return values.get(name)

    for name in ("synchronize", "reset_peak_memory_stats", *values):
        monkeypatch.setattr(torch.cuda, name, partial(answer, name))
    clock = speed._Clock(gpu)
    clock.put(torch.tensor([1]))
    assert calls == ["synchronize"]
    assert len(clock.ticks_s) == 1
    memory = speed.PeakMemory.of([gpu] * 3)
    assert calls[1:] == ["synchronize", "reset_peak_memory_stats", "memory_allocated"]
    assert memory.growth() == 250
