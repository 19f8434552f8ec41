"""Every mistake of a user is reported in one sentence with the remedy, and leaves no files behind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Run, World
from tests.cli.refusals import refuses, refuses_cleanly

#: Words after those of a usual search, in which BAD is a folder of rubbish; what must be said.
SEARCHES: list[tuple[str, list[str]]] = [
    # keys and choices
    ("remov=3", ["remov is not a key", "did you mean 'remove'?"]),
    ("searcher=gredy", ["searcher=gredy is unknown", "did you mean 'greedy'?"]),
    ("model=smollm", ["model=smollm is unknown", "did you mean 'smollm2-135m'?", "a folder"]),
    ("cluster=", ["cluster= is unknown", "choose one of: elastic, inline, local"]),
    (
        "tracking.uri=htp://host:5000",
        ["htp://host:5000 has a scheme that MLflow does not support", "did you mean 'http'?"],
    ),
    ("tracking.experiment=", ["tracking.experiment= is not a name", "give one"]),
    ("tracking.type=foo", ["tracking.type=foo", "'mlflow' or 'none'"]),
    ("searcher.type=ray_tune", ["searcher.type=ray_tune cannot be used", "choose one of conf/searcher/"]),
    ("searcher.type=bream", ["searcher.type=bream is unknown", "did you mean 'beam'?"]),
    # Hydra's grammar
    ("remove", ["'remove' is not understood", "remove=5"]),
    ("=5", ["'=5' is not understood", "key=value"]),
    ("remove=1,2", ["remove=1,2 holds several values", "remove=[1,2]", "remove=\"'1,2'\""]),
    ("+new=1", ["+new is not a key"]),
    ("~remove", ["'~remove' is not understood", "key=value"]),
    ("hydra.run.dir=x", ["hydra.run.dir is not a key"]),
    ("remove=1e400", ["remove=Infinity should be a valid integer"]),
    ("remove=٢", ["remove=٢ should be a valid integer"]),
    ("searcher=beam searcher.width=" + "[" * 200, ["searcher.width=[[[", "should be a valid integer"]),
    ("searcher.width=\x1b[31m searcher=beam", ["searcher.width=\\x1b[31m should be a valid integer"]),
    ("study.grid.remove=[1]", ["study.grid.remove is not a key"]),
    ("assess=none", ["assess is not a key"]),
    ("remove=auto budget.loss=-1", ["budget.loss=-1 is not a budget; use a value such as 0.1"]),
    ("remove=auto budget.loss=10%", ["budget.loss=10% is no such number: a loss is not a share", "budget.readout=10%"]),
    ("speed=5", ["speed=5 is not a section; set speed.key=value"]),
    ("objective=weighted objective.parts=null", ["objective.parts has no value", "write each part as"]),
    (
        "data.samples=8 refine=recover refine.recover_with='data.samples=0'",
        ["refine.recover_with: data.samples=0 should be greater than 0"],
    ),
    (
        "objective=weighted objective.parts=[{weight:1,of:'data.seq_len=0'}]",
        ["objective.parts: data.seq_len=0 should be greater than or equal to 2"],
    ),
    (
        'objective=weighted objective.parts=[{weight:1,of:"objective=perplexity"}] objective.normalise=accuracy',
        ["objective.normalise=accuracy scales accuracies", "perplexity on", "nats per token"],
    ),
    (
        'objective=weighted objective.parts=[{weight:1,of:"objective=kl"}] objective.normalise=dense',
        ["objective.normalise=dense scales by the dense model's losses, but that of kl on", "use objective.normalise="],
    ),
    ('refine=recover refine.recover_with="\'"', ['refine.recover_with="', "is not understood"]),
    ("data={type:file}", ["data={type:file} is unknown", "choose one of"]),
    # numbers that are none
    ("searcher=genetic searcher.elitism=nan", ["searcher.elitism=NaN should be a finite number"]),
    ("cluster.unit_timeout_s=inf", ["cluster.unit_timeout_s=Infinity should be a finite number or 'auto'"]),
    ("cluster.cpus_per_replica=100000", ["cluster.cpus_per_replica=100000 should be less than or equal to 1024"]),
    ('objective=generation_accuracy objective.stop=[""]', ["objective.stop=[] has an empty text", "leave it out"]),
    # types and ranges
    ("remove=abc", ["remove=abc should be a valid integer, or a range such as 1..9"]),
    ("remove=true", ["remove=true should be a valid integer"]),
    ("remove=1-3", ["remove=1-3 should be a valid integer, or a range: write remove=1..3"]),
    ("remove=[1,2,4]", ["remove=[1,2,4] should be a valid integer, or a range: write remove=1..4"]),
    ("remove=20%", ["remove=20% should be a valid integer, or a range such as 1..9"]),
    ("model=https://huggingface.co/me/tiny", ["check the path, or write model=me/tiny for that model of the Hugging"]),
    ("model=me/tiny/", ["check the path, or write model=me/tiny for that model of the Hugging Face hub"]),
    (
        "protect='[0,-1]'",
        ["protect=[0,-1] should be a valid list", "drop the quotes around it: write protect=[0,-1]"],
    ),
    ("searcher=beam searcher.width='2'", ["searcher.width=2 should be", "drop the quotes around it"]),
    ("remove=0", ["remove=0 removes nothing", "use 1..4"]),
    ("remove=1..4 protect=[0,-1]", ["remove=1..4 is more than can go", "2 protected", "use 1..3"]),
    ("protect=[9]", ["protect=[9] names layer 9", "use indices from -5 to 4"]),
    ("seed=-1", ["error: seed=-1 should be greater than or equal to 0"]),
    ("data.seed=-1", ["data.seed=-1 should be greater than or equal to 0"]),
    ("remove=3 searcher=exhaustive searcher.limit=5", ["searcher.limit=5 is below", "give searcher.limit=10"]),
    ("data.seq_len=65", ["data.seq_len=65 is longer than the 64 positions", "use 64 or less"]),
    ("data.samples=9999", ["data.samples=9999 windows of data.seq_len=16", "data.samples="]),
    ("data.sampling=foo", ["data.sampling=foo", "'documents', 'truncated' or 'whole'"]),
    # data
    ("data=file", ["data.path has no value", "give data.path="]),
    ("data=none.docx", ["data=none.docx is unknown", "or give a file (.txt, .md, .jsonl", "a folder of texts"]),
    ("data='file'", ["data='file' has quotes inside its quotes; drop them: data=file"]),
    ("data=BAD/none.txt", ["data.path=BAD/none.txt does not exist", ".md"]),
    ("data=BAD/empty", ["data.path=BAD/empty is a folder without .txt or .md files"]),
    (
        "data=BAD/chats.jsonl",
        ["row 1 of data.path=BAD/chats.jsonl has no data.field=text, but a conversation", "data=chat"],
    ),
    ("data=BAD/nulls.jsonl data.samples=1 data.seq_len=4", ["holds null in data.field=text; fill it in, or leave"]),
    (
        "data=multiple_choice data.path=BAD/letters.csv objective=task_margin",
        ["has no data.choices=choices", "such as data.choices=[A,B,C,D]"],
    ),
    (
        "data=continuation data.path=BAD/blank.txt objective=task_margin",
        ["data.path=BAD/blank.txt is one document", "data.samples=64 items", "files of a folder"],
    ),
    (
        "data=continuation data.path=BAD/chinese.jsonl objective=task_margin data.seq_len=32",
        ["none of the 3 rows of the data makes an item", "begin with a capital (Chinese has none)", "data=file"],
    ),
    ("data=hub", ["data.name has no value", "give data.name="]),
    ("data.path=BAD/none.txt", ["data.path=BAD/none.txt does not exist", ".jsonl"]),
    ("data.path=BAD/empty.txt", ["data.path=BAD/empty.txt holds no text"]),
    ("data.path=BAD/blank.txt data.samples=1", ["data holds no text", "choose another source"]),
    ("data.path=BAD/folder.txt", ["data.path=BAD/folder.txt is a folder without .txt or .md files"]),
    ("data.path=BAD/rows.jsonl", ["row 1 of data.path=BAD/rows.jsonl has no data.field=text", "choose one of: body"]),
    ("data.path=BAD/rows.jsonl data.field=boddy", ["data.field=boddy", "did you mean 'body'?"]),
    ("data.path=BAD/short.txt", ["data.samples=8 windows", "the text holds 0 (3 tokens); use more text"]),
    # replicas
    ("cluster.backend=foo", ["cluster.backend=foo", "'ray' or 'inline'"]),
    ("cluster.replicas=0", ["cluster.replicas=0 should be greater than 0"]),
    ("cluster=local cluster.address=nowhere", ["cluster.address=nowhere is not an address", "host:port"]),
    (
        "cluster=local cluster.address=ray://host:port",
        ["cluster.address=ray://host:port is not an address", "use auto"],
    ),
    ("cluster.replicas=many", ["cluster.replicas=many", "'auto' or a valid dictionary"]),
    ("cluster=inline cluster.replicas=2", ["cluster.replicas=2 needs cluster.backend=ray"]),
    ("cluster.cpus_per_replica=0", ["cluster.cpus_per_replica=0 should be greater than or equal to 1"]),
    ("cluster=local cluster.gpus_per_replica=1 model.device=cpu", ["cluster.gpus_per_replica=1 asks for GPUs", "auto"]),
    # models
    ("model.dtype=float8", ["model.dtype=float8 is unknown", "did you mean 'float32'?"]),
    ("model.attention=foo", ["model.attention=foo is unknown", "choose one of"]),
    ("model.dtype=fp16", ["model.dtype=fp16 is unknown; did you mean 'float16'?"]),
    ("dtype=bf16", ["dtype is not a key of this configuration; did you mean model.dtype=bfloat16?"]),
    ("device=cpu", ["device is not a key of this configuration; did you mean model.device=cpu?"]),
    ("model.device=gpu", ["model.device=gpu is unknown; did you mean 'cuda'?"]),
    ("model='BAD/dumb'", ["has quotes inside its quotes; drop them: model=BAD/dumb"]),
    ("model=BAD/wordless", ["the tokenizer of model=BAD/wordless cannot be loaded: its folder has no tokenizer.json"]),
    ("model.device=tpu", ["model.device=tpu is unknown", "did you mean"]),
    ("model=custom", ["model.path has no value", "give model.path="]),
    ("model=BAD/none", ["model=BAD/none", "there is no folder", "check the path"]),
    ("model=BAD/dumb", ["the tokenizer of model=BAD/dumb cannot be loaded"]),
    (
        "model=nobody/nothing",
        ["model=nobody/nothing is neither a folder nor reachable", "check the name and the network"],
    ),
    # stores
    ("ledger=BAD/text.db", ["ledger=BAD/text.db cannot be used", "ledger=…"]),
    ("ledger=BAD/other.db", ["ledger=BAD/other.db is a database of something else", "ledger=…"]),
    ("ledger=BAD/folder.txt", ["ledger=BAD/folder.txt cannot be used", "ledger=…"]),
    ("store=BAD/empty.txt", ["ledger=BAD/empty.txt/ledger.db cannot be used (its folder is a file", "store=…"]),
    ("store=", ["store= is empty; give a path"]),
    ("ledger=/proc/version", ["ledger=/proc/version cannot be used", "ledger=…"]),
    ("store=7", ["store=7 should be a valid string", "\"'7'\""]),
    # the user's own YAML
    ("--config-dir BAD/none", ["--config-dir=BAD/none is not a folder", "laid out like conf/"]),
    ("--config-dir BAD/conf-shadow", ["--config-dir has searcher/greedy.yaml", "rename the file"]),
    ("--config-dir", ["--config-dir", "requires an argument", "--help"]),
    ("--jsn", ["--jsn", "raysearch search --help"]),
]


def test_searches_that_cannot_be(run: Run, cwd: Path, world: World, rubbish: Path, subtests: pytest.Subtests) -> None:
    for overrides, fragments in SEARCHES:
        usual = [word for word in world.search() if not (overrides.startswith("data=") and word.startswith("data"))]
        with subtests.test(overrides[:60]):
            refuses_cleanly(
                run, ["search", *usual, *overrides.replace("BAD", str(rubbish)).split()], fragments, cwd, rubbish
            )


def test_a_gpu_that_is_not_there(run: Run, world: World, rubbish: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    outcome = run("search", *world.search(model__device="cuda"))
    refuses(outcome, ["model.device=cuda needs a GPU", "use model.device=cpu"], rubbish)


def test_more_replicas_than_gpus(run: Run, world: World, rubbish: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    outcome = run("search", *world.search(cluster="local", cluster__replicas=2))
    refuses(outcome, ["cluster.replicas=2 with 1 GPUs each", "replicas share"], rubbish)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_cannot_be_written(run: Run, cwd: Path, world: World, rubbish: Path) -> None:
    (cwd / "locked").mkdir()
    (cwd / "locked").chmod(stat.S_IRUSR | stat.S_IXUSR)
    outcome = run("search", *world.search(store="locked"))
    refuses(outcome, ["ledger=locked/ledger.db cannot be used", "store=…"], rubbish)
