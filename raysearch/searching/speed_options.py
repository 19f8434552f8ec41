"""How the speed of a pruned model is measured: by an assessment, and by a search by budget."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from raysearch.core.options import Options
from raysearch.searching.serve_options import Serve


@dataclass(frozen=True)
class SpeedOptions(Options):
    """How speed is measured: by generating sequences, one as in "On the Limits of Layer Pruning …", A.9.

    Args:
        enabled: Whether speed is measured.
        batch: The number of sequences that are generated at once.
        context_tokens: The number of tokens of the prompt.
        new_tokens: The number of tokens that are generated after it.
        repeats: How often each model is timed, in turn; the median counts.
    """

    section = "assess.speed"

    enabled: bool = True
    batch: PositiveInt = 1
    context_tokens: PositiveInt = 512
    new_tokens: Annotated[int, Field(ge=2)] = 64
    repeats: PositiveInt = 5

    @property
    def n_tokens(self) -> int:
        """The tokens of a sequence at its end, for which the KV cache needs room."""
        return self.context_tokens + self.new_tokens

    @property
    def identity(self) -> dict[str, Any]:
        """All that numbers in transformers depend on, as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(SpeedOptions)}


@dataclass(frozen=True)
class SearchSpeedOptions(SpeedOptions):
    """How the speeds of a search by budget are measured.

    Args:
        serve: The runtime in which they are measured, by the options of the section ``serve``; None for transformers.
    """

    section = "speed"

    serve: Serve | None = None
