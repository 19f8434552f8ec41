"""A killed recovery is continued by the same command: nothing is written or trained twice."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.answers import json_answer
from tests.cli.conftest import World
from tests.cli.studies import small_study
from tests.faults.injection import do, kill_ray, ray_process, start, wait_for_rows

pytest.importorskip("trl")
pytestmark = [pytest.mark.slow, pytest.mark.faults]

PROMPTS, AT_ONCE = 200, 32
MANY = 2000  # as many as take minutes to answer
TRAINING = (
    *("recovery.loss=tokens", "recovery.max_tokens=60", "recovery.max_steps=2", "recovery.batch_size=4"),
    *("recovery.micro_batch_size=4", "recovery.checkpoint_steps=1"),
)


def assessments(store: str) -> dict[str, str]:
    """The results in a ledger, by the name of each."""
    with closing(sqlite3.connect(Path(store) / "ledger.db")) as ledger:
        return dict(ledger.execute("SELECT assessment || mask, result FROM assessments"))


def data(store: str) -> dict[str, bytes]:
    """The files of rows of a store's recoveries."""
    files = sorted((Path(store) / "recoveries").glob("*/rows.json*"))
    return {f"{file.parent.name}/{file.name}": file.read_bytes() for file in files}


def how(world: World, cwd: Path, prompts: int = PROMPTS) -> list[str]:
    """The words of a training on what the dense model answers, and of a text to assess by."""
    words = world.text.read_text().split()
    starts = ((place, 7 * place % len(words)) for place in range(prompts))
    rows = [{"question": " ".join([str(place), *words[at : at + 6]]), "answer": "law"} for place, at in starts]
    (cwd / "asked.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = f"assess.texts.mine=data=file data.path={world.text} data.samples=all data.sampling=sequential"
    return [
        *("data=questions", "data.path=asked.jsonl", "data.question=question", "data.answer=answer"),
        *("data.prompt={question}", "data.samples=all", "data.part=all", "recovery.max_new_tokens=40", *TRAINING),
        *("assess=none", text, "assess.seq_len=16", "assess.limit=4", "assess.probe.enabled=false"),
    ]


def test_no_answer_is_written_twice_and_the_data_are_the_same_to_the_byte(world: World, cwd: Path) -> None:
    command = ["recover", "latest", *how(world, cwd), "--json"]
    for store in ("undisturbed", "killed"):
        json_answer(do("search", *world.search(store=store), "--json"))
    undisturbed = json_answer(do(*command, "--store", "undisturbed", "--out", "whole"))
    n_asked = undisturbed["answers_written"]
    assert n_asked > 4 * AT_ONCE
    process = start(*command, "--store", "killed", "--out", "healed")
    wait_for_rows(process, "killed", 2, "assessments")
    process.kill()
    written = assessments("killed")
    assert 2 <= len(written) < n_asked / AT_ONCE, "it was killed meanwhile"
    n_written = sum(len(json.loads(result)["answers"]) for result in written.values())
    again = json_answer(do(*command, "--store", "killed", "--out", "healed"))
    assert again["answers_written"] == n_asked - n_written
    assert written.items() <= assessments("killed").items()
    assert data("killed") == data("undisturbed") != {}
    assert again["training"] == {**undisturbed["training"], "seconds": again["training"]["seconds"]}


def test_ray_itself_is_killed(world: World, cwd: Path) -> None:
    assert do("search", *world.search(searcher="one_shot")).code == 0
    command = ["recover", "latest", *how(world, cwd), "cluster=local", "cluster.replicas=1", "--out", "healed"]
    process = start(*command)
    raylet = ray_process(process, "raylet")
    wait_for_rows(process, "mlruns", 1, "assessments")
    kill_ray(process, raylet)
    again = do(*command)
    assert again.code == 0, again
    assert (cwd / "healed/config.json").is_file(), again


def test_ray_itself_is_killed_under_a_study(world: World, cwd: Path) -> None:
    arguments = how(world, cwd, MANY)
    ways = " ".join(word for word in arguments if not word.startswith("assess"))
    command = [
        *("study", *small_study(world, "searcher=[one_shot]"), "remove=2"),
        *(word for word in arguments if word.startswith("assess")),
        f"study.recover_with={ways + ' cluster=local cluster.replicas=1'!r}",
        "study.recover.plain=recovery.responses=self",
    ]
    process = start(*command)
    process.until(lambda: "answers of the teacher" in process.written("err"))
    kill_ray(process, ray_process(process, "gcs_server"))


def test_a_refined_search_trains_no_mask_twice(world: World, cwd: Path) -> None:
    other = cwd / "other.txt"
    other.write_text(" ".join(reversed(world.text.read_text().split())))
    rows = f"data=file data.path={other} data.part=all data.seq_len=16 data.samples=24 {' '.join(TRAINING)}"
    recovery = rows.replace(" recovery.max_steps=2", "")
    command = [
        "search",
        *world.search(),
        "refine=recover",
        "refine.steps=2",
        f"refine.recover_with={recovery}",
        "--json",
    ]
    undisturbed = json_answer(do(*command, "store=undisturbed"))["refinement"]
    process = start(*command, "store=killed")
    wait_for_rows(process, "killed", 1, "assessments")
    process.kill()
    earlier_assessments = assessments("killed")
    assert 1 <= len(earlier_assessments) < 3, "it was killed meanwhile"
    again = json_answer(do(*command, "store=killed"))["refinement"]
    assert earlier_assessments.items() <= assessments("killed").items()
    assert [{**mask_result, "seconds": 0} for mask_result in again["masks"]] == [
        {**mask_result, "seconds": 0} for mask_result in undisturbed["masks"]
    ]
    assert data("killed") == data("undisturbed") != {}


def test_a_search_in_stages_repeats_no_stage_and_ends_with_the_same_bytes(world: World, cwd: Path) -> None:
    other = cwd / "other.txt"
    other.write_text(" ".join(reversed(world.text.read_text().split())))
    recovery = f"data=file data.path={other} data.part=all data.seq_len=16 data.samples=24 {' '.join(TRAINING)}"
    recovery += " assess=none assess.probe.enabled=false"
    command = [
        "search",
        *world.search(remove=3),
        "schedule=[1,1,1]",
        "heal=recover",
        f"heal.recover_with={recovery}",
        "--json",
    ]
    undisturbed = json_answer(do(*command, "store=undisturbed"))
    process = start(*command, "store=killed")
    wait_for_rows(process, "killed", 1, "assessments")
    process.kill()
    earlier_assessments = assessments("killed")
    assert 1 <= len(earlier_assessments) < 3, "it was killed meanwhile"
    again = json_answer(do(*command, "store=killed"))
    assert again["removed"] == undisturbed["removed"]
    assert earlier_assessments.items() <= assessments("killed").items()
    models = [
        next((cwd / store / "recoveries").glob("stages-*/recovered/model.safetensors"))
        for store in ("undisturbed", "killed")
    ]
    assert models[0].read_bytes() == models[1].read_bytes()
