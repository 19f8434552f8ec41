"""A range test: its losses are those of plain training with growing rates, and its result is kept."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from raysearch.core.json import from_json
from raysearch.models.spec import ModelSpec
from raysearch.recovery import training
from raysearch.recovery.range_test import RATES, RangeTest, chosen_rate, range_test, smooth
from raysearch.recovery.trainer import TrainingRows, TrainingSetup
from tests.recovery.test_training import OPTIONS, interrupt, rows, run

pytestmark = pytest.mark.slow


def test_the_chosen_rate_is_below_the_one_with_the_lowest_loss() -> None:
    losses = [4.0, 4.0, 3.9, 3.7, 3.2, 2.9, 3.1, 6.0]
    rates = [10.0**-k for k in range(8, 0, -1)]
    assert smooth(losses)[:2] == [4.0, 4.0]
    assert smooth([2.0] * 5) == pytest.approx([2.0] * 5), "no bias towards zero"
    lowest = min(range(8), key=lambda index: smooth(losses)[index])
    assert chosen_rate(rates, losses) == pytest.approx(rates[lowest] / 4, rel=0.05)
    assert chosen_rate(rates, losses[:3]) == pytest.approx(rates[2] / 4, rel=0.05), "of a test that ended early"


def test_its_losses_are_those_of_plain_steps_with_growing_rates(checkpoint: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    options = replace(OPTIONS, method="full", batch_size=2, learning_rate="auto")
    data = TrainingRows.of(rows(tokenizer), options)
    setup = TrainingSetup(ModelSpec("tiny", str(checkpoint)), tokenizer, data, options, tmp_path, on_gpu=False)
    losses = range_test(setup, 2).losses
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    expected = []
    for rate in (*RATES, 0.0):
        nats = []
        for row, start in zip(data.rows[1:3], data.starts[1:3], strict=True):
            logits = model(torch.tensor([row.ids])).logits[0, start - 1 : -1]
            nats.append(torch.nn.functional.cross_entropy(logits, torch.tensor(row.ids[start:]), reduction="none"))
        loss = torch.cat(nats).mean()
        expected.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    assert list(losses) == pytest.approx(expected[1 : len(losses) + 1], rel=1e-3)
    assert len(losses) > 8, "smaller rates do not diverge"


def test_a_loss_that_is_not_finite_ends_it(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    options = replace(OPTIONS, method="full", batch_size=2, learning_rate="auto")
    data = TrainingRows.of(rows(tokenizer), options)
    setup = TrainingSetup(ModelSpec("tiny", str(checkpoint)), tokenizer, data, options, tmp_path, on_gpu=False)
    monkeypatch.setattr("raysearch.recovery.range_test.RATES", (1e-5, 1e-4, math.nan, math.nan, math.nan))
    result = range_test(setup, 2)
    assert len(result.losses) == 2
    assert min(result.losses) > 1, "a loss that is not a number is not 0"
    assert result.rate <= 1e-4 / 4


def test_it_is_not_repeated_and_decides_the_training(checkpoint: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    data = TrainingRows.of(rows(tokenizer), OPTIONS)
    options = replace(OPTIONS, learning_rate="auto")

    def stop(line: str) -> None:
        if line.startswith("training: step 2 "):
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        run(checkpoint, data, options, tmp_path / "auto", stop)
    range_result = from_json(RangeTest, (tmp_path / "auto/learning_rate.json").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "range_test", pytest.fail)
        auto = run(checkpoint, data, options, tmp_path / "auto")
    fixed = run(checkpoint, data, replace(options, learning_rate=range_result.rate), tmp_path / "fixed")
    assert auto.points == fixed.points
    assert auto.learning_rate == fixed.learning_rate == range_result.rate
