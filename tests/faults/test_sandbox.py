"""Generated programs that never end, and the sandbox on a machine without namespaces, or whose driver is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raysearch.generation.sandbox import Program, run_programs
from tests.generation.attacks import CHEATS, ENDLESS, ESCAPES, running
from tests.processes import wait_for

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]


def test_what_never_ends_is_ended() -> None:
    before = running()
    programs = [Program(code, "assert False", timeout_s=1) for code in ENDLESS.values()]
    outcomes = dict(zip(ENDLESS, run_programs(programs), strict=True))
    assert not [f"{name}: {one}" for name, one in outcomes.items() if one.error != "TimeoutError"]
    assert not running() - before


def test_without_namespaces_no_file_can_be_written(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-Ur", "true"]).returncode:
        pytest.skip("needs unshare, and a kernel that lets it make a user namespace to forbid them in")
    (sentinel := tmp_path / "mine").write_text("mine")
    code = f"""
import json, sys
from raysearch.generation.sandbox import Program, run_programs
from tests.generation.attacks import CHEATS, ESCAPES
attacks = [code.replace("SENTINEL", {str(sentinel)!r}) for code in (CHEATS | ESCAPES).values()]
programs = [Program("x = 1", "assert x == 1"), Program("open('x', 'w')", "")]
programs += [Program(code, "assert False", timeout_s=1) for code in attacks]
print(json.dumps([one.passed for one in run_programs(programs)]))
"""
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", forbid, sys.executable, code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["[true,"] + ["false,"] * (len(CHEATS) + len(ESCAPES)) + ["false]"], done.stderr
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("mine", "mine")]


def test_a_killed_driver_leaves_no_program() -> None:
    before = running()
    code = "from raysearch.generation.sandbox import *; list(run_programs([Program('while True: pass', '')]))"
    driver = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)})
    wait_for(lambda: running() - before, 20)
    time.sleep(0.5)  # until it has said what it dies with
    driver.send_signal(signal.SIGKILL)
    driver.wait(10)
    wait_for(lambda: not running() - before, 10)
