"""What would fill the memory or wait forever is refused in one sentence, within seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raysearch.config.compose import compose
from raysearch.errors import UserError
from raysearch.searchers.genetic import GeneticSearcher


def test_a_file_of_values_that_multiply_and_one_that_is_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "searcher").mkdir()
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10))]
    (tmp_path / "searcher" / "bomb.yaml").write_text("\n".join(lines))
    os.mkfifo(tmp_path / "searcher" / "pipe.yaml")
    for name, cause in (("bomb", "stand for more than 100,000 values"), ("pipe", "it is no file")):
        with pytest.raises(UserError, match=rf"{name}.yaml cannot be read \(.*{cause}"):
            compose("search", [f"searcher={name}"], tmp_path)


def test_numbers_that_no_machine_holds_or_nobody_meant() -> None:
    with pytest.raises(UserError, match=r"population=1000000000000 is too many masks to draw; use at most 1000000"):
        GeneticSearcher(population=10**12)
    with pytest.raises(UserError, match=r"masks=\[\[1_0\]\] holds a number with _ in it"):
        compose("score", ["masks=[[1_0]]"])


def test_a_variable_that_libraries_cannot_read(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from raysearch.cli import main; main()", "show"]
    environment = {**os.environ, "HF_HUB_DOWNLOAD_TIMEOUT": "abc"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: HF_HUB_DOWNLOAD_TIMEOUT=abc is no whole number; correct the variable, or unset it\n"
