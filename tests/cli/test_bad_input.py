"""Every mistake of a user is reported in one sentence with the remedy, and leaves no files behind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Run, World
from tests.cli.refusals import refuses, refuses_cleanly
from tests.sentences import Sentences

#: Words after those of a usual search, in which BAD is a folder of rubbish.
SEARCHES = [
    # keys and choices
    "remov=3",
    "searcher=gredy",
    "model=smollm",
    "cluster=",
    "tracking.uri=htp://host:5000",
    "tracking.experiment=",
    "tracking.type=foo",
    "searcher.type=ray_tune",
    "searcher.type=bream",
    # Hydra's grammar
    "remove",
    "=5",
    "remove=1,2",
    "+new=1",
    "~remove",
    "hydra.run.dir=x",
    "remove=1e400",
    "remove=٢",
    "searcher=beam searcher.width=" + "[" * 200,
    "searcher.width=\x1b[31m searcher=beam",
    "study.grid.remove=[1]",
    "assess=none",
    "remove=auto budget.loss=-1",
    "remove=auto budget.loss=10%",
    "speed=5",
    "objective=weighted objective.parts=null",
    "data.samples=8 refine=recover refine.recover_with='data.samples=0'",
    "objective=weighted objective.parts=[{weight:1,of:'data.seq_len=0'}]",
    'objective=weighted objective.parts=[{weight:1,of:"objective=perplexity"}] objective.normalise=accuracy',
    'objective=weighted objective.parts=[{weight:1,of:"objective=kl"}] objective.normalise=dense',
    'refine=recover refine.recover_with="\'"',
    "data={type:file}",
    # numbers that are none
    "searcher=genetic searcher.elitism=nan",
    "cluster.unit_timeout_s=inf",
    "cluster.cpus_per_replica=100000",
    'objective=generation_accuracy objective.stop=[""]',
    # types and ranges
    "remove=abc",
    "remove=true",
    "remove=1-3",
    "remove=[1,2,4]",
    "remove=20%",
    "model=https://huggingface.co/me/tiny",
    "model=me/tiny/",
    "protect='[0,-1]'",
    "searcher=beam searcher.width='2'",
    "remove=0",
    "remove=1..4 protect=[0,-1]",
    "protect=[9]",
    "seed=-1",
    "data.seed=-1",
    "remove=3 searcher=exhaustive searcher.limit=5",
    "data.seq_len=65",
    "data.samples=9999",
    "data.sampling=foo",
    # data
    "data=file",
    "data=none.docx",
    "data='file'",
    "data=BAD/none.txt",
    "data=BAD/empty",
    "data=BAD/chats.jsonl",
    "data=BAD/nulls.jsonl data.samples=1 data.seq_len=4",
    "data=multiple_choice data.path=BAD/letters.csv objective=task_margin",
    "data=continuation data.path=BAD/blank.txt objective=task_margin",
    "data=continuation data.path=BAD/chinese.jsonl objective=task_margin data.seq_len=32",
    "data=hub",
    "data.path=BAD/none.txt",
    "data.path=BAD/empty.txt",
    "data.path=BAD/blank.txt data.samples=1",
    "data.path=BAD/folder.txt",
    "data.path=BAD/rows.jsonl",
    "data.path=BAD/rows.jsonl data.field=boddy",
    "data.path=BAD/short.txt",
    # replicas
    "cluster.backend=foo",
    "cluster.replicas=0",
    "cluster=local cluster.address=nowhere",
    "cluster=local cluster.address=ray://host:port",
    "cluster.replicas=many",
    "cluster=inline cluster.replicas=2",
    "cluster.cpus_per_replica=0",
    "cluster=local cluster.gpus_per_replica=1 model.device=cpu",
    # models
    "model.dtype=float8",
    "model.attention=foo",
    "model.dtype=fp16",
    "dtype=bf16",
    "device=cpu",
    "model.device=gpu",
    "model='BAD/dumb'",
    "model=BAD/wordless",
    "model.device=tpu",
    "model=custom",
    "model=BAD/none",
    "model=BAD/dumb",
    "model=nobody/nothing",
    # stores
    "ledger=BAD/text.db",
    "ledger=BAD/other.db",
    "ledger=BAD/folder.txt",
    "store=BAD/empty.txt",
    "store=",
    "ledger=/proc/version",
    "store=7",
    # the user's own YAML
    "--config-dir BAD/none",
    "--config-dir BAD/conf-shadow",
    "--config-dir",
    "--jsn",
]


def test_searches_that_cannot_be(
    run: Run, cwd: Path, world: World, rubbish: Path, subtests: pytest.Subtests, sentences: Sentences
) -> None:
    for overrides in SEARCHES:
        usual = [word for word in world.search() if not (overrides.startswith("data=") and word.startswith("data"))]
        with subtests.test(overrides[:60]):
            command = ["search", *usual, *overrides.replace("BAD", str(rubbish)).split()]
            refuses_cleanly(run, command, sentences, overrides, cwd, rubbish)


def test_a_gpu_that_is_not_there(run: Run, world: World, monkeypatch: pytest.MonkeyPatch, sentences: Sentences) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    outcome = run("search", *world.search(model__device="cuda"))
    refuses(outcome, sentences)


def test_more_replicas_than_gpus(run: Run, world: World, monkeypatch: pytest.MonkeyPatch, sentences: Sentences) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    outcome = run("search", *world.search(cluster="local", cluster__replicas=2))
    refuses(outcome, sentences)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_cannot_be_written(run: Run, cwd: Path, world: World, sentences: Sentences) -> None:
    (cwd / "locked").mkdir()
    (cwd / "locked").chmod(stat.S_IRUSR | stat.S_IXUSR)
    outcome = run("search", *world.search(store="locked"))
    refuses(outcome, sentences)
