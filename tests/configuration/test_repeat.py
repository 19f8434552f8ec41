"""The command that repeats a search composes the same configuration."""

from __future__ import annotations

import json
import shlex

import pytest

from raysearch.configuration.compose import compose
from raysearch.configuration.repeat import command_of


@pytest.mark.parametrize(
    ("overrides", "command"),
    [
        ("", "raysearch search"),
        (
            "remove=7 searcher.width=3 searcher=beam seed=3",
            "raysearch search searcher=beam remove=7 searcher.width=3 seed=3",
        ),
        ("model='/a b/m.gguf' data=file data.path='my text.txt' tracking=none", None),
        ("remove=auto budget.loss=0.1 protect=[0,-1]", None),
        ("calibration=paper_perplexity data.samples=8", None),
        ("objective=task_margin data=multiple_choice data.path=q.csv data.choices=[A,B]", None),
        ("refine=recover screening=off store='my store'", None),
        ("data.seed=9 model.dtype=bfloat16 cluster=inline", None),
    ],
)
def test_the_command_composes_the_same_configuration(overrides: str, command: str | None) -> None:
    config = json.loads(json.dumps(compose("search", shlex.split(overrides))))
    repeat = command_of(config)
    assert repeat is not None
    program, job, *repeated_overrides = shlex.split(repeat)
    assert (program, job) == ("raysearch", "search")
    assert {**compose("search", repeated_overrides), "choices": 0} == {**config, "choices": 0}
    assert command is None or set(shlex.split(command)) == {program, job, *repeated_overrides}


def test_a_configuration_that_no_overrides_compose_has_no_command() -> None:
    config = compose("search", [])
    assert command_of({**config, "choices": {**config["choices"], "searcher": "of-a-folder-of-my-own"}}) is None
    assert command_of({**config, "removed_key": 1}) is None
