"""The KV cache of a model in bytes, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from raysearch.core.mask import Mask
from raysearch.core.site import Sites


@dataclass(frozen=True)
class KvCache:
    """The keys, values and other states that a model keeps while it generates, which add up over its layers.

    Args:
        layer_bytes: The bytes of each layer; 0 for a layer without a cache, or that uses the cache of another.
        n_tokens: The tokens of each sequence.
        n_sequences: The sequences that are generated at once.
    """

    layer_bytes: tuple[int, ...]
    n_tokens: int
    n_sequences: int

    def size_without(self, mask: Mask, sites: Sites) -> int:
        """Return the bytes of the cache of a pruned model. The cache of a layer goes with its attention.

        Args:
            mask: The removed layers and halves; the empty mask for the dense model.
            sites: The layers of the dense model.

        Returns:
            The size in bytes.
        """
        return sum(self.layer_bytes[run.layer] for run in sites.runs(mask) if run.part != "mlp")
