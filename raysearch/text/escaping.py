"""Escapes untrusted text for a terminal, for Markdown and for the cells of a spreadsheet."""

from __future__ import annotations

import re
from typing import Any


def visible(text: str) -> str:
    """Return a text for a terminal, with control characters (cursor, colour, direction) written as escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else _escaped(character) for character in text
    )


def markdown(text: str) -> str:
    """Return a text that Markdown shows literally, HTML in it included."""
    escaped = re.sub(r"([\\`*_\[\]|])", r"\\\1", text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_line(text: str) -> str:
    """Return a text that Markdown shows literally, on one line."""
    return markdown(" ".join(text.split()))


def markdown_code(text: str) -> str:
    """Return a text as a code span of Markdown on one line, between fences longer than its runs of backticks."""
    line = " ".join(text.splitlines())
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{fence} {line} {fence}" if "`" in line else f"`{line}`"


def csv_cell(value: Any) -> Any:
    """Return a value for a CSV file; a text that a spreadsheet would run as a formula gets a leading apostrophe."""
    return f"'{value}" if isinstance(value, str) and re.match(r"[=+@\t\r]|-(?![\d.]+$)", value) else value


def _escaped(character: str) -> str:
    return " " if character.isspace() else character.encode("unicode_escape").decode()
