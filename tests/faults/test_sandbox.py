"""Generated programs that never end, or whose driver is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raysearch.generation.sandbox import Program, run_programs
from tests.generation.attacks import ENDLESS, running
from tests.processes import wait_for

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]


def test_what_never_ends_is_ended() -> None:
    earlier_processes = running()
    programs = [Program(code, "assert False", timeout_s=1) for code in ENDLESS.values()]
    outcomes = dict(zip(ENDLESS, run_programs(programs), strict=True))
    assert not [f"{name}: {outcome}" for name, outcome in outcomes.items() if outcome.error != "TimeoutError"]
    assert not running() - earlier_processes


def test_a_killed_driver_leaves_no_program() -> None:
    earlier_processes = running()
    code = "from raysearch.generation.sandbox import *; list(run_programs([Program('while True: pass', '')]))"
    driver = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)})
    wait_for(lambda: running() - earlier_processes, 20)
    time.sleep(0.5)  # until it has said what it dies with
    driver.send_signal(signal.SIGKILL)
    driver.wait(10)
    wait_for(lambda: not running() - earlier_processes, 10)
