"""Which formats can hold the masks of a space, for a model before a search is spent on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysearch.checkpoints import block_configs, deci
from raysearch.core.space import Space


@dataclass(frozen=True)
class Format:
    """A format of exports, and whether it can hold the masks of a space.

    Args:
        name: Its name: ``checkpoint`` for a Hugging Face checkpoint, or ``gguf``.
        title: Its name for people.
        why_not: Why it cannot hold layers without one of their halves, as a clause; None if it can.
    """

    name: str
    title: str
    why_not: str | None = None


def formats_of(config: Mapping[str, Any], space: Space) -> tuple[Format, ...]:
    """Return the formats of exports, and whether each can hold the masks of a space.

    What remains of a mask of whole layers or of pairs is a model of ordinary layers, which each format holds. Other
    masks leave layers without one of their halves.

    Args:
        config: The content of ``config.json``, or the values of a config in memory, with the model's own
            ``model_type``: ``{**info.config, **info.code}``.
        space: The space of the masks.

    Returns:
        The formats, of which none may be able to hold the masks.
    """
    if space.keeps_blocks:
        return Format("checkpoint", "a checkpoint"), Format("gguf", "a GGUF file")
    return (
        Format("checkpoint", "a checkpoint with block_configs", block_configs.why_not(config)),
        Format("gguf", f"a GGUF file of the architecture {deci.NAME}", deci.why_not_deci(config)),
    )
