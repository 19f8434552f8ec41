"""A calibration: an objective and the fixed, fingerprinted samples that masks are evaluated on, cut into shards.

A shard is the unit of data parallelism, of screening and of retry. The cut depends on the samples alone, not on the
number of replicas. So sums in shard order are the same for any number of replicas.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from raysearch.calibration.batch import Batch, array_bytes, image_digest
from raysearch.calibration.objectives.base import Objective
from raysearch.calibration.packing import packed_lengths
from raysearch.core.measure import Measure
from raysearch.core.scale import Repair

# These decide the size of a shard if the user sets none.
SHARD_TOKENS = 8192  # the most tokens of a shard: they keep a GPU busy, and fit into its memory
_FEWEST_SHARDS = 16  # if there are enough tokens: work for many replicas, and early screening
_FEWEST_TOKENS = 512  # of a shard, if there are as many: with fewer, a CPU spends a tenth more time on each token
# With generated answers, large shards are faster: a decoding step takes as long for one prompt as for several.
_FEWEST_PROMPT_SHARDS = 2


@dataclass(frozen=True, eq=False)
class Calibration:
    """An objective and its samples. Two calibrations are the same if their fingerprints are equal."""

    objective: Objective
    shards: tuple[Batch, ...]  #: shard s of S holds the samples s, s + S, s + 2 S, …
    fingerprint: str  #: of everything that a loss depends on besides the mask, 32 hexadecimal digits
    text_fingerprint: str  #: of token ids and images alone: independent of the model, the objective and the shards
    description: dict[str, Any]  #: plain values for the records
    repair: Repair = "none"  #: how masks are repaired before they are evaluated

    @classmethod
    def create(
        cls,
        objective: Objective,
        samples: Batch,
        shard_samples: int | None,
        identity: Mapping[str, Any],
        description: Mapping[str, Any],
        repair: Repair = "none",
    ) -> Self:
        """Deal samples into shards and compute the fingerprints.

        Adjacent samples are similar: in length, or because they come from the same document. They are dealt to the
        shards in turn, so that a few shards represent all samples.

        Args:
            objective: The loss of a sample.
            samples: All samples, in their order.
            shard_samples: Samples of a shard, of which some shards have one less. None for a shard of 512 to 8192
                tokens and at least 16 shards, if possible; with generated answers, for at least 2 shards of at most
                8192 tokens.
            identity: All other things that a loss depends on, as JSON values: model, tokenizer, objective, numerics.
            description: Plain values for the records.
            repair: How masks are repaired before they are evaluated; a part of the identity, unless they are not.

        Returns:
            The calibration: its shards, its fingerprint, and a digest for each shard.
        """
        if repair != "none":
            identity = {**identity, "repair": repair}
        n_samples = samples.n_samples
        n_shards = math.ceil(n_samples / (shard_samples or _default_shard_samples(samples)))
        shards = tuple(samples.samples(first, n_samples, n_shards) for first in range(n_shards))
        return cls(
            objective=objective,
            shards=shards,
            fingerprint=_digest(
                json.dumps(identity, sort_keys=True).encode(), *itertools.chain(*map(_batch_bytes, shards))
            ),
            text_fingerprint=_digest(*array_bytes(samples.input_ids), *map(image_digest, samples.images or ())),
            description={**description, "shards": len(shards), "n_tokens": samples.n_scored},
            repair=repair,
        )

    @property
    def measure(self) -> Measure:
        """The unit of the objective's loss."""
        return self.objective.measure

    @property
    def n_samples(self) -> int:
        """The number of samples of all shards."""
        return sum(shard.n_samples for shard in self.shards)

    @property
    def n_tokens(self) -> int:
        """The number of scored tokens of all shards."""
        return sum(shard.n_scored for shard in self.shards)

    @property
    def n_shards(self) -> int:
        """The number of shards."""
        return len(self.shards)

    @property
    def divisor(self) -> int:
        """The number by which the sum of all samples' losses is divided."""
        return self.measure.divisor(self.n_tokens, self.n_samples)

    def weights(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the part of each sample of a shard in the divisor, int64, [B]: its scored tokens, or 1."""
        batch = self.shards[shard]
        return batch.scored_per_sample if self.measure.per == "token" else np.ones(batch.n_samples, np.int64)


def _default_shard_samples(samples: Batch) -> int:
    """Return the number of samples of a shard, at least 1, as if all samples had the mean length."""
    n_samples = samples.n_samples
    n_tokens = max(1, sum(packed_lengths(samples)))
    fewest_shards = _FEWEST_SHARDS if samples.answers is None else _FEWEST_PROMPT_SHARDS
    fewest_tokens = _FEWEST_TOKENS if samples.answers is None else 0
    most_samples = min(n_samples // fewest_shards, SHARD_TOKENS * n_samples // n_tokens)
    return max(1, most_samples, fewest_tokens * n_samples // n_tokens)


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))  # so that no two lists of parts have the same bytes
        digest.update(part)
    return digest.hexdigest()[:32]


def _batch_bytes(batch: Batch) -> Iterator[bytes]:
    choices = () if batch.choices is None else vars(batch.choices).values()
    for array in (batch.input_ids, batch.scored, batch.attention_mask, *choices):
        yield from (b"none",) if array is None else array_bytes(array)
    if batch.answers is not None:
        yield json.dumps([asdict(answer) for answer in batch.answers]).encode()
    yield from map(image_digest, batch.images or ())
