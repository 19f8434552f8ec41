"""The parts of a GGUF file that llama.cpp has split: ``NAME-00001-of-00003.gguf`` and so on.

The first part has the metadata of the whole file, each part has its tensors, and a program is given the first part.
"""

from __future__ import annotations

import re
from pathlib import Path

from raysearch.errors import UserError

_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")


def part_names(file: Path) -> list[Path]:
    """Return the paths that all parts of a GGUF file have by the name of any part; the path itself of a whole file."""
    part = _PART.fullmatch(file.name)
    if part is None:
        return [file]
    name, n_parts = part[1], int(part[2])
    return [file.with_name(f"{name}-{number:05}-of-{n_parts:05}.gguf") for number in range(1, n_parts + 1)] or [file]


def parts_of(file: Path) -> list[Path]:
    """Return all parts of a GGUF file by the path of any part, in order; the file itself if it is whole.

    Raises:
        UserError: Some parts exist, and another one does not.
    """
    parts = part_names(file)
    missing = [part for part in parts if not part.is_file()]
    if missing and len(missing) < len(parts):
        raise UserError(f"{missing[0]} is missing, one of the {len(parts)} parts of a GGUF file; complete the download")
    return parts


def name_of_whole(file: Path) -> str:
    """Return the name of a GGUF file without its ending and the number of its part."""
    part = _PART.fullmatch(file.name)
    return file.stem if part is None else part[1]
