"""The fixed, fingerprinted set of samples that masks are judged on, cut into shards.

A shard is the unit of data parallelism, of screening and of retry. The cut depends on the samples alone, never on how
many replicas there are, so that sums in shard order are the same for any of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from raysearch.calibration.batch import Batch
from raysearch.calibration.sources import TextSource
from raysearch.calibration.windows import Sampling, Tokenizer, check_sampling, draw_windows
from raysearch.errors import UserError

_SHARD_TOKENS = 8192  # the most tokens of a shard whose size is chosen for the user: fills a GPU, and still fits
_SHARDS = 8  # the fewest shards such a choice leaves, when there are samples enough: work for eight replicas


@dataclass(frozen=True)
class WindowOptions:
    """How samples are cut from a text.

    Args:
        samples: How many windows, at least 1.
        seq_len: Tokens of a window, at least 2: the first is context only.
        sampling: ``random`` windows of the text, or its first ones (``sequential``).
        shard_samples: Samples of a shard; None for at most 8192 tokens a shard and at least 8 shards, if possible.

    Raises:
        UserError: An option is out of range.
    """

    samples: int = 16
    seq_len: int = 256
    sampling: Sampling = "random"
    shard_samples: int | None = None

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UserError(f"data.samples={self.samples} draws nothing; use 1 or more")
        if self.seq_len < 2:
            raise UserError(f"data.seq_len={self.seq_len} leaves no token to predict; use 2 or more")
        if self.shard_samples is not None and self.shard_samples < 1:
            raise UserError(f"data.shard_samples={self.shard_samples} makes empty shards; use 1 or more, or null")
        check_sampling(self.sampling)

    @property
    def samples_per_shard(self) -> int:
        """`shard_samples`, chosen if it is None; the last shard may hold fewer."""
        if self.shard_samples is not None:
            return min(self.shard_samples, self.samples)
        return max(1, min(_SHARD_TOKENS // self.seq_len, self.samples // _SHARDS))


@dataclass(frozen=True, eq=False)
class Calibration:
    """What masks are judged on. Two calibrations are the same when their fingerprints are.

    Args:
        shards: The samples, partitioned in order.
        fingerprint: Names everything that a loss depends on besides the mask, 32 hexadecimal digits.
        text_fingerprint: Names the token ids alone, whatever the model, the objective and the shards.
        description: What the records say of it, plain values.
    """

    shards: tuple[Batch, ...]
    fingerprint: str
    text_fingerprint: str
    description: dict[str, Any]

    @classmethod
    def create(
        cls, samples: Batch, shard_samples: int, identity: Mapping[str, Any], description: Mapping[str, Any]
    ) -> Self:
        """Cuts samples into shards and names the whole.

        Args:
            samples: All samples.
            shard_samples: Samples of a shard; the last may hold fewer.
            identity: What else a loss depends on, JSON values: the model, the tokenizer, the objective, the numerics.
            description: What the records say of the source and the choice of samples.
        """
        starts = range(0, samples.n_samples, shard_samples)
        shards = tuple(samples.rows(start, start + shard_samples) for start in starts)
        return cls(
            shards=shards,
            fingerprint=_digest(_identity_bytes(identity), *(part for shard in shards for part in _batch_bytes(shard))),
            text_fingerprint=_digest(*_array_bytes(samples.input_ids)),
            description={
                **description,
                "samples": samples.n_samples,
                "shard_samples": shard_samples,
                "shards": len(shards),
                "n_tokens": samples.n_scored,
            },
        )

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


def build_text_calibration(
    source: TextSource,
    options: WindowOptions,
    tokenizer: Tokenizer,
    seed: int,
    identity: Mapping[str, Any],
    max_positions: int | None = None,
) -> Calibration:
    """Builds the calibration of perplexity: windows of a text, of which every token but the first is scored.

    Args:
        source: The text.
        options: How samples are cut from it.
        tokenizer: The model's tokenizer.
        seed: Seeds ``random`` sampling.
        identity: What a loss depends on besides the samples, JSON values: the fingerprints of model and tokenizer, the
            objective, and the numerics (dtype, attention, device type, threads).
        max_positions: The longest sequence the model takes, in tokens; None if it sets no limit.

    Raises:
        UserError: The source is unreadable, it holds too little text, or a window is too long for the model.
    """
    if max_positions is not None and options.seq_len > max_positions:
        raise UserError(
            f"data.seq_len={options.seq_len} is longer than the {max_positions} positions of the model; "
            f"use {max_positions} or less"
        )
    source.check()
    ids = draw_windows(source.documents(), tokenizer, options.samples, options.seq_len, options.sampling, seed)
    scored = np.ones(ids.shape, dtype=np.bool_)
    scored[:, 0] = False
    description = {**source.describe(), "seq_len": options.seq_len, "sampling": options.sampling, "seed": seed}
    return Calibration.create(Batch(ids, scored), options.samples_per_shard, identity, description)


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


def _array_bytes(array: np.ndarray[Any, Any]) -> Iterable[bytes]:
    """The shape and the values, little-endian on every machine."""
    return repr(array.shape).encode(), array.astype(array.dtype.newbyteorder("<")).tobytes()
