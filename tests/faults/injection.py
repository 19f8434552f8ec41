"""Commands in processes that can be killed, and a look at what they leave behind."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import multiprocessing
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import pytest

from raysearch.ledger.ledger import Ledger
from raysearch.searching.search_record import SEARCHES
from tests.cli.conftest import Outcome
from tests.processes import MARK, descendants, marked, wait_for

T = TypeVar("T")

#: A search with many moments to be killed at: every shard of a round is a unit of its own.
SHARDS = 24
MANY: dict[str, object] = {
    **{"data.samples": SHARDS, "data.seq_len": 48, "data.shard_samples": 1, "remove": 3},
    "screening": "off",  # so that rows can be counted
}
#: Rounds of 6, 10 and 10 masks.
BEAM: dict[str, object] = {**MANY, "searcher": "beam", "searcher.width": 10}
#: A line that Ray's own code may write at any time: ``[2026-11-26 10:51:44,972 E 11821 12019] core_worker.cc:609: …``.
_LOGGED_BY_RAY = re.compile(r"\[[\d-]+ [\d:,]+ [A-Z] \d+ \d+\]")
_IMPORTED = [
    "pytest",
    "raysearch.api.functions",
    "raysearch.cli.displays",
    "raysearch.cluster.pool",
    "raysearch.studies.trials",
]
#: Where the functions are that run programs.
_MAINS = {"raysearch": "raysearch.cli", "ray": "ray.scripts.scripts"}
_MODEL = "transformers.models.llama.modeling_llama"


@functools.cache
def _forks() -> Any:
    """Makes processes that have imported everything already: a kill costs no seconds of imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_IMPORTED, _MODEL, __name__])
    return context


