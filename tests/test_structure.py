"""Rooms import from those before them, without circles; and documents link to what is there."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The code that exports contain. It runs there, and raysearch never imports it.
IN_EXPORTS = ROOT / "raysearch" / "checkpoints" / "decilm"
FILES = sorted(file for file in (ROOT / "raysearch").rglob("*.py") if file.parent != IN_EXPORTS)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/*.md")])
#: The rooms, from the ground up: a room imports from those before it.
ROOMS = (
    *(
        "text",
        "errors",
        "core",
        "stats",
        "figures",
        "searchers",
        "generation",
        "calibration",
        "checkpoints",
        "models",
        "ledger",
        "evaluation",
        "cluster",
        "searching",
        "bridges",
    ),
    *("assessment", "recovery", "studies", "reporting", "tracking", "configuration", "api", "cli", "testing"),
)

#: Where a library at the edge may be imported; everywhere else is a mistake.
EDGES = {
    "ray": ("cluster/", "studies/trials.py", "bridges/", "recovery/workers.py"),
    "mlflow": ("tracking/mlflow/",),
    "hydra": ("configuration/merge.py", "configuration/overrides.py", "configuration/parsing.py"),
    "omegaconf": ("configuration/merge.py",),
    "typer": ("cli/",),
    "nevergrad": ("bridges/nevergrad.py",),
    "math_verify": ("generation/scoring.py",),
    "rouge_score": ("generation/scoring.py",),
    "nltk": ("generation/diagnostics.py",),
    "peft": ("models/adapter.py", "recovery/"),
    "trl": ("recovery/trainer.py",),
    "bitsandbytes": ("recovery/trainer.py",),
    "liger_kernel": ("models/fused_head.py",),
    "lm_eval": ("assessment/harness.py", "assessment/task_files.py"),
    "aiohttp": ("assessment/serving/client.py",),
    "sqlite3": ("ledger/",),
    "matplotlib": ("figures/",),
    "statsmodels": ("reporting/analysis/",),
    "gguf": ("checkpoints/", "models/"),
    "PIL": ("calibration/images.py",),
    "datasets": ("assessment/subjects.py", "calibration/rows.py", "recovery/trainer.py"),
}

#: The modules of MLflow whose names do not change without notice.
PUBLIC_MLFLOW = ("mlflow.MlflowClient", "mlflow.entities", "mlflow.exceptions")

#: The rooms that a room imports from, if these are fewer than those before it.
NEEDED = {"checkpoints": {"text", "errors", "core", "checkpoints"}}

#: What is pure: it must run, and be tested, without any of these.
PURE = ("text/", "errors.py", "core/", "searchers/", "evaluation/prefix.py")
#: What imports no torch; it may use transformers without torch.
WITHOUT_TORCH = ("checkpoints/",)
HEAVY = {"torch", "ray", "mlflow", "transformers"}


def place(file: Path) -> str:
    """A file's place in the package: ``searchers/beam.py``."""
    return file.relative_to(ROOT / "raysearch").as_posix()


@functools.cache
def imports(file: Path) -> tuple[str, ...]:
    """Every module that a file imports anywhere, also inside functions and for types alone."""
    return (*_imports(file),)


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(file)}:{node.lineno} imports relatively; write the whole name"
            assert node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def name_of(file: Path) -> str:
    """A file's module: ``raysearch.searchers.beam``."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imported_files() -> dict[str, set[str]]:
    """Return, by module, the modules of the package that it imports."""
    module_names = {name_of(file) for file in FILES}

    def nearest(name: str) -> str:
        while name not in module_names:
            name = name.rpartition(".")[0]
        return name

    imported_by = {}
    for file in FILES:
        nearest_modules = {nearest(module) for module in imports(file) if module.partition(".")[0] == "raysearch"}
        imported_by[name_of(file)] = nearest_modules - {name_of(file), "raysearch"}
    return imported_by


def room(module: str) -> str:
    """The room of a module: ``searchers`` of ``raysearch.searchers.beam``."""
    return module.split(".")[1]


def slug(heading: str) -> str:
    """The anchor that a Markdown heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_imports_point_down() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in imported_files().items()
        for other in others
        if module not in ("raysearch", "raysearch.__main__") and ROOMS.index(room(other)) > ROOMS.index(room(module))
    ]
    assert not wrong, "\n".join(["a room imports from those before it in ROOMS:", *wrong])


def test_a_room_knows_only_the_rooms_that_it_needs() -> None:
    wrong = [
        f"{module} imports {other}"
        for name, needed_rooms in NEEDED.items()
        for module, others in imported_files().items()
        for other in others
        if module.startswith(f"raysearch.{name}.") and room(other) not in needed_rooms
    ]
    assert not wrong, "\n".join(["see NEEDED:", *wrong])


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = imported_files()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' <- '.join(error.args[1])}") from None


def test_nothing_is_loose_at_the_root() -> None:
    loose = {file.name for file in (ROOT / "raysearch").glob("*.py")}
    assert loose <= {"__init__.py", "__main__.py", "errors.py"}


def test_edges_are_each_in_one_place() -> None:
    wrong = [
        f"{place(file)} imports {module}"
        for file in FILES
        for module in imports(file)
        if (allowed := EDGES.get(module.partition(".")[0])) and not place(file).startswith(allowed)
    ]
    assert not wrong, "\n".join(["see EDGES:", *wrong])


def test_only_public_modules_of_mlflow_are_imported() -> None:
    wrong = [
        f"{place(file)} imports {module}"
        for file in FILES
        for module in imports(file)
        if module.startswith("mlflow.") and not any(module.startswith(public) for public in PUBLIC_MLFLOW)
    ]
    assert not wrong, "\n".join(["see PUBLIC_MLFLOW:", *wrong])


def test_searchers_and_masks_are_pure() -> None:
    pure = [file for file in FILES if place(file).startswith(PURE)]
    wrong = [place(file) for file in pure if HEAVY & {module.partition(".")[0] for module in imports(file)}]
    assert not wrong, f"these import one of {HEAVY}: {wrong}"


def test_checkpoints_are_cut_without_torch() -> None:
    wrong = [
        f"{place(file)} imports {module}"
        for file in FILES
        for module in imports(file)
        if place(file).startswith(WITHOUT_TORCH) and module.partition(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(["see WITHOUT_TORCH:", *wrong])


def test_links_lead_somewhere() -> None:
    wrong = []
    for document in DOCUMENTS:
        text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(<?([^)>\s]+)>?(?:\s[^)]*)?\)", text):
            if re.match(r"[a-z]+:", target):  # http:, https:, mailto:
                continue
            path, _, anchor = target.partition("#")
            linked = (document.parent / path).resolve() if path else document
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), flags=re.MULTILINE) if anchor else []
            if not linked.exists() or (anchor and linked.suffix == ".md" and anchor not in map(slug, headings)):
                wrong.append(f"{document.relative_to(ROOT)} links to {target}")
    assert not wrong, "\n".join(wrong)
