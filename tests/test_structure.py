"""What may import what, how long a file may be, and that documents link to what is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "raysearch").rglob("*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/*.md")])
MOST_LINES = 350

#: A module imports from the floors below its own; what shares a floor knows nothing of each other.
FLOORS = (
    {"redaction"},
    {"errors", "locks", "wording", "live"},
    {"paths"},
    {"mask", "measure", "estimate", "statistic", "config", "construct"},
    {"problem", "overrides"},
    {"prefix", "searchers", "calibration"},
    {"models"},
    {"evaluation"},
    {"tracking", "assessment", "reporting"},
    {"studies", "bridges"},
    {"build", "display", "study_display", "tables"},
    {"api"},
    {"terminal"},
    {"cli", "testing"},
)

#: Where a library at the edge may be imported; everywhere else is a mistake.
EDGES = {
    "ray": ("evaluation/ray_", "evaluation/fleet.py", "evaluation/cluster.py", "studies/tuning.py", "bridges/"),
    "mlflow": ("tracking/",),
    "hydra": ("config.py",),
    "omegaconf": ("config.py",),
    "typer": ("cli/", "terminal.py"),
    "nevergrad": ("bridges/nevergrad.py",),
    "lm_eval": ("assessment/harness.py", "assessment/task_files.py"),
}

#: What is pure: it must run, and be tested, without any of these.
PURE = ("errors.py", "redaction.py", "mask.py", "statistic.py", "problem.py", "prefix.py", "searchers/")
HEAVY = {"torch", "ray", "mlflow", "transformers"}


def place(file: Path) -> str:
    """A file's place in the package: ``searchers/beam.py``."""
    return file.relative_to(ROOT / "raysearch").as_posix()


def imports(file: Path) -> Iterator[str]:
    """Every module that a file imports anywhere, also inside functions and for types alone."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(file)}:{node.lineno} imports relatively; write the whole name"
            assert node.module
            if node.module == "raysearch":
                yield from (f"raysearch.{name.name}" for name in node.names)
            else:
                yield node.module


def floor(name: str) -> int:
    """The floor of a module or package of ours."""
    found = [number for number, names in enumerate(FLOORS) if name in names]
    assert found, f"raysearch/{name} stands on no floor; give it one in FLOORS"
    return found[0]


def slug(heading: str) -> str:
    """The anchor that a Markdown heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("file", FILES, ids=place)
def test_imports_point_down(file: Path) -> None:
    own = place(file).split("/")[0].removesuffix(".py")
    for module in imports(file):
        package, _, rest = module.partition(".")
        other = rest.split(".")[0]
        if (
            package == "raysearch" and other not in ("", own) and own != "__init__"
        ):  # the front door opens on all floors
            assert floor(other) < floor(own), f"{place(file)} imports {module}, which is not below it"


@pytest.mark.parametrize("file", FILES, ids=place)
def test_edges_are_each_in_one_place(file: Path) -> None:
    for module in imports(file):
        allowed = EDGES.get(module.split(".")[0])
        assert allowed is None or place(file).startswith(allowed), f"{place(file)} imports {module}; see EDGES"


@pytest.mark.parametrize("file", [file for file in FILES if place(file).startswith(PURE)], ids=place)
def test_searchers_and_masks_are_pure(file: Path) -> None:
    assert not HEAVY & {module.split(".")[0] for module in imports(file)}


@pytest.mark.parametrize("file", FILES, ids=place)
def test_files_are_short(file: Path) -> None:
    lines = len(file.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES, f"{place(file)} has {lines} lines; split it by concept"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(<?([^)>\s]+)>?(?:\s[^)]*)?\)", text):
        if re.match(r"[a-z]+:", target):  # http:, https:, mailto:
            continue
        path, _, anchor = target.partition("#")
        linked = (document.parent / path).resolve() if path else document
        assert linked.exists(), f"{document.name} links to {target}, which is not there"
        if anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in map(slug, headings), f"{document.name} links to {target}, a heading that is not there"
