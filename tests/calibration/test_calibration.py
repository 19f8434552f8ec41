from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest

from raysearch.calibration.batch import Batch, Choices
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.base import Objective
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.calibration.objectives.task_margin import TaskMarginObjective
from raysearch.generation.answer import Answer

IDENTITY = {"model": "m1", "tokenizer": "t1", "objective": {"name": "perplexity"}, "numerics": {"dtype": "float32"}}


def windows(samples: int, seq_len: int) -> Batch:
    """Windows of the numbers from 0."""
    scored = np.ones((samples, seq_len), dtype=np.bool_)
    scored[:, 0] = False
    return Batch(np.arange(samples * seq_len).reshape(samples, seq_len), scored)


def build(
    samples: Batch | None = None,
    shard_samples: int | None = 2,
    objective: Objective = PerplexityObjective(),  # noqa: B008
    identity: dict[str, Any] = IDENTITY,
) -> Calibration:
    samples = windows(5, 4) if samples is None else samples
    return Calibration.create(objective, samples, shard_samples, identity, {"source": "numbers"})


def n_fingerprints(calibrations: Iterable[Calibration]) -> int:
    return len({calibration.fingerprint for calibration in calibrations})


def items() -> Batch:
    """Two items, of two and three choices, of which the longest row has five tokens."""
    rows = [[1, 2, 3], [1, 2, 4, 5], [6, 7, 8], [6, 7, 9, 9, 9], [6, 7, 9]]
    scored = [[False, False, *[True] * (len(row) - 2)] for row in rows]
    item = np.array([0, 0, 1, 1, 1])
    gold = np.array([True, False, False, True, False])
    return Batch.of(rows, scored, Choices(item, gold, np.array([1, 3, 1, 5, 1])))


def test_samples_are_dealt_out_to_shards_in_turn() -> None:
    calibration = build()
    assert [shard.input_ids.tolist() for shard in calibration.shards] == [
        [[0, 1, 2, 3], [12, 13, 14, 15]],
        [[4, 5, 6, 7], [16, 17, 18, 19]],
        [[8, 9, 10, 11]],
    ]
    assert (calibration.n_shards, calibration.n_samples, calibration.n_tokens) == (3, 5, 15)


def test_shards_of_items_keep_their_choices_together() -> None:
    calibration = build(items(), 1, TaskMarginObjective())
    first, second = calibration.shards
    assert (first.n_samples, second.n_samples) == (1, 1)
    assert first.input_ids.tolist() == [[1, 2, 3, 0], [1, 2, 4, 5]]
    assert second.choices is not None
    assert second.choices.item.tolist() == [0, 0, 0]
    assert second.choices.gold.tolist() == [False, True, False]
    assert (calibration.n_samples, calibration.n_tokens, calibration.divisor) == (2, 3 + 5, 2)
    assert build(items(), 1, TaskMarginObjective(items="sum")).divisor == 1


def test_describes_itself_in_plain_values() -> None:
    assert build().description == {"source": "numbers", "shards": 3, "n_tokens": 15}


