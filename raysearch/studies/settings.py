"""Typed access to the recorded configuration of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.studies.spec import Margin


@dataclass(frozen=True)
class StudySettings:
    """The recorded settings of a study's report. Earlier versions recorded no margin and no contrasts.

    Args:
        config: The study's recorded configuration.
    """

    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the study."""
        name: str = self.config["study"]["name"]
        return name

    @property
    def margin(self) -> Margin:
        """The differences that the report counts as equal."""
        return Margin(**(self.config["study"].get("margin") or {}))

    @property
    def contrasts(self) -> Sequence[str]:
        """Pairs of searchers that the report compares."""
        return self.config["study"].get("contrasts") or ()
