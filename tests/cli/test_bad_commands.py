"""Every mistake in any command is reported in one sentence with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run, World, run_separately
from tests.cli.refusals import refuses, refuses_cleanly, tree
from tests.sentences import Sentences

#: Commands, in which WORLD stands for what a search needs, STUDY for what a study needs, BAD for a folder of rubbish.
COMMANDS = [
    "score WORLD",
    "score WORLD mask=[-1]",
    "score WORLD masks=[]",
    "score WORLD masks=[[1]",
    "score WORLD masks=[1]",
    "search WORLD protect=0",
    "score WORLD masks=[[1]] tracking=none",
    "score WORLD masks={1,2}",
    "score WORLD masks=2",
    "score WORLD masks=[[0..2],[4]]",
    "search WORLD tracking=none protect=[0..2]",
    "show BAD/store --store BAD/store",
    "show --store none.db",
    "recommend latest loss=0.1 --store BAD/store",
    "recommend latest --budget.loss=0.1",
    "recommend latest budget.memory=2 --store BAD/store",
    "assess latest store=a",
    "score WORLD masks=[[99]]",
    "score WORLD masks=[[0,1,2,3,4]]",
    "score WORLD masks=[[1,1]]",
    "score WORLD masks=[[0],[-1]]",
    "resume greedy",
    "show --store BAD/none",
    "show --store BAD/above",
    "search model=smollm2-135m data.path=my.txt",
    "show --store BAD/text.db",
    "show --most 0",
    "show --gap --store BAD/store",
    "show greedy-m2-bb --gap --store BAD/store",
    "show x --store BAD/store",
    "resume gredy-m2-bb --store BAD/store",
    "resume greedy --store BAD/store",
    "resume",
    "export latest",
    "export latest --out x --gguf y.gguf",
    "export latest --out x --from y.gguf",
    "export latest --gguf y.gguf --prompt hello",
    "ui --store BAD/none",
    "ui --port x",
    "ui --uri localhost:5000",
    "ui --uri file:/x/runs",
    "ui --uri runs",
    "ui --uri sqlite:///",
    "ui --uri sqlit:///x.db",
    "search --remove 5",
    "search --drry-run",
    "data WORLD --samples=1.5",
    "show --store " + "x" * 300,
    "sweep WORLD --out BAD/empty.txt",
    "sweep WORLD --also objective=klx",
    "sweep WORLD --also nonsense",
    "sweep WORLD --also 'objective=kl",
    "sweep WORLD --also objective=weighted",
    "sweep WORLD --also model=smollm2-135m",
    "data WORLD objective=kl data=gsm8k --no-loss",
    "assess greedy-m2-bb assess=paperr --store BAD/store",
    "assess greedy-m2-bb assess.taks=[piqa] --store BAD/store",
    "assess greedy-m2-bb assess.texts.a=7 --store BAD/store",
    "assess greedy-m2-bb assess.texts=7 --store BAD/store",
    "assess greedy-m2-bb assess.limit=0 --store BAD/store",
    "report --store BAD/store",
    "assess some-stuby assess=none --store BAD/grid",
    "assess some-study assess=none --remove 2 --store BAD/grid",
    "study STUDY",
    "study STUDY study.grid.remove=2",
    "study STUDY study.grid..=3",
    "study STUDY study.grid.store=[here,there]",
    "study STUDY grid.remove=[1]",
    "assess greedy-m2-bb speed.enabled=true --store BAD/store",
    "study STUDY study.grid=5",
    "study STUDY study.grid=5 study.grid.remove=[1]",
    "study STUDY study.grid.sercher=[greedy]",
    "study STUDY study.grid.remove=[2020-01-01]",
    "study STUDY study.grid.remove=&a[*a]",
    "study STUDY study.grid.remove=[1,[2]",
    'study STUDY study.grid.searcher={x:"searcher=\'beam"}',
    "study STUDY study.grid.remove=[1] study.exclude=[{remove:1}]",
    "study STUDY study.grid.remove=[1] study.exclude=[{size:1}]",
    "study STUDY study.grid.remove=[1] --out BAD/empty.txt",
    "config --of foo",
    "score WORLD masks=[['0']]",
    "ui --uri=",
    "assess greedy-m2-bb assess.tasks=[''] --store BAD/store",
    "SHOW",
    "serach",
]


def test_wrong_commands_are_refused(
    run: Run, cwd: Path, world: World, rubbish: Path, subtests: pytest.Subtests, sentences: Sentences
) -> None:
    for arguments in COMMANDS:
        command = arguments.replace("BAD", str(rubbish)).replace("WORLD", " ".join(world.overrides()))
        command = command.replace("STUDY", " ".join(world.overrides(cluster="local", tracking="none")))
        with subtests.test(arguments[:60]):
            refuses_cleanly(run, command.split(), sentences, arguments, cwd, rubbish)


@pytest.mark.slow
def test_the_console_script_itself(cwd: Path, sentences: Sentences) -> None:
    refuses(run_separately("resume"), sentences)
    assert not tree(cwd)
