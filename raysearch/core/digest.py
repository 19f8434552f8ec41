"""Digests of plain values, which identify searches, calibrations, recoveries and cached values of files."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(value: Any, length: int) -> str:
    """Return the SHA-256 of a plain value as JSON. The order of keys in mappings does not change it.

    Args:
        value: The value; a part that JSON does not support is replaced by its ``str``.
        length: The number of hexadecimal digits to return, at most 64.

    Returns:
        The first hexadecimal digits of the SHA-256.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:length]
