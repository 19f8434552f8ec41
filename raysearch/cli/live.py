"""A console that says lines, and shows what changes all the time: live on a terminal, now and then elsewhere."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape

from raysearch.errors import redact

_SECONDS_BETWEEN_LINES = 15


class LiveConsole:
    """What every display is made on.

    Args:
        console: Where to write; standard error.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def warn(self, message: str) -> None:
        """Tells of something that went wrong and stops nothing."""
        self._say(f"[yellow]warning:[/] {escape(redact(message))}")

    def _update(self, view: RenderableType, line: str) -> None:
        """Shows a view on a terminal; elsewhere says the line, unless one was said not long ago."""
        if self._live:
            self._live.update(view)
        elif time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._say(line)

    def _say(self, line: str) -> None:
        self._last_line = time.monotonic()
        self._console.print(line, highlight=False, soft_wrap=True)