def test_shards_are_chosen_for_screening_many_workers_and_one_gpu() -> None:
    for samples, seq_len in product([1, 7, 8, 9, 15, 16, 20, 128, 1000], [2, 256, 2048, 8192, 10_000]):
        shards = build(windows(samples, seq_len), None).shards
        assert all(shard.n_samples == 1 or shard.input_ids.size <= 8192 for shard in shards), (samples, seq_len)
        assert len(shards) >= min(samples, 16, samples * seq_len // 512)  # small ones slow a CPU down
        assert max(shard.n_samples for shard in shards) - min(shard.n_samples for shard in shards) <= 1
        assert math.ceil(samples / shards[0].n_samples) == len(shards)


def test_shard_size_by_hand() -> None:
    for (samples, seq_len), size in {
        (16, 256): 2,
        (128, 256): 8,
        (128, 2048): 4,
        (4, 256): 2,
        (4, 128): 4,
        (2, 1024): 1,
    }.items():
        assert build(windows(samples, seq_len), None).shards[0].n_samples == size


def test_each_shard_of_rows_of_many_lengths_is_like_the_whole() -> None:
    lengths = np.sort(np.random.default_rng(0).integers(2, 200, size=1000))
    rows = [[1] * length for length in lengths]
    shards = build(Batch.of(rows, [[place > 0 for place in range(len(row))] for row in rows]), None).shards
    assert sum(shard.n_samples for shard in shards) == 1000
    assert all(abs(shard.lengths.mean() - lengths.mean()) < 2 for shard in shards)
    assert all(abs(shard.lengths.std() - lengths.std()) < 2 for shard in shards)
    assert all(shard.n_tokens < 8192 for shard in shards)
    assert all(shard.input_ids.shape[1] == shard.lengths.max() for shard in shards)  # no more padding than needed


def test_shards_of_items_hold_as_many_packed_tokens() -> None:
    prompt = [1] * 60
    rows = [[*prompt, choice] for _ in range(100) for choice in range(4)]  # packed, 64 tokens an item
    choices = Choices(np.repeat(np.arange(100), 4), np.arange(400) % 4 == 0, np.ones(400, np.int64))
    shards = build(Batch.of(rows, [[token == 60 for token in range(61)]] * 400, choices), None).shards
    assert [shard.n_samples for shard in shards] == [8] * 9 + [7] * 4  # 512 tokens at most


def test_prompts_are_generated_from_together() -> None:
    prompts = dataclasses.replace(windows(20, 10), answers=tuple(Answer(str(number)) for number in range(20)))
    assert [shard.n_samples for shard in build(prompts, None).shards] == [10, 10]


class TestFingerprint:
    def test_is_stable(self) -> None:
        """A golden value: if it changes, no ledger's evaluations are found again."""
        assert build().fingerprint == build().fingerprint == "c8b3d9b724e97dfc70af4c24d14ca54a"
        assert len(build().text_fingerprint) == 32

    def test_does_not_depend_on_the_order_of_keys(self) -> None:
        objective = {"name": "margin", "tau": 1}
        swapped = dict(reversed(IDENTITY.items())) | {"objective": dict(reversed(objective.items()))}
        assert build(identity=swapped).fingerprint == build(identity=IDENTITY | {"objective": objective}).fingerprint

    def test_changes_with_what_is_not_text(self) -> None:
        other_values = {
            "model": "m2", "tokenizer": "t2", "objective": {"name": "kl"}, "numerics": {"dtype": "bfloat16"}
        }  # fmt: skip
        changed = [build(identity=IDENTITY | {key: value}) for key, value in other_values.items()]
        changed.append(build(shard_samples=3))
        assert n_fingerprints([build(), *changed]) == 1 + len(changed)
        assert {calibration.text_fingerprint for calibration in changed} == {build().text_fingerprint}

    def test_changes_with_the_text(self) -> None:
        for changed in (build(windows(6, 4)), build(windows(4, 5))):
            assert changed.fingerprint != build().fingerprint
            assert changed.text_fingerprint != build().text_fingerprint

    @pytest.mark.parametrize("name", ["input_ids", "scored", "attention_mask"])
    def test_changes_with_any_value_of_a_batch(self, name: str) -> None:
        scored = np.ones((2, 3), dtype=np.bool_)
        batch = Batch(np.zeros((2, 3), dtype=np.int64), scored, scored & np.array([True, True, False]))
        changed_array = getattr(batch, name).copy()
        changed_array[1, 1] ^= True
        changed = dataclasses.replace(batch, **{name: changed_array})
        without_mask = dataclasses.replace(batch, attention_mask=None)
        assert n_fingerprints(build(samples, 1) for samples in (batch, changed, without_mask)) == 3

    @pytest.mark.parametrize("name", ["gold", "characters"])
    def test_changes_with_what_makes_items(self, name: str) -> None:
        batch = items()
        assert batch.choices is not None
        choices = dataclasses.replace(batch.choices, **{name: np.roll(getattr(batch.choices, name), 1)})
        changed = dataclasses.replace(batch, choices=choices)
        assert n_fingerprints(build(samples, 9) for samples in (batch, changed)) == 2

    def test_changes_with_the_answers(self) -> None:
        answers = (Answer("4"), Answer("5"), Answer("4", ("4", "5")))
        batches = [dataclasses.replace(windows(1, 3), answers=(answer,)) for answer in answers]
        assert n_fingerprints(map(build, batches)) == 3