@dataclass(frozen=True)
class Command:
    """A command at work in a process of its own.

    Args:
        process: The process, which leads a session, as one that was typed in a terminal does.
        folder: Where its outputs are.
    """

    process: BaseProcess
    folder: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def interrupt(self) -> None:
        """A Ctrl-C, which reaches all that it has started, too."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """Takes it down without warning."""
        self.process.kill()
        assert self.finish().code == -signal.SIGKILL

    def until(self, what: Callable[[], T], every_s: float = 0.05) -> T:
        """Waits for something to be true while it works, and returns that."""

        def look() -> T:
            assert self.process.is_alive(), self.finish()
            return what()

        return wait_for(look, 300, every_s=every_s)

    def finish(self, timeout_s: float = 300) -> Outcome:
        self.process.join(timeout_s)
        code = self.process.exitcode
        assert code is not None, f"still running after {timeout_s} s: {self.written('err')}"
        return Outcome(code, self.written("out"), self.written("err"))

    def written(self, stream: str) -> str:
        """What it has written so far: ``out`` or ``err``."""
        return (self.folder / stream).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Disk:
    """A file system in memory that only some processes see, so that nothing stays mounted.

    Args:
        path: Where those see it.
        holder: A process that does.
    """

    path: Path
    holder: int

    @property
    def mounted_path(self) -> Path:
        """Where this process sees it."""
        return Path(f"/proc/{self.holder}/root{self.path}")

    def fill(self, left: int) -> None:
        """Leaves so many bytes of it."""
        (self.mounted_path / "ballast").write_bytes(bytes(shutil.disk_usage(self.mounted_path).free - left))

    def empty(self) -> None:
        (self.mounted_path / "ballast").unlink()

    def remount(self, options: str) -> None:
        """Changes its size, or whether it can be written."""
        enter = ["nsenter", "--target", str(self.holder), "--mount", *_AS_OWNER]
        subprocess.run([*enter, "mount", "-o", f"remount,{options}", self.path], check=True)

    def enter(self) -> None:
        """Has this process see it; it must have no second thread."""
        for kind in ["user", "mnt"] if _AS_OWNER else ["mnt"]:
            enter(Path(f"/proc/{self.holder}/ns/{kind}"))


def enter(namespace: Path) -> None:
    """Has this process, and all that it starts, live in a namespace of Linux."""
    with namespace.open() as opened:
        if ctypes.CDLL(None, use_errno=True).setns(opened.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


#: Who is not root becomes the owner of a world of its own, in which it may mount.
_AS_OWNER = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]


@contextlib.contextmanager
def mounted(path: Path, size: str) -> Iterator[Disk]:
    """A disk of this size at a folder; the test is skipped where that is not permitted."""
    arguments = ["unshare", "--mount", *(["--map-root-user"] if _AS_OWNER else []), "sh", "-c"]
    script = 'mount -t tmpfs -o "size=$1" tmpfs "$0" && echo mounted && exec sleep 1000'
    with subprocess.Popen([*arguments, script, path, size], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stderr is not None
            if holder.stdout.readline() != b"mounted\n":
                pytest.skip(f"no mount namespace can be made here: {holder.stderr.read().decode().strip()}")
            yield Disk(path, holder.pid)
        finally:
            holder.kill()


def start(
    *arguments: object,
    program: str = "raysearch",
    first: Sequence[Callable[[], None]] = (),
    mark: str = "",
    **settings: str,
) -> Command:
    """Types a command in this folder, in a process of its own that sees the mark and these variables.

    Args:
        arguments: The arguments of the program.
        program: raysearch or ray.
        first: Functions that the process calls first, such as to enter a disk.
        mark: The mark by which its processes are recognised.
        settings: Variables of the environment.

    Returns:
        The running command.
    """
    folder = Path(tempfile.mkdtemp(prefix="outputs-", dir=Path.cwd().parent))
    for stream in "out", "err":  # also if it is killed before it says anything
        (folder / stream).touch()
    command = [program, *map(str, arguments)]
    process_arguments = (command, Path.cwd(), {MARK: mark, **settings}, folder, first)
    process = _forks().Process(target=_type_in, args=process_arguments, daemon=True)
    process.start()
    return Command(process, folder)


def do(*arguments: object, disk: Disk | None = None, mark: str = "", **settings: str) -> Outcome:
    """Types a command in a process of its own, which may see a disk, and waits for its end."""
    return start(*arguments, first=[disk.enter] if disk else [], mark=mark, **settings).finish()


def _type_in(
    arguments: list[str], cwd: Path, settings: Mapping[str, str], outputs: Path, first: Sequence[Callable[[], None]]
) -> None:
    os.setsid()
    for step in first:
        step()
    os.chdir(cwd)
    os.environ.update(settings)
    for number, name in (1, "out"), (2, "err"):
        os.dup2(os.open(outputs / name, os.O_WRONLY), number)
    sys.argv = arguments
    importlib.import_module(_MAINS[arguments[0]]).main()


def refused(outcome: Outcome, *parts: str) -> None:
    """Asserts that a command ended with one sentence, which contains these parts."""
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert "Traceback" not in outcome.err, outcome
    sentence = outcome.err.splitlines()[-1]
    assert sentence.startswith("error: "), outcome.err
    assert outcome.err.count("\nerror: ") <= 1, outcome.err
    for part in parts:
        assert part in sentence, sentence


def kill_ray(command: Command, part: int) -> None:
    """Takes down a part of the Ray of a command, which says so in one sentence, but for what Ray itself logs."""
    os.kill(part, signal.SIGKILL)
    outcome = command.finish()
    assert (outcome.code, outcome.out) == (1, ""), outcome
    assert "Traceback" not in outcome.err, outcome.err
    assert "state-dump" not in outcome.err, outcome.err
    *_, last = [line for line in outcome.err.splitlines() if not _LOGGED_BY_RAY.match(line)]
    assert last.startswith("failed: Ray's "), outcome.err
    assert last.endswith("the same command goes on from there"), outcome.err


def state(store: str) -> str:
    """How the ledger's last search stands."""
    with closing(Ledger(Path(store) / "ledger.db")) as ledger:
        return SEARCHES.find(ledger, "latest").state


def wait_for_rows(command: Command, store: str, rows: int, table: str = "evaluations") -> None:
    """Returns as soon as the ledger holds so many rows."""
    with contextlib.ExitStack() as leaving:
        opened: list[sqlite3.Connection] = []  # once: it is asked hundreds of times a second

        def are_there() -> bool:
            with contextlib.suppress(sqlite3.Error):
                if not opened:
                    db = sqlite3.connect(f"file:{store}/ledger.db?mode=ro", uri=True)
                    opened.append(leaving.enter_context(closing(db)))
                return bool(opened[0].execute(f"SELECT count(*) FROM {table}").fetchone()[0] >= rows)
            return False

        command.until(are_there, every_s=0.002)


def kill_at(arguments: list[str], store: str, rows: int, mark: str = "") -> None:
    """Starts a search, and takes it down without warning as soon as the ledger holds so many rows."""
    command = start(*arguments, f"store={store}", mark=mark)
    wait_for_rows(command, store, rows)
    command.kill()


def ray_process(command: Command, part: str) -> int:
    """The number of a part of the Ray that a command starts, as soon as there is one."""

    def parts() -> list[int]:
        return [pid for pid, line in descendants(command.pid).items() if line.partition(" ")[0].endswith(f"/{part}")]

    return command.until(parts)[0]


def assert_all_gone(mark: str, within_s: float) -> None:
    """Nothing that bears the mark is left, or is about to go."""

    def remaining() -> list[str]:
        return [line for line in marked(mark).values() if not line.endswith("Agent")]  # Ray's notice it in a minute

    wait_for(lambda: not remaining(), within_s, remaining)
