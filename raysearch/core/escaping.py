"""Escapes of untrusted text for a terminal, for Markdown and for the cells of a spreadsheet."""

from __future__ import annotations

import re
from typing import Any


def visible(text: str) -> str:
    """Return a text for a terminal, with control characters (cursor, colour, direction) written as escapes."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() or mark == "\n" else _spelled(mark) for mark in text)


def markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, HTML in it included."""
    escaped = re.sub(r"([\\`*_\[\]|])", r"\\\1", text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_line(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return markdown(" ".join(text.split()))


def markdown_code(text: str) -> str:
    """Return a text as a code span of Markdown on one line, fenced by more backticks than it has in a row."""
    line = " ".join(text.splitlines())
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{fence} {line} {fence}" if "`" in line else f"`{line}`"


def csv_cell(value: Any) -> Any:
    """Return a value for a CSV file; a text that a spreadsheet would take for a formula gets a leading apostrophe."""
    return f"'{value}" if isinstance(value, str) and re.match(r"[=+@\t\r]|-(?![\d.]+$)", value) else value


def _spelled(mark: str) -> str:
    return " " if mark.isspace() else mark.encode("unicode_escape").decode()
