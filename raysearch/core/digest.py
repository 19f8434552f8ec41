"""A name for plain values, by which they are found again: searches, calibrations, recoveries, what is kept of files."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(value: Any, length: int) -> str:
    """Return so many hexadecimal digits of the SHA-256 of plain values as JSON; mappings of any order have the same."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:length]
