"""A tiny model with a real tokenizer, a text, and the command line: in this process, and as a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from raysearch.configuration import compose as config
from tests.models.families import tiny

N_LAYERS = 5
POSITIONS = 64
MAIN = "from raysearch.cli import main; main()"
_VOCABULARY = (
    "the of and people state union government year nation law peace war great public power trade congress treaty "
    "country citizens shall been which every present system duty interest money revenue army navy"
)


@dataclass(frozen=True)
class World:
    """What a user has: a checkpoint and a text."""

    model: Path
    text: Path

    def overrides(self, **changes: object) -> list[str]:
        """Return the overrides of a quick search; `changes` set keys (``__`` for a dot), and None removes one."""
        keys: dict[str, object] = {
            "model": self.model,
            "data": "file",
            "data.path": self.text,
            "data.samples": 8,
            "data.seq_len": 16,
            "cluster": "inline",
        }
        keys |= {key.replace("__", "."): value for key, value in changes.items()}
        return [f"{key}={value}" for key, value in keys.items() if value is not None]

    def search(self, **changes: object) -> list[str]:
        """Return the overrides of a quick search without MLflow."""
        return self.overrides(**{"tracking": "none", "remove": 2, **changes})


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def prose(n_words: int) -> str:
    """Sentences of words that are always the same."""
    chosen = np.random.default_rng(0).choice(_VOCABULARY.split(), size=n_words).tolist()
    return "".join(f"{' '.join(chosen[start : start + 12])}.\n" for start in range(0, n_words, 12))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A random Llama of five layers with a word-level tokenizer, and a few thousand words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("world")
    (folder / "prose.txt").write_text(prose(4000))
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    trainer = trainers.WordLevelTrainer(special_tokens=list(special.values()), show_progress=False)
    tokenizer.train_from_iterator([prose(4000)], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder / "model")
    model = tiny(
        "llama",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model.save_pretrained(folder / "model")
    return World(folder / "model", folder / "prose.txt")


@pytest.fixture(scope="session")
def rubbish(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that can be wrong with files."""
    from raysearch.ledger.ledger import Ledger
    from raysearch.searching.search_record import write_search
    from raysearch.studies.study_record import STUDIES, StudyRecord

    bad = tmp_path_factory.mktemp("bad")
    for name, content in {
        "empty.txt": b"",
        "blank.txt": b" \n",
        "short.txt": b"the of and",
        "rows.jsonl": b'{"body": "the of"}\n',
        "text.db": b"this is no database, but long enough to be looked at. " * 20,
        "chats.jsonl": b'{"messages": [{"role": "user", "content": "the"}, {"role": "assistant", "content": "of"}]}\n',
        "nulls.jsonl": b'{"text": "the of and people"}\n{"text": null}\n',
        "letters.csv": b"question,A,B,C,D,answer\nthe,of,and,law,war,A\n",
        "chinese.jsonl": '{"text": "山高。水長。"}\n'.encode() * 3,
        "conf-shadow/searcher/greedy.yaml": b"type: beam\nwidth: 2\n",
    }.items():
        (bad / name).parent.mkdir(parents=True, exist_ok=True)
        (bad / name).write_bytes(content)
    for folder in ("folder.txt", "empty"):
        (bad / folder).mkdir()
    shutil.copytree(world.model, bad / "dumb")
    (bad / "dumb" / "tokenizer.json").write_text("{")
    shutil.copytree(world.model, bad / "wordless", ignore=shutil.ignore_patterns("tokenizer*"))
    with closing(sqlite3.connect(bad / "other.db")) as database:
        database.execute("CREATE TABLE people (name TEXT)")
    configuration = config.compose("search", world.search())
    with closing(Ledger(bad / "store" / "ledger.db")) as ledger:
        write_search(ledger, "greedy-m2-aa", configuration, "failed")
        write_search(ledger, "greedy-m2-bb", configuration, "interrupted")
    shutil.copytree(bad / "store", bad / "above" / "mlruns")
    with closing(Ledger(bad / "grid" / "ledger.db")) as ledger:
        configuration = config.compose("study", ["study.grid.remove=[1]"])
        STUDIES.write(ledger, StudyRecord("some-study", configuration, (), {}, {}, "2026-01-01"))
    return bad


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder in which commands are typed."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def tables(cwd: Path, store_with_tables: Path) -> None:
    """MLflow's tables where commands look for them."""
    (cwd / "mlruns").mkdir()
    shutil.copy(store_with_tables, cwd / "mlruns")


@pytest.fixture
def run(
    cwd: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], commands_made_once: None
) -> Iterator[Run]:
    """Run a command in this process, which is quick, since torch is imported once."""
    from raysearch.cli import main

    before = signal.getsignal(signal.SIGTERM)
    for name in (
        "TRANSFORMERS_VERBOSITY",
        "HF_HUB_DISABLE_PROGRESS_BARS",
        "HF_HUB_VERBOSITY",
        "TOKENIZERS_PARALLELISM",
    ):
        monkeypatch.setenv(name, os.environ.get(name, "error"))  # main sets them where they are missing

    def type_in(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["raysearch", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else int(code is not None), *capfd.readouterr())

    yield type_in
    signal.signal(signal.SIGTERM, before)


def spawn(*arguments: object, **settings: str) -> subprocess.Popen[str]:
    """Start a command in a separate process, with these environment variables too."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that a Ctrl-C can be sent to all of it, as a terminal does
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 300) -> Outcome:
    """Waits for a process."""
    out, err = process.communicate(timeout=timeout_s)
    return Outcome(process.returncode, out, err)


def run_separately(*arguments: object, **settings: str) -> Outcome:
    """Run a command in a separate process to its end."""
    return finish(spawn(*arguments, **settings))
