"""Generated programs pass or fail as they should, and cannot change the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raysearch.errors import UserError
from raysearch.generation import sandbox
from raysearch.generation.sandbox import Program, ProgramOutcome, run_programs
from tests.generation.attacks import CHEATS, ENDED_BY_TIME, ESCAPES, running
from tests.sentences import Sentences

TIMEOUT_S = 3


def outcome(code: str, tests: str = "") -> ProgramOutcome:
    (program_outcome,) = run_programs([Program(code, tests, TIMEOUT_S)])
    return program_outcome


def test_what_passes() -> None:
    good = {
        "a value": ("x = 1", "assert x == 1"),
        "no tests": ("x = 1", ""),
        "numpy": ("import numpy as np", "assert np.allclose([1.0], [1.0])"),
        "a class": ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int", "assert A(1) == A(1)"),
        "named tuples": ("from collections import namedtuple as n\nA = n('A', 'x')", "assert A(1).x == 1"),
        "asyncio": ("import asyncio\nasync def f(): return 1", "assert asyncio.run(f()) == 1"),
        "an exception": ("def f(): raise ValueError", "try: f()\nexcept ValueError: pass"),
        "output": ("print('x' * 1000000)", ""),
        "beyond ASCII": ("x = 'ü𝄞'", "assert len(x) == 2"),
        "input's end": ("try: input()\nexcept EOFError: x = 1", "assert x == 1"),
        "a guard": ("if __name__ == '__main__': raise ValueError", ""),
    }
    programs = [Program(code, tests, TIMEOUT_S) for code, tests in good.values()]
    outcomes = zip(good, run_programs(programs), strict=True)
    failures = [f"{name}: {result}" for name, result in outcomes if not result.passed]
    assert not failures, "\n".join(failures)


def test_failures_say_why() -> None:
    assert outcome("x = 1", "assert x == 2") == ProgramOutcome(False, True, "AssertionError", "")
    assert outcome("x = y") == ProgramOutcome(False, True, "NameError", "name 'y' is not defined")
    assert outcome("def f(x:\n  pass").parses is False
    assert "was never closed" in outcome("x = (1").message
    assert outcome("import os; os._exit(0)") == ProgramOutcome(
        False, True, "SystemExit", "it ended before its tests did"
    )
    assert outcome("raise ValueError('x' * 10**6)").message == "x" * 1000
    assert outcome("raise ValueError('\\ud800')").message == "?"
    assert outcome("x = 1\0").parses is False


@pytest.mark.parametrize("namespaces", [True, False])
def test_nothing_passes_that_should_not_and_nothing_is_left(
    namespaces: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = sandbox._CHILD.read_text()
    child = tmp_path / f"sandbox_child_{os.getpid()}.py"  # a unique name, by which `running` finds its processes
    child.write_text(text if namespaces else text.replace("if libc.unshare(", "if True or libc.unshare("))
    monkeypatch.setattr(sandbox, "_CHILD", child)
    monkeypatch.setattr(sandbox, "_MEMORY", 2**28)  # less memory is filled in less time
    if not namespaces:  # the kernel refuses them
        assert not outcome("open('x', 'w')").passed
        assert outcome("open('/etc/passwd')").passed
    folder = tmp_path / "mine"
    folder.mkdir()
    (sentinel := folder / "file").write_text("mine")
    before = sentinel.stat()
    attacks = {
        name: code.replace("SENTINEL", str(sentinel)).replace("FOLDER", str(folder))
        for name, code in {**CHEATS, **ESCAPES}.items()
    }
    programs = [
        Program(code, "assert False", 1 if name in ENDED_BY_TIME else TIMEOUT_S) for name, code in attacks.items()
    ]
    outcomes = dict(zip(attacks, run_programs(programs), strict=True))
    assert not [name for name, program_outcome in outcomes.items() if program_outcome.passed]
    successful = [f"{name}: {outcomes[name]}" for name in ESCAPES if outcomes[name].error == "AssertionError"]
    allowed = {"system"}  # its refusal is its exit status
    assert not [line for line in successful if line.partition(":")[0] not in allowed], "\n".join(successful)
    after = sentinel.stat()
    assert (before.st_mtime_ns, before.st_mode, before.st_size) == (after.st_mtime_ns, after.st_mode, after.st_size)
    assert [file.name for file in folder.iterdir()] == ["file"]
    assert not Path("/dev/shm/raysearch-attack").exists()
    assert not running(child.name)


def test_a_scratch_folder_of_its_own() -> None:
    write = Program("open('x', 'w').write('1')", "assert open('x').read() == '1'", TIMEOUT_S)
    look = Program("import os", "assert os.listdir() == []", TIMEOUT_S)
    outcomes = run_programs([write, look, write], workers=1)
    assert [program_outcome.passed for program_outcome in outcomes] == [True, True, True]


def test_code_is_refused_where_the_kernel_has_no_filter_of_system_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    (child := tmp_path / "sandbox_child.py").write_text(
        sandbox._CHILD.read_text().replace("libc.prctl(22, 2, program, 0, 0)", "libc.prctl(22, 9, program, 0, 0)")
    )
    monkeypatch.setattr(sandbox, "_CHILD", child)
    with sentences.refused(UserError):
        outcome("x = 1")
