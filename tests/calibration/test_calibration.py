from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration, WindowOptions, build_text_calibration
from raysearch.errors import UserError
from tests.calibration.conftest import NumberTokenizer

IDENTITY = {"model": "m1", "tokenizer": "t1", "objective": {"name": "perplexity"}, "numerics": {"dtype": "float32"}}


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The numbers 0 … count - 1 as one document."""

    count: int = 100

    def check(self) -> None:
        if not self.count:
            raise UserError("checked")

    def documents(self) -> Iterator[str]:
        yield " ".join(map(str, range(self.count)))

    def describe(self) -> dict[str, str]:
        return {"source": "numbers"}


def build(
    count: int = 100,
    seed: int = 0,
    identity: dict[str, Any] = IDENTITY,
    max_positions: int | None = None,
    **options: Any,
) -> Calibration:
    chosen = WindowOptions(**{"samples": 5, "seq_len": 4, "sampling": "sequential", "shard_samples": 2, **options})
    return build_text_calibration(Numbers(count), chosen, NumberTokenizer(), seed, identity, max_positions)


def test_shards_are_the_samples_cut_in_order() -> None:
    calibration = build()
    assert [shard.input_ids.tolist() for shard in calibration.shards] == [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[8, 9, 10, 11], [12, 13, 14, 15]],
        [[16, 17, 18, 19]],
    ]
    assert (calibration.n_shards, calibration.n_samples) == (3, 5)


def test_every_token_of_a_window_but_its_first_is_scored() -> None:
    calibration = build()
    for shard in calibration.shards:
        assert shard.scored.tolist() == [[False, True, True, True]] * shard.n_samples
        assert shard.attention_mask is None
    assert calibration.n_tokens == 5 * 3


def test_describes_itself_in_plain_values() -> None:
    assert build(seed=7).description == {
        "source": "numbers",
        "seq_len": 4,
        "sampling": "sequential",
        "seed": 7,
        "samples": 5,
        "shard_samples": 2,
        "shards": 3,
        "n_tokens": 15,
    }


@pytest.mark.parametrize("samples", [1, 7, 8, 9, 15, 16, 20, 128, 1000])
@pytest.mark.parametrize("seq_len", [2, 256, 2048, 8192, 10_000])
def test_shard_size_is_chosen_for_eight_workers_and_one_gpu(samples: int, seq_len: int) -> None:
    size = WindowOptions(samples, seq_len).samples_per_shard
    assert size == 1 or size * seq_len <= 8192
    assert math.ceil(samples / size) >= min(samples, 8)


@pytest.mark.parametrize(("options", "size"), [((16, 256), 2), ((128, 256), 16), ((128, 2048), 4), ((4, 256), 1)])
def test_shard_size_by_hand(options: tuple[int, int], size: int) -> None:
    assert WindowOptions(*options).samples_per_shard == size


def test_a_shard_is_no_larger_than_the_samples() -> None:
    assert build(shard_samples=99).description["shard_samples"] == 5


class TestFingerprint:
    def test_is_stable(self) -> None:
        """A golden value: a change here makes every ledger forget what it knows."""
        assert build().fingerprint == build().fingerprint == "22f72e3c4f9053880f2c0659e1f04cc8"
        assert len(build().text_fingerprint) == 32

    def test_does_not_depend_on_the_order_of_keys(self) -> None:
        objective = {"name": "margin", "tau": 1}
        swapped = dict(reversed(IDENTITY.items())) | {"objective": dict(reversed(objective.items()))}
        assert build(identity=swapped).fingerprint == build(identity=IDENTITY | {"objective": objective}).fingerprint

    @pytest.mark.parametrize(
        "change",
        [
            {"identity": IDENTITY | {"model": "m2"}},
            {"identity": IDENTITY | {"tokenizer": "t2"}},
            {"identity": IDENTITY | {"objective": {"name": "kl"}}},
            {"identity": IDENTITY | {"numerics": {"dtype": "bfloat16"}}},
            {"shard_samples": 3},
        ],
    )
    def test_changes_with_what_is_not_text(self, change: dict[str, Any]) -> None:
        assert build(**change).fingerprint != build().fingerprint
        assert build(**change).text_fingerprint == build().text_fingerprint

    @pytest.mark.parametrize("change", [{"samples": 6}, {"samples": 4, "seq_len": 5}, {"sampling": "random"}])
    def test_changes_with_the_text(self, change: dict[str, Any]) -> None:
        assert build(**change).fingerprint != build().fingerprint
        assert build(**change).text_fingerprint != build().text_fingerprint

    def test_changes_with_the_seed_of_random_windows_only(self) -> None:
        assert build(seed=1).fingerprint == build(seed=2).fingerprint
        assert build(seed=1, sampling="random").fingerprint != build(seed=2, sampling="random").fingerprint

    @pytest.mark.parametrize("name", ["input_ids", "scored", "attention_mask"])
    def test_changes_with_any_value_of_a_batch(self, name: str) -> None:
        ones = np.ones((2, 3), dtype=np.bool_)
        batch = Batch(np.zeros((2, 3), dtype=np.int64), ones, ones)
        changed = getattr(batch, name).copy()
        changed[1, 2] ^= True
        fingerprints = [
            Calibration.create(samples, 1, IDENTITY, {}).fingerprint
            for samples in (
                batch,
                dataclasses.replace(batch, **{name: changed}),
                dataclasses.replace(batch, attention_mask=None),
            )
        ]
        assert len(set(fingerprints)) == 3


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"samples": 0}, "data.samples=0 draws nothing; use 1 or more"),
            ({"seq_len": 1}, "data.seq_len=1 leaves no token to predict; use 2 or more"),
            ({"shard_samples": 0}, "data.shard_samples=0 makes empty shards; use 1 or more, or null"),
            ({"sampling": "first"}, "data.sampling=first is unknown; choose one of: random, sequential"),
        ],
    )
    def test_options(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError) as caught:
            WindowOptions(**options)
        assert str(caught.value) == message

    def test_window_longer_than_the_model_takes(self) -> None:
        with pytest.raises(
            UserError, match="data.seq_len=4 is longer than the 3 positions of the model; use 3 or less"
        ):
            build(max_positions=3)
        assert build(max_positions=4).n_samples == 5

    def test_source_is_checked_first(self) -> None:
        with pytest.raises(UserError, match="checked"):
            build(count=0)

    def test_too_little_text(self) -> None:
        with pytest.raises(UserError, match="data.samples=5"):
            build(count=19)
