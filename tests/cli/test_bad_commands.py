"""Every mistake in any command is reported in one sentence with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run, World, run_separately
from tests.cli.refusals import refuses, refuses_cleanly, tree

#: Commands, in which WORLD stands for what a search needs, STUDY for what a study needs, BAD for a folder of rubbish.
COMMANDS: list[tuple[str, list[str]]] = [
    ("score WORLD", ["masks has no value", "give masks="]),
    ("score WORLD mask=[-1]", ["mask is not a key of this configuration; did you mean 'masks'?"]),
    ("score WORLD masks=[]", ["masks=[] names no mask", "[[3],[3,5],[]]"]),
    ("score WORLD masks=[[1]", ["masks=[[1] should be a valid list"]),
    ("score WORLD masks=[1]", ["masks=[1] should be a valid list; write masks=[[1]]"]),
    ("search WORLD protect=0", ["protect=0 should be a valid list; write protect=[0]"]),
    (
        "score WORLD masks=[[1]] tracking=none",
        ["tracking is not a key", "choose one of: calibration, cluster, data, ledger, masks, mod"],
    ),
    ("score WORLD masks={1,2}", ["masks={1,2} should be a valid list; write masks=[[1,2]]"]),
    ("score WORLD masks=2", ["masks=2 should be a valid list; write masks=[[2]]"]),
    ("score WORLD masks=[[0..2],[4]]", ["should be a valid integer; write masks=[[0,1,2],[4]]"]),
    ("search WORLD tracking=none protect=[0..2]", ["protect=[0..2] should be a valid integer; write protect=[0,1,2]"]),
    (
        "show BAD/store --store BAD/store",
        ["is not in BAD/store/ledger.db; a folder of searches is named with --store"],
    ),
    ("show --store none.db", ["there is no ledger at none.db; start a search"]),
    ("recommend latest loss=0.1 --store BAD/store", ["loss is not a part of a budget; did you mean 'budget.loss'?"]),
    ("recommend latest --budget.loss=0.1", ["No such option: --budget.loss; keys of the configuration have no dashes"]),
    (
        "recommend latest budget.memory=2 --store BAD/store",
        ["budget.memory=2 would be 2 bytes; write budget.memory=2GB"],
    ),
    ("assess latest store=a", ["write --store a instead of store=a"]),
    ("score WORLD masks=[[99]]", ["masks=[…,[99],…] names layer 99", "layers 0 … 4"]),
    ("score WORLD masks=[[0,1,2,3,4]]", ["masks=[…,[0, 1, 2, 3, 4],…] removes every layer", "keep at least one"]),
    ("score WORLD masks=[[1,1]]", ["mask=[1, 1] repeats a layer; name each layer once"]),
    ("score WORLD masks=[[0],[-1]]", ["mask=[-1] holds a negative layer", "0-based"]),
    ("resume greedy", ["there is no ledger at mlruns/ledger.db", "--store"]),
    ("show --store BAD/none", ["there is no ledger at BAD/none/ledger.db", "--store"]),
    ("show --store BAD/above", ["there is no ledger at BAD/above/ledger.db; did you mean --store BAD/above/mlruns?"]),
    (
        "search model=smollm2-135m data.path=my.txt",
        ["data.path=my.txt needs data that are read from a file", "data=file data.path=my.txt"],
    ),
    ("show --store BAD/text.db", ["ledger=BAD/text.db cannot be used"]),
    ("show --most 0", ["--most", "show --help"]),
    ("show --gap --store BAD/store", ["--gap ranks what one search found", "raysearch show latest --gap"]),
    ("show greedy-m2-bb --gap --store BAD/store", ["SEARCH=greedy-m2-bb is interrupted", "resume greedy-m2-bb"]),
    ("show x --store BAD/store", ["SEARCH='x' is not in BAD/store/ledger.db", "choose one of"]),
    ("resume gredy-m2-bb --store BAD/store", ["did you mean 'greedy-m2-bb'?"]),
    ("resume greedy --store BAD/store", ["SEARCH='greedy' fits greedy-m2-", "give more of the name"]),
    ("resume", ["Missing argument 'SEARCH'", "resume --help"]),
    ("export latest", ["export was given neither --out nor --gguf", "name one"]),
    ("export latest --out x --gguf y.gguf", ["export was given --out and --gguf", "name one"]),
    ("export latest --out x --from y.gguf", ["--from=y.gguf is for a GGUF export", "--gguf"]),
    ("export latest --gguf y.gguf --prompt hello", ["--prompt is for a checkpoint"]),
    ("ui --store BAD/none", ["--store=BAD/none holds no recorded search", "raysearch search"]),
    ("ui --port x", ["--port", "ui --help"]),
    ("ui --uri localhost:5000", ["--uri=localhost:5000 has no scheme", "use http://localhost:5000"]),
    ("ui --uri file:/x/runs", ["--uri=file:/x/runs is a folder", "use sqlite:////x/runs/mlflow.db", "http://"]),
    ("ui --uri runs", ["--uri=runs is a folder, which MLflow no longer supports", "/runs/mlflow.db"]),
    ("ui --uri sqlite:///", ["--uri=sqlite:/// names no file", "use sqlite:////path"]),
    (
        "ui --uri sqlit:///x.db",
        ["--uri=sqlit:///x.db has a scheme that MLflow does not support", "did you mean 'sqlite'?"],
    ),
    ("search --remove 5", ["No such option: --remove; keys of the configuration have no dashes", "remove=…"]),
    ("search --drry-run", ["No such option: --drry-run", "--dry-run"]),
    ("data WORLD --samples=1.5", ["'--samples': Input should be a valid integer", "data --help"]),
    ("show --store " + "x" * 300, ["--store=xxx", "cannot be used (File name too long)"]),
    ("sweep WORLD --out BAD/empty.txt", ["--out=BAD/empty.txt is a file", "name a folder"]),
    ("sweep WORLD --also objective=klx", ["objective=klx is unknown", "did you mean 'kl'?"]),
    ("sweep WORLD --also nonsense", ["'nonsense' is not understood", "key=value"]),
    ("sweep WORLD --also 'objective=kl", ['"\'objective=kl" is not understood', "key=value"]),
    ("sweep WORLD --also objective=weighted", ["is weighted itself", "one by one"]),
    ("sweep WORLD --also model=smollm2-135m", ["which is not a part of a calibration", "whole command"]),
    ("data WORLD objective=kl data=gsm8k --no-loss", ["has no data.question=question", "choose one of: text"]),
    ("assess greedy-m2-bb assess=paperr --store BAD/store", ["assess=paperr is unknown", "did you mean 'paper'?"]),
    ("assess greedy-m2-bb assess.taks=[piqa] --store BAD/store", ["assess.taks is not a key", "did you mean"]),
    ("assess greedy-m2-bb assess.texts.a=7 --store BAD/store", ["assess.texts names each text by its overrides"]),
    ("assess greedy-m2-bb assess.texts=7 --store BAD/store", ["assess.texts names each text by its overrides"]),
    ("assess greedy-m2-bb assess.limit=0 --store BAD/store", ["assess.limit=0 should be greater than 0"]),
    ("report --store BAD/store", ["STUDY='latest' is unknown", "raysearch study"]),
    (
        "assess some-stuby assess=none --store BAD/grid",
        ["SEARCH|STUDY='some-stuby' is not in BAD/grid/ledger.db", "mean 'some-study'?"],
    ),
    ("assess some-study assess=none --remove 2 --store BAD/grid", ["--remove=2 is of one search"]),
    ("study STUDY", ["remove=5 leaves no layer of the 5"]),
    ("study STUDY study.grid.remove=2", ["study.grid.remove=2 is not a list"]),
    ("study STUDY study.grid..=3", ["study.grid..=3 names no axis", "study.grid.searcher=[one_shot,greedy]"]),
    ("study STUDY study.grid.store=[here,there]", ["study.grid has searches recorded in different places", "store"]),
    ("study STUDY grid.remove=[1]", ["grid.remove is not a key", "did you mean study.grid.remove=[1]?"]),
    ("assess greedy-m2-bb speed.enabled=true --store BAD/store", ["did you mean assess.speed.enabled=true?"]),
    ("study STUDY study.grid=5", ["study.grid=5 should be a valid dictionary"]),
    ("study STUDY study.grid=5 study.grid.remove=[1]", ["study.grid=5 is not a mapping"]),
    ("study STUDY study.grid.sercher=[greedy]", ["sercher is not a key", "did you mean 'searcher'?"]),
    ("study STUDY study.grid.remove=[2020-01-01]", ["study.grid.remove=[2020-01-01] is not understood", "a list"]),
    ("study STUDY study.grid.remove=&a[*a]", ["is not understood", "write a list"]),
    ("study STUDY study.grid.remove=[1,[2]", ["is not understood", "write a list"]),
    ('study STUDY study.grid.searcher={x:"searcher=\'beam"}', ["study.grid.searcher has x", "write the overrides"]),
    ("study STUDY study.grid.remove=[1] study.exclude=[{remove:1}]", ["leaves no search", "exclude less"]),
    ("study STUDY study.grid.remove=[1] study.exclude=[{size:1}]", ["names the axis size"]),
    ("study STUDY study.grid.remove=[1] --out BAD/empty.txt", ["--out=BAD/empty.txt is a file"]),
    ("config --of foo", ["'--of': Value error, 'foo' is not one of 'search', 'score'", "config --help"]),
    ("score WORLD masks=[['0']]", ["masks=[[0]] should be a valid integer"]),
    ("ui --uri=", ["--uri= is empty", "leave it out"]),
    ("assess greedy-m2-bb assess.tasks=[''] --store BAD/store", ["assess.tasks has an empty name; leave it out"]),
    ("SHOW", ["No such command 'SHOW'"]),
    ("serach", ["No such command 'serach'", "raysearch --help"]),
]


def test_wrong_commands_are_refused(
    run: Run, cwd: Path, world: World, rubbish: Path, subtests: pytest.Subtests
) -> None:
    for arguments, fragments in COMMANDS:
        command = arguments.replace("BAD", str(rubbish)).replace("WORLD", " ".join(world.overrides()))
        command = command.replace("STUDY", " ".join(world.overrides(cluster="local", tracking="none")))
        with subtests.test(arguments[:60]):
            refuses_cleanly(run, command.split(), fragments, cwd, rubbish)


@pytest.mark.slow
def test_the_console_script_itself(cwd: Path, rubbish: Path) -> None:
    refuses(run_separately("resume"), ["Missing argument 'SEARCH'"], rubbish)
    assert not tree(cwd)
