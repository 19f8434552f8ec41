"""Perplexity is that of an independent script: plain transformers without the layers, no code of this package."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import AutoTokenizer

from raysearch.assessment.results import Result
from raysearch.core.estimate import Estimate, Metric
from raysearch.core.json import plain
from raysearch.core.mask import Mask
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.replica import Replica
from tests.assessment.conftest import Assess, assert_recorded, of_text, without_layers
from tests.cli.conftest import World

MASK = Mask.of(1, 3)
SEQ_LEN = 16


def plain_losses(folder: Path, mask: Mask, rows: list[list[int]]) -> list[tuple[float, int]]:
    """Nats and predicted tokens of each row, one row at a time."""
    model = without_layers(folder, mask)
    losses = []
    for row in rows:
        ids = torch.tensor([row])
        with torch.inference_mode():
            logits = model(ids, use_cache=False).logits[0, :-1]
        losses.append((float(functional.cross_entropy(logits, ids[0, 1:], reduction="sum")), len(row) - 1))
    return losses


def documents(text: Path) -> list[str]:
    return [json.loads(line)["text"] for line in text.read_text().splitlines()]


def windows(folder: Path, text: Path) -> list[list[int]]:
    ids = AutoTokenizer.from_pretrained(folder)("\n\n".join(documents(text)))["input_ids"]
    return [ids[start : start + SEQ_LEN] for start in range(0, len(ids) - SEQ_LEN + 1, SEQ_LEN)]


def whole_documents(folder: Path, text: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [ids for document in documents(text) if len(ids := tokenizer(document)["input_ids"][:SEQ_LEN]) > 1]


@pytest.mark.parametrize(("sampling", "rows_of"), [("sequential", windows), ("whole", whole_documents)])
@pytest.mark.parametrize("limit", [None, 3])
def test_is_that_of_a_plain_script(assess: Assess, world: World, text: Path, sampling, rows_of, limit) -> None:
    overrides = [of_text("mine", text, sampling), *([] if limit is None else [f"assess.limit={limit}"])]
    assessments = assess([MASK], f"assess.seq_len={SEQ_LEN}", *overrides)
    rows = rows_of(world.model, text)[:limit]
    perplexity = {}
    for mask in (Mask(), MASK):
        losses = plain_losses(world.model, mask, rows)
        perplexity[mask] = math.exp(sum(nats for nats, _ in losses) / sum(tokens for _, tokens in losses))
        result = assessments.by_mask[mask]["mine"]
        assert result.estimate.value == pytest.approx(perplexity[mask], rel=1e-6)
        assert result.detail["n_samples"] == len(rows)
        assert result.detail["n_tokens"] == sum(tokens for _, tokens in losses)
        kind = "document" if sampling == "whole" else "window"
        assert result.extent.startswith(f"{len(rows)} {kind}s, ")
    retention = assessments.by_mask[MASK]["mine"].retention
    assert retention
    assert retention.value == pytest.approx(perplexity[MASK] / perplexity[Mask()])


def test_error_is_carried_over_from_the_loss(assess: Assess, world: World, text: Path) -> None:
    assessments = assess([MASK], of_text("mine", text), f"assess.seq_len={SEQ_LEN}")
    losses = plain_losses(world.model, MASK, windows(world.model, text))
    means = torch.tensor([nats / tokens for nats, tokens in losses], dtype=torch.float64)
    result = assessments.values[MASK]["mine"]
    assert result.error == pytest.approx(result.value * float(means.std()) / math.sqrt(len(means)), rel=1e-5)
    dense = assessments.by_mask[Mask()]["mine"].retention
    assert dense
    assert dense.value == 1
    assert dense.error == 0


def test_a_number_of_samples_is_the_most_that_are_taken(assess: Assess, text: Path) -> None:
    few = of_text("few", text, samples=2)
    many = of_text("many", text, samples=1000)
    assessments = assess([], few, many, f"assess.seq_len={SEQ_LEN}")
    counts = {name: result.detail["n_samples"] for name, result in assessments.by_mask[Mask()].items()}
    assert counts["few"] == 2 < counts["many"] < 1000


def test_recorded_perplexities_load_no_model(assess: Assess, text: Path) -> None:
    overrides = [of_text("mine", text, "whole"), f"assess.seq_len={SEQ_LEN}"]
    assert_recorded(assess, MASK, overrides, computed=2)
    assert assess([MASK], *overrides, of_text("other", text)).computed == 2, "the text that is new, of two models"


def test_what_is_not_finite_is_null_in_json() -> None:
    metric = Metric("mine", "mine", "perplexity", "perplexity", False)
    broken = Result(metric, Estimate(math.inf), None, "1 window", {"losses": [math.nan, 1.0]})
    value = json.loads(json.dumps(plain(broken), allow_nan=False))
    assert value["value"] is None
    assert value["detail"] == {"losses": [None, 1.0]}


def test_a_pool_that_is_offered_is_handed_the_texts_and_stays(assess: Assess, replica: Replica, text: Path) -> None:
    closed = []
    pool = InlinePool(lambda: replica)
    pool.close = lambda: closed.append(True)  # type: ignore[method-assign]
    assessments = assess([MASK], of_text("mine", text), f"assess.seq_len={SEQ_LEN}", make_pool=lambda: pool)
    assert assessments.computed == 2
    assert not closed
    assert len(replica.calibrations) == 1
