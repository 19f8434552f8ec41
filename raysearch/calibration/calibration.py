"""The fixed, fingerprinted set of samples that masks are judged on, and by what: cut into shards.

A shard is the unit of data parallelism, of screening and of retry. The cut depends on the samples alone, never on how
many replicas there are, so that sums in shard order are the same for any of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.base import Objective
from raysearch.core.measure import Measure

_SHARD_TOKENS = 8192  # the most tokens of a shard whose size is chosen for the user: fills a GPU, and still fits
_SHARDS = 8  # the fewest shards such a choice leaves, when there are samples enough: work for eight replicas
_SHARDS_OF_PROMPTS = 2  # the same where answers are generated: a step takes as long for one prompt as for some


@dataclass(frozen=True, eq=False)
class Calibration:
    """What masks are judged on: an objective and its samples. Two are the same when their fingerprints are.

    Args:
        objective: What is computed.
        shards: The samples, partitioned in order.
        fingerprint: Names everything that a loss depends on besides the mask, 32 hexadecimal digits.
        text_fingerprint: Names the token ids alone, whatever the model, the objective and the shards.
        description: What the records say of it, plain values.
    """

    objective: Objective
    shards: tuple[Batch, ...]
    fingerprint: str
    text_fingerprint: str
    description: dict[str, Any]

    @classmethod
    def create(
        cls,
        objective: Objective,
        samples: Batch,
        shard_samples: int | None,
        identity: Mapping[str, Any],
        description: Mapping[str, Any],
    ) -> Self:
        """Cuts samples into shards and names the whole.

        Args:
            objective: What is computed.
            samples: All samples.
            shard_samples: Samples of a shard, of which the last may hold fewer; None for at most 8192 tokens a shard
                and at least 8 shards, 2 of prompts, if possible.
            identity: What else a loss depends on, JSON values: the model, the tokenizer, the objective, the numerics.
            description: What the records say of the source and the choice of samples.
        """
        cuts = _cuts(samples, shard_samples)
        shards = tuple(samples.samples(start, stop) for start, stop in pairwise(cuts))
        return cls(
            objective=objective,
            shards=shards,
            fingerprint=_digest(_identity_bytes(identity), *(part for shard in shards for part in _batch_bytes(shard))),
            text_fingerprint=_digest(*_array_bytes(samples.input_ids)),
            description={**description, "shards": len(shards), "n_tokens": samples.n_scored},
        )

    @property
    def measure(self) -> Measure:
        """What its loss is counted in."""
        return self.objective.measure

    @property
    def n_samples(self) -> int:
        """Samples of all shards."""
        return sum(shard.n_samples for shard in self.shards)

    @property
    def n_tokens(self) -> int:
        """Scored tokens of all shards."""
        return sum(shard.n_scored for shard in self.shards)

    @property
    def n_shards(self) -> int:
        """How many shards there are."""
        return len(self.shards)

    @property
    def divisor(self) -> int:
        """What the losses of all samples, added up, are divided by."""
        return self.measure.divisor(self.n_tokens, self.n_samples)


def _cuts(samples: Batch, shard_samples: int | None) -> list[int]:
    """Where shards begin, and the end: samples in order, as many in each as fit into its tokens, padding included."""
    if shard_samples is not None:
        return [*range(0, samples.n_samples, shard_samples), samples.n_samples]
    longest = np.zeros(samples.n_samples, np.int64)
    np.maximum.at(longest, samples.sample_of_row, samples.lengths)
    rows = np.bincount(samples.sample_of_row)
    fewest = _SHARDS if samples.answers is None else _SHARDS_OF_PROMPTS
    budget = min(_SHARD_TOKENS, int((longest * rows).sum()) // fewest)
    cuts, n_rows, width = [0], 0, 0
    for sample, (length, more) in enumerate(zip(longest.tolist(), rows.tolist(), strict=True)):
        n_rows, width = n_rows + more, max(width, length)
        if n_rows * width > budget and sample > cuts[-1]:
            cuts.append(sample)
            n_rows, width = more, length
    return [*cuts, samples.n_samples]


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))  # so that no two lists of parts run together alike
        digest.update(part)
    return digest.hexdigest()[:32]


def _identity_bytes(identity: Mapping[str, Any]) -> bytes:
    return json.dumps(identity, sort_keys=True).encode()


def _batch_bytes(batch: Batch) -> Iterator[bytes]:
    for array in (batch.input_ids, batch.scored, batch.attention_mask):
        yield from (b"none",) if array is None else _array_bytes(array)
    if batch.choices is not None:
        for array in (batch.choices.item, batch.choices.gold, batch.choices.characters):
            yield from _array_bytes(array)
    if batch.answers is not None:
        yield json.dumps([asdict(answer) for answer in batch.answers]).encode()


def _array_bytes(array: np.ndarray[Any, Any]) -> Iterable[bytes]:
    """The shape and the values, little-endian on every machine."""
    return repr(array.shape).encode(), array.astype(array.dtype.newbyteorder("<")).tobytes()
