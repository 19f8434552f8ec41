"""Options: dataclasses that refuse values which do not fit the types of their fields."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from pydantic import Field

from raysearch.core.validation import checked

#: A seed of random numbers.
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Options:
    """A dataclass of options, which refuses values beyond the limits of their types: a `Literal`, a `PositiveInt`.

    Attributes:
        section: The section of the configuration that holds the options, for messages.
    """

    section: ClassVar[str]

    def __post_init__(self) -> None:
        options_class: Any = type(self)
        for name, kind in _limited(options_class).items():
            checked(kind, f"{self.section}.{name}", getattr(self, name))


@cache
def _limited(options_class: Any) -> dict[str, Any]:
    """Return the fields whose types have limits, with their types."""
    hints = get_type_hints(options_class, include_extras=True)
    names = [field.name for field in dataclasses.fields(options_class)]
    return {name: hints[name] for name in names if _is_limited(hints[name])}


def _is_limited(kind: Any) -> bool:
    return get_origin(kind) in (Annotated, Literal) or any(map(_is_limited, get_args(kind)))
