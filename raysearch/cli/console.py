"""A console for the terminal: text from files or other programs cannot control the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typing_extensions import override

from raysearch.text.escaping import visible
from raysearch.text.redaction import redact


class SafeConsole(Console):
    """A console that escapes control characters in everything it prints, and hides secrets."""

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(redact(segment.text)), segment.style)
