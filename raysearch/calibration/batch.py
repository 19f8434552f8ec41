"""Samples as the model sees them: token ids, which of them are scored, and which are padding.

Pure NumPy, so that a calibration travels between processes without torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Batch:
    """B samples of T tokens, padded on the right.

    Args:
        input_ids: Token ids, int64, [B, T].
        scored: Whether a token counts in the loss as a prediction from those before it, bool, [B, T]; never the first.
        attention_mask: Whether a token is real (not padding), bool, [B, T]; None when all are.
    """

    input_ids: npt.NDArray[np.int64]
    scored: npt.NDArray[np.bool_]
    attention_mask: npt.NDArray[np.bool_] | None = None

    @property
    def n_samples(self) -> int:
        """B."""
        return int(self.input_ids.shape[0])

    @property
    def n_scored(self) -> int:
        """Scored tokens of all samples."""
        return int(self.scored.sum())

    @property
    def scored_per_sample(self) -> npt.NDArray[np.int64]:
        """Scored tokens, int64, [B]."""
        return self.scored.sum(axis=1).astype(np.int64)

    def rows(self, start: int, stop: int) -> Batch:
        """Samples `start` … `stop` - 1."""
        mask = self.attention_mask
        return Batch(self.input_ids[start:stop], self.scored[start:stop], None if mask is None else mask[start:stop])
