"""The page of all keys has every key that a file under conf/ sets, with its type and its meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, PositiveInt

from raysearch.configuration.parts import conf_dir
from raysearch.configuration.reference import meanings_of, reference_page, type_text, values_of_file

#: Keys whose last part the user chooses, keys that choose a class or a file, and the parts of a weighted objective.
OTHERS = re.compile(
    r"(.+\.)?(type|defaults)|objective\.(parts|shared).*|(assess\.(texts|generation)|study\.(grid|recover))\..*"
)


def test_every_key_of_a_file_is_on_the_page() -> None:
    page = reference_page()
    keys = re.findall(r"^\| `([\w.]+)` \|", page, flags=re.MULTILINE)
    sections = {key.rpartition(".")[0] for key in keys} | {key.partition(".")[0] for key in keys}
    missing = {
        f"{file.relative_to(conf_dir())}: {key}"
        for file in conf_dir().rglob("*.yaml")
        for key, _ in values_of_file(file)
        if key not in keys and key not in sections and not OTHERS.fullmatch(key)
    }
    assert len(keys) > 100
    assert not missing


def test_a_key_has_the_type_the_limits_and_the_meaning_of_its_field() -> None:
    @dataclass
    class Parent:
        """A class.

        Args:
            width: How many, with ``two`` lines
                and an indentation.
        """

        width: PositiveInt

    @dataclass
    class Child(Parent):
        """Another class.

        Args:
            depth: The depth.

        Raises:
            UserError: It is wrong.
        """

        depth: int = 1

    assert meanings_of(Child) == {"width": "How many, with `two` lines and an indentation.", "depth": "The depth."}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (PositiveInt, "integer > 0"),
        (Annotated[float, Field(gt=0, le=1)], "number > 0 ≤ 1"),
        (Literal["a", "b"], "`a` or `b`"),
        (PositiveInt | Literal["auto"] | None, "integer > 0 or `auto` or null"),
        (list[str], "list (text)"),
        (dict[str, Any], "mapping"),
        (bool, "true or false"),
    ],
)
def test_types_are_in_words(kind: Any, text: str) -> None:
    assert type_text(kind) == text
