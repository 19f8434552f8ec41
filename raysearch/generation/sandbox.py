"""Runs programs that a model wrote, which are hostile until shown otherwise, and says whether they pass their tests."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import py_compile
import secrets
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from raysearch.core.machine import n_cores
from raysearch.errors import UserError

_CHILD = Path(__file__).with_name("sandbox_child.py")
_MOST_BYTES = 8192  # of what a program's process reports
_MEMORY = 2**30  # bytes of address space
_SCRATCH = 2**24  # bytes of files in its own folder


@dataclass(frozen=True)
class Program:
    """Code that a model wrote, and the tests that run after it in the same namespace."""

    code: str
    tests: str  #: Python source that raises where the code is wrong
    timeout_s: float = 30.0  #: of processor time; thrice that, and 5 s to start, by the clock


@dataclass(frozen=True)
class ProgramOutcome:
    """How a program ended."""

    passed: bool  #: whether it ran to the end of its tests
    parses: bool = True  #: whether its code is Python
    error: str | None = None  #: name of the exception that ended it; None if it passed
    message: str = ""  #: of the exception


def run_programs(programs: Iterable[Program], workers: int | None = None) -> Iterator[ProgramOutcome]:
    """Run programs, as many at once as there are workers or else processors, and yield their outcomes in order.

    Each has a process of its own without network, without other processes, with limits of time, memory and files, and
    can write nowhere but in a scratch folder, which goes when it ends.

    A program passes only if its tests end. It shares the interpreter with them, as in all harnesses of these
    benchmarks: one that defines an object that equals everything passes a test of equality, and one that searches the
    interpreter for its verdict can find that.

    Raises:
        UserError: This machine has no way to shut a program off.
    """
    if sys.platform != "linux":
        raise UserError(f"run_code=true needs Linux to shut generated code off, and this is {sys.platform}")
    workers = workers or n_cores()
    with (
        tempfile.TemporaryDirectory(prefix="raysearch-code-") as folder,
        ThreadPoolExecutor(workers, thread_name_prefix="sandbox") as pool,
    ):
        compiled = Path(folder) / f"{_CHILD.name}c"  # once: to compile it takes a process as long as to start Python
        py_compile.compile(str(_CHILD), str(compiled), doraise=True)
        yield from pool.map(functools.partial(_run, compiled), programs)


def _run(child: Path, program: Program) -> ProgramOutcome:
    token = secrets.token_hex(16).encode()
    code, tests = (text.encode(errors="replace") for text in (program.code, program.tests))
    paths = sysconfig.get_paths()
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="raysearch-code-", ignore_cleanup_errors=True))
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        numbers = (writing, len(code), len(tests), math.ceil(program.timeout_s), _MEMORY, _SCRATCH, os.getpid())
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-B", str(child), *map(str, numbers)),
                    *dict.fromkeys((paths["purelib"], paths["platlib"])),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writing,),
                cwd=scratch,
                env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "HOME": scratch, "TMPDIR": scratch},
                start_new_session=True,
            )
        finally:
            os.close(writing)
        started = time.monotonic()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(code + tests + token, timeout=3 * program.timeout_s + 5)
        finally:
            with contextlib.suppress(ProcessLookupError):  # nobody but itself can be in its group
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.set_blocking(reading, False)
        try:
            report = os.read(reading, _MOST_BYTES)
        except BlockingIOError:
            report = b""
    return _outcome(report, token, process.returncode, time.monotonic() - started >= program.timeout_s)


def _outcome(report: bytes, token: bytes, returned: int, late: bool) -> ProgramOutcome:
    """Judge by what the process reported, which only the token makes a pass, and by how it ended."""
    begun, report = report.startswith(b"\n"), report.removeprefix(b"\n")
    if report == token:
        return ProgramOutcome(passed=True)
    if returned == -signal.SIGXCPU or (returned == -signal.SIGKILL and late):
        return ProgramOutcome(False, True, "TimeoutError", "timed out")
    stage, *words = report.decode(errors="replace").split("\0", 2)
    if stage == "sandbox" and not begun:
        raise UserError(f"run_code=true needs a kernel that can shut generated code off, and {words[0]}")
    if stage in ("run", "parse") and len(words) == 2:
        return ProgramOutcome(False, stage == "run", *words)
    if returned < 0:
        return ProgramOutcome(False, True, "Killed", f"killed by {signal.Signals(-returned).name}")
    return ProgramOutcome(False, True, "SystemExit", "it ended before its tests did")
