"""The fixed, fingerprinted set of samples that masks are evaluated on, cut into shards, and the objective.

A shard is the unit of data parallelism, of screening and of retry. The cut depends on the samples alone, never on the
number of replicas, so sums in shard order are the same for any number.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.base import Objective
from raysearch.calibration.packing import packed_lengths
from raysearch.core.measure import Measure

SHARD_TOKENS = 8192  # the most tokens of a shard where the user sets no size: fills a GPU, and still fits
_SHARDS = 16  # the fewest shards then, if there are enough tokens: work for many replicas, and early screening
_FEWEST_TOKENS = 512  # of a shard, if there are as many: with fewer, a CPU spends a tenth more on each token
_SHARDS_OF_PROMPTS = 2  # the same where answers are generated: a step takes as long for one prompt as for several


@dataclass(frozen=True, eq=False)
class Calibration:
    """An objective and its samples. Two calibrations are the same when their fingerprints are."""

    objective: Objective
    shards: tuple[Batch, ...]  #: the samples, dealt out like cards
    fingerprint: str  #: of everything that a loss depends on besides the mask, 32 hexadecimal digits
    text_fingerprint: str  #: of the token ids alone, whatever the model, the objective and the shards
    description: dict[str, Any]  #: plain values for the records

    @classmethod
    def create(
        cls,
        objective: Objective,
        samples: Batch,
        shard_samples: int | None,
        identity: Mapping[str, Any],
        description: Mapping[str, Any],
    ) -> Self:
        """Deal samples into shards and compute the fingerprints.

        Neighbours among the samples are alike, in length or by the document that they are from. Dealt out in turn, they
        are in different shards, so that a few shards stand for all of them.

        A shard has `shard_samples`, or one less; None is for 512 to 8192 tokens a shard and at least 16 shards, 2 of
        prompts, if possible; where answers are generated, shards may be smaller. The `identity` is all else that a loss
        depends on, in JSON values: model, tokenizer, objective, numerics. The `description` is for the records.
        """
        n, size = samples.n_samples, shard_samples or _shard_samples(samples)
        n_shards = math.ceil(n / size)
        shards = tuple(samples.samples(first, n, n_shards) for first in range(n_shards))
        return cls(
            objective=objective,
            shards=shards,
            fingerprint=_digest(
                json.dumps(identity, sort_keys=True).encode(), *itertools.chain(*map(_batch_bytes, shards))
            ),
            text_fingerprint=_digest(*_array_bytes(samples.input_ids)),
            description={**description, "shards": len(shards), "n_tokens": samples.n_scored},
        )

    @property
    def measure(self) -> Measure:
        """The unit of its loss."""
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
        """The number of shards."""
        return len(self.shards)

    @property
    def divisor(self) -> int:
        """The divisor of the sum of all samples' losses."""
        return self.measure.divisor(self.n_tokens, self.n_samples)

    def weights(self, shard: int) -> npt.NDArray[np.int64]:
        """Return what each sample of a shard adds to the divisor: its scored tokens, or 1."""
        batch = self.shards[shard]
        return batch.scored_per_sample if self.measure.per == "token" else np.ones(batch.n_samples, np.int64)


def _shard_samples(samples: Batch) -> int:
    """Return how many samples, of mean length, a shard has: at least 1."""
    n, tokens = samples.n_samples, max(1, sum(packed_lengths(samples)))
    shards, fewest_tokens = (_SHARDS, _FEWEST_TOKENS) if samples.answers is None else (_SHARDS_OF_PROMPTS, 0)
    return max(1, min(n // shards, SHARD_TOKENS * n // tokens), fewest_tokens * n // tokens)


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))  # so that different lists of parts never look alike
        digest.update(part)
    return digest.hexdigest()[:32]


def _batch_bytes(batch: Batch) -> Iterator[bytes]:
    choices = () if batch.choices is None else vars(batch.choices).values()
    for array in (batch.input_ids, batch.scored, batch.attention_mask, *choices):
        yield from (b"none",) if array is None else _array_bytes(array)
    if batch.answers is not None:
        yield json.dumps([asdict(answer) for answer in batch.answers]).encode()


def _array_bytes(array: np.ndarray[Any, Any]) -> Iterable[bytes]:
    """Return the shape and the values, little-endian on every machine."""
    return repr(array.shape).encode(), array.astype(array.dtype.newbyteorder("<")).tobytes()
