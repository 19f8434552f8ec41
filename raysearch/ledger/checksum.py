"""What the ledger keeps bears a checksum: SQLite looks after its own pages, and not after what is in them."""

from __future__ import annotations

import json
import zlib
from typing import Any

_SEAL = 4  # bytes


class BrokenSealError(ValueError):
    """What is read is not what was written there: a disk or a hand has changed it."""


def sealed(content: bytes, *place: object) -> bytes:
    """Content as it is kept, with a CRC-32 of it and of its place, such as the key of its row."""
    return content + _seal(content, place)


def unsealed(kept: bytes, *place: object) -> bytes:
    """The content.

    Raises:
        BrokenSealError: It was changed, or stands in another place.
    """
    if not isinstance(kept, bytes) or kept[-_SEAL:] != _seal(kept[:-_SEAL], place):
        raise BrokenSealError("malformed: an entry is not what was written")
    return kept[:-_SEAL]


def sealed_json(value: Any, *place: object) -> bytes | None:
    """A JSON value as it is kept; None for None."""
    return None if value is None else sealed(json.dumps(value).encode(), *place)


def unsealed_json(kept: bytes | None, *place: object) -> Any:
    """The JSON value.

    Raises:
        BrokenSealError: It was changed, or stands in another place.
    """
    return None if kept is None else json.loads(unsealed(kept, *place))


def _seal(content: bytes, place: tuple[object, ...]) -> bytes:
    return zlib.crc32(content, zlib.crc32(repr(place).encode())).to_bytes(_SEAL, "little")
