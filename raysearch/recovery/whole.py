"""Files that a recovery keeps: they are written whole, and those that were damaged since are known."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from safetensors import SafetensorError, safe_open


def write_whole(file: Path, text: str) -> None:
    """Write a file so that it is never there in part."""
    unfinished = file.with_name(f"{file.name}.part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)


def is_whole(path: Path) -> bool:
    """Return whether a file, or every file in a folder, is there and can be read.

    A machine without power may leave files that were never written, and a disk may fail. Archives and JSON tell of any
    cut; archives also of another byte among their numbers. Other text is taken as it is.
    """
    if path.is_dir():
        return all(is_whole(file) for file in path.rglob("*") if file.is_file())
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt"):
                return True
        if path.suffix in (".pt", ".pth", ".npz"):
            with ZipFile(path) as parts:
                return parts.testzip() is None
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError, BadZipFile):
        return False
    return path.is_file()
