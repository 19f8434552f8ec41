"""A search by budget that was killed, among its masks or its speeds, ends with the same table and recommendation."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.answers import evaluations, json_answer, same
from tests.cli.conftest import World
from tests.cli.test_auto import QUICK
from tests.faults.injection import MANY, SHARDS, do, kill_at, start

pytestmark = [pytest.mark.slow, pytest.mark.faults]

ENOUGH = 0.22  # nats of Kullback-Leibler divergence: some of the layers can go


def test_killed_among_masks_and_among_speeds_ends_the_same(cwd: Path, world: World) -> None:
    changes = {**MANY, **QUICK, "remove": "auto", "objective": "kl", "budget.loss": ENOUGH}
    arguments = ["search", *world.search(**changes), "--json"]
    result = json_answer(do(*arguments, "store=undisturbed"))
    undisturbed = evaluations("undisturbed")
    sizes = result["recommendation"]["sizes"]
    assert 1 <= result["recommendation"]["n_removed"] < len(sizes), "the budget is spent"

    kill_at(arguments, "killed", len(undisturbed) - SHARDS)
    before_kill = evaluations("killed")
    assert before_kill.items() <= undisturbed.items()
    assert before_kill != undisturbed
    at_speeds = start(*arguments, "store=killed")
    at_speeds.until(lambda: speeds("killed"), every_s=0.002)
    at_speeds.kill()
    measured = speeds("killed")
    assert evaluations("killed") == undisturbed

    again = json_answer(do(*arguments, "store=killed"))
    assert same(again, result)
    assert evaluations("killed") == undisturbed
    assert again["evaluations"]["computed"] == 0, "all masks were known"
    assert measured.items() <= speeds("killed").items(), "no speed is measured twice"
    assert without_speeds(again) == without_speeds(result)
    once_more = json_answer(do(*arguments, "store=killed"))
    assert once_more["recommendation"] == again["recommendation"], "with the speeds that were measured"
    assert json_answer(do("recommend", "latest", "--store", "killed", "--json")) == again["recommendation"]


def without_speeds(result: dict[str, Any]) -> dict[str, Any]:
    """The table and the recommendation, without speeds, which differ by the moment."""
    sizes = [{**size, "speed": None} for size in result["recommendation"]["sizes"]]
    return {**result["recommendation"], "sizes": sizes}


def speeds(store: str) -> dict[tuple[str, str], str]:
    """The measured speeds of a ledger, by assessment and mask."""
    with closing(sqlite3.connect(Path(store) / "ledger.db")) as ledger:
        rows = ledger.execute("SELECT assessment, mask, result FROM assessments WHERE instr(result, 'decode_s')")
        return {(assessment, mask): text for assessment, mask, text in rows}
