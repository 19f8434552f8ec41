"""A node is lost in each phase of each kind of work; what comes out is what comes out when nothing happens."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import sqlite3
import subprocess
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.cli.answers import evaluations, json_answer, same
from tests.cli.conftest import Outcome, Run, World, run_separately
from tests.faults.clusters import STUCK, STUCK_AT, RayCluster, start
from tests.faults.test_cluster_faults import on
from tests.faults.test_recovery_killed import TRAINING, assessments, data, how

pytestmark = [pytest.mark.slow, pytest.mark.faults]

STEPS = 12
_NEW_MOUNTS, _NEW_HOST = 0x00020000, 0x04000000  # of Linux's <sched.h>


def keys_of(ray_cluster: RayCluster) -> list[str]:
    """The words of a command on a cluster."""
    return [f"{key}={value}" for key, value in on(ray_cluster.address).items()]


def with_a_node_lost(stuck_at: int, *arguments: object) -> Outcome:
    """Types a command on a cluster whose one node with a CPU is lost at a unit of its replica, and another comes."""
    with RayCluster() as ray_cluster:
        ray_cluster.start_head(0)
        node = ray_cluster.add(1, doomed=True, stuck_at=stuck_at)
        command = start(*arguments, *keys_of(ray_cluster))
        command.until(node.stuck.exists)
        node.kill()
        ray_cluster.add(1)
        return command.finish()


def texts(store: str) -> list[tuple[str, str, int, bytes]]:
    """What was generated, as a ledger has it."""
    with closing(sqlite3.connect(Path(store) / "ledger.db")) as ledger:
        return ledger.execute("SELECT calibration, mask, shard, texts FROM texts ORDER BY 1, 2, 3").fetchall()


def test_while_it_loads(run: Run, world: World) -> None:
    search = world.search(data__shard_samples=1, cluster=None)
    undisturbed = json_answer(run("search", *search, "cluster=inline", "store=undisturbed", "--json"))
    assert same(json_answer(with_a_node_lost(0, "search", *search, "store=disturbed", "--json")), undisturbed)
    assert evaluations("disturbed") == evaluations("undisturbed") != {}


@pytest.mark.parametrize("kind", ["texts", "generation"])
def test_while_a_mask_is_assessed(run: Run, world: World, cwd: Path, kind: str) -> None:
    questions = world.text.read_text().split()[:8]
    (cwd / "asked.jsonl").write_text(
        "".join(f'{{"question": "what is {word} {n}", "answer": "the"}}\n' for n, word in enumerate(questions))
    )
    drawn = {
        "texts": f"data=file data.path={world.text} data.samples=all data.sampling=sequential data.shard_samples=1",
        "generation": "data=generation data.path=asked.jsonl data.samples=all data.seq_len=32 data.shard_samples=1 "
        "data.max_new_tokens=6",
    }
    arguments = ["assess", "latest", "assess=none", f"assess.{kind}.mine={drawn[kind]}", "assess.seq_len=16"]
    for store in ("undisturbed", "disturbed"):
        json_answer(run("search", *world.search(searcher="one_shot"), f"store={store}", "--json"))
    earlier_evaluations = evaluations("disturbed")
    undisturbed = run(*arguments, "assess.limit=8", "--store", "undisturbed")
    outcome = with_a_node_lost(3, *arguments, "assess.limit=8", "--store", "disturbed")
    assert (outcome.code, outcome.out) == (0, undisturbed.out), outcome
    assert evaluations("disturbed") == evaluations("undisturbed") != earlier_evaluations
    assert texts("disturbed") == texts("undisturbed")
    assert bool(texts("disturbed")) == (kind == "generation")


def test_while_the_dense_model_answers(run: Run, world: World, cwd: Path) -> None:
    pytest.importorskip("trl")
    for store in ("undisturbed", "disturbed"):
        json_answer(run("search", *world.search(searcher="one_shot"), f"store={store}", "--json"))
    arguments = ["recover", "latest", *how(world, cwd), "--json"]
    undisturbed = json_answer(run(*arguments, "--store", "undisturbed", "--out", "whole"))
    result = json_answer(with_a_node_lost(3, *arguments, "--store", "disturbed", "--out", "healed"))
    assert result["answers_written"] == undisturbed["answers_written"] > 3
    assert data("disturbed") == data("undisturbed") != {}
    assert assessments("disturbed").keys() == assessments("undisturbed").keys()


def test_while_several_processes_train(run: Run, world: World, cwd: Path) -> None:
    pytest.importorskip("trl")
    other = cwd / "other.txt"
    other.write_text(" ".join(reversed(world.text.read_text().split())))
    arguments = [
        *("recover", "latest", "data=file", f"data.path={other}", "data.part=all", "data.seq_len=16"),
        *("data.samples=64", *TRAINING, f"recovery.max_steps={STEPS}", "recovery.workers=2"),
        *(word for word in how(world, cwd) if word.startswith("assess")),
    ]
    for store in ("undisturbed", "disturbed"):
        json_answer(run("search", *world.search(searcher="one_shot"), f"store={store}", "--json"))
    with RayCluster() as ray_cluster:
        ray_cluster.start_head(0)
        _, lost = ray_cluster.add(1), ray_cluster.add(1)
        arguments += keys_of(ray_cluster)
        undisturbed = json_answer(run_separately(*arguments, "--store", "undisturbed", "--out", "whole", "--json"))
        command = start(*arguments, "--store", "disturbed", "--out", "healed", "--json")
        saved = Path("disturbed/recoveries")
        command.until(lambda: [*saved.glob("*/checkpoints/checkpoint-2")])
        lost.kill()
        outcome = command.finish()
        assert (outcome.code, outcome.out) == (1, ""), outcome
        assert "Traceback" not in outcome.err, outcome
        assert "a worker of recovery.workers=2 has died" in outcome.err.splitlines()[-1], outcome.err
        ray_cluster.add(1)
        result = json_answer(run_separately(*arguments, "--store", "disturbed", "--out", "healed", "--json"))
    assert {**result["training"], "seconds": 0} == {**undisturbed["training"], "seconds": 0}


def go_elsewhere(boot_id: Path) -> None:
    """Has this process live on what Linux calls another machine, with this disk; the file has its boot's id."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS | _NEW_HOST):
        raise OSError(ctypes.get_errno(), "no namespace can be made")
    socket.sethostname("node-b")
    vars(platform)["_uname_cache"] = None  # of before the fork
    for arguments in (["--make-rprivate", "/"], ["--bind", boot_id, "/proc/sys/kernel/random/boot_id"]):
        subprocess.run(["mount", *arguments], check=True)


def test_the_driver_is_lost_and_another_machine_has_its_disk(run: Run, world: World, cwd: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    search = ["search", *world.search(data__shard_samples=1), "--json"]
    undisturbed = json_answer(run(*search, "store=undisturbed"))
    boot_id, stuck = cwd / "boot_id", cwd / "stuck"
    boot_id.write_text("f3b6ad4e-0000-4000-8000-000000000000\n")
    fate = {STUCK: str(stuck), STUCK_AT: "12"}
    lost = start(*search, "store=disturbed", first=[partial(go_elsewhere, boot_id)], **fate)
    lost.until(stuck.exists)
    for command in (search, ["show"]):
        refused = run(*command, *(["--store", "disturbed"] if command == ["show"] else ["store=disturbed"]))
        assert (refused.code, refused.out) == (2, ""), refused
        assert "is in use on another machine, node-b" in refused.err, refused.err
        assert refused.err.count("\n") == 1, refused.err
    lost.kill()
    earlier_evaluations = evaluations("disturbed")
    result = json_answer(run(*search, "store=disturbed"))
    assert same(result, undisturbed)
    assert result["evaluations"]["cached"] > 0
    assert earlier_evaluations
    assert evaluations("disturbed") == evaluations("undisturbed")
