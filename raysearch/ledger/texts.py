"""Generated texts as the ledger keeps them: compressed JSON."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from raysearch.core.json import from_json, to_json
from raysearch.generation.score import ScoredText


def pack_texts(texts: Sequence[ScoredText]) -> bytes:
    """Return texts, with their scores, as compressed JSON."""
    return zlib.compress(to_json(list(texts), list[ScoredText]).encode(), level=9)


def unpack_texts(content: bytes) -> list[ScoredText]:
    """Return the texts that `pack_texts` made bytes of."""
    return from_json(list[ScoredText], zlib.decompress(content).decode())
