"""The files that CONTRIBUTING.md shows work when they are typed off."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.documents

ROOT = Path(__file__).resolve().parents[1]
_FILE = re.compile(r"`((?:raysearch|conf|tests)/[\w/]+\.(?:py|yaml))`")


def shown() -> dict[str, str]:
    """Return the whole files that CONTRIBUTING.md shows, each by the last new path before it."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    contents = {}
    parts = re.split(r"^```(?:python|yaml)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    for before, content in zip(parts[::2], parts[1::2], strict=False):
        *_, name = (path for path in _FILE.findall(before) if not (ROOT / path).exists())
        contents[name] = content
    return contents


@pytest.mark.slow
def test_what_it_shows_works_when_it_is_typed_off(tmp_path: Path) -> None:
    for part in ("raysearch", "conf", "tests"):
        # What is compiled already comes along; other processes may be writing more of it.
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    files = shown()
    assert {"swap", "entropy", "subtitles", "duration"} <= {Path(name).stem for name in files}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "conf/objective/entropy.yaml").write_text(
        "# raysearch search objective=entropy\n# How unsure the pruned model is.\ntype: entropy\n"
    )

    suites = ["tests/searchers/test_golden.py", "tests/searchers/test_searchers.py"]
    suites += [
        "tests/calibration/objectives/test_objectives.py",
        *(name for name in files if name.startswith("tests/")),
    ]
    tests = ["-v", "-n0", "--rewrite-sentences", "-k", "swap or entropy or subtitles or duration", *suites]
    # One process for the record and the tests: each would import the same for seconds.
    script = f"""
import runpy, sys
import pytest
sys.argv = ["{suites[0]}", "swap"]
runpy.run_path(sys.argv[0], run_name="__main__")
sys.exit(pytest.main({tests}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for case in ("[swap]", "[entropy]", "test_reads_the_lines_of_a_film", "test_the_slowest_searcher_comes_first"):
        assert f"{case} PASSED" in done.stdout
    assert "test_names_the_row_and_the_key" in (tmp_path / "tests/calibration/sentences.yaml").read_text()
