"""Runs programs that a model wrote, which may be hostile, and reports whether they pass their tests."""

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
_MOST_BYTES = 8192  # of the report of a program's process
_MEMORY = 2**30  # bytes of address space
_SCRATCH = 2**24  # bytes of files in the scratch folder


@dataclass(frozen=True)
class Program:
    """Code that a model wrote, and the tests that run after it in the same namespace."""

    code: str
    tests: str  #: Python source that raises an exception if the code is wrong
    timeout_s: float = 30.0  #: seconds of processor time; the limit by the clock is three times that and 5 s


@dataclass(frozen=True)
class ProgramOutcome:
    """The result of a program."""

    passed: bool  #: whether it ran to the end of its tests
    parses: bool = True  #: whether its code is Python
    error: str | None = None  #: the name of the exception that ended it; None if it passed
    message: str = ""  #: the message of that exception


def run_programs(programs: Iterable[Program], workers: int | None = None) -> Iterator[ProgramOutcome]:
    """Run programs, and yield their outcomes in order.

    Each program runs in a separate process without network and without child processes, with limits of time, memory and
    files. It can write only to a scratch folder, which is deleted when the program ends.

    A program passes only if its tests run to their end. Like in all harnesses of these benchmarks, it shares the
    interpreter with its tests: a program that defines an object which equals everything passes a test of equality, and
    a program that searches the interpreter for the token of success can find it.

    Args:
        programs: The programs.
        workers: The number of programs that run at once; None for the number of processors.

    Yields:
        Whether a program passed; if not, its error.

    Raises:
        UserError: This machine cannot isolate a program.
    """
    if sys.platform != "linux":
        raise UserError(f"run_code=true needs Linux to isolate generated code, and this is {sys.platform}")
    workers = workers or n_cores()
    with (
        tempfile.TemporaryDirectory(prefix="raysearch-code-") as folder,
        ThreadPoolExecutor(workers, thread_name_prefix="sandbox") as pool,
    ):
        # Compiled once, because compiling takes as long as the start of Python.
        compiled = Path(folder) / f"{_CHILD.name}c"
        py_compile.compile(str(_CHILD), str(compiled), doraise=True)
        yield from pool.map(functools.partial(_run, compiled), programs)


def _run(child: Path, program: Program) -> ProgramOutcome:
    token = secrets.token_hex(16).encode()
    code = program.code.encode(errors="replace")
    tests = program.tests.encode(errors="replace")
    paths = sysconfig.get_paths()
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="raysearch-code-", ignore_cleanup_errors=True))
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        numbers = (writing, len(code), len(tests), math.ceil(program.timeout_s), _MEMORY, _SCRATCH, os.getpid())
        library_folders = dict.fromkeys((paths["purelib"], paths["platlib"]))
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(child), *map(str, numbers), *library_folders],
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
            with contextlib.suppress(ProcessLookupError):  # no other process can be in its group
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.set_blocking(reading, False)
        try:
            report = os.read(reading, _MOST_BYTES)
        except BlockingIOError:
            report = b""
    return _outcome(report, token, process.returncode, time.monotonic() - started >= program.timeout_s)


def _outcome(report: bytes, token: bytes, exit_code: int, late: bool) -> ProgramOutcome:
    """Return the outcome by the report of the process and its exit code. Only the token in the report is a pass."""
    program_began = report.startswith(b"\n")
    report = report.removeprefix(b"\n")
    if report == token:
        return ProgramOutcome(passed=True)
    if exit_code == -signal.SIGXCPU or (exit_code == -signal.SIGKILL and late):
        return ProgramOutcome(False, True, "TimeoutError", "timed out")
    stage, *fields = report.decode(errors="replace").split("\0", 2)
    if stage == "sandbox" and not program_began:
        raise UserError(f"run_code=true needs a kernel that can isolate generated code, and {fields[0]}")
    if stage in ("run", "parse") and len(fields) == 2:
        return ProgramOutcome(False, stage == "run", *fields)
    if exit_code < 0:
        return ProgramOutcome(False, True, "Killed", f"killed by {signal.Signals(-exit_code).name}")
    return ProgramOutcome(False, True, "SystemExit", "it ended before its tests did")
