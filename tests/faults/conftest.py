"""What searches depend on, started for real so that it can be killed: MLflow servers and a PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

import raysearch
from raysearch.searching.result import in_brief
from tests.cli.conftest import World, cwd, run, world
from tests.conftest import made_once
from tests.evaluation.conftest import calibration, make_replica, model
from tests.faults.injection import BEAM
from tests.tracking.conftest import closed_port, get

__all__ = ["calibration", "cwd", "make_replica", "model", "run", "world"]  # of other folders


@dataclass
class Server:
    """An MLflow server as teams run it, on a port of its own.

    Args:
        backend: Where it keeps runs: a database's URI.
        folder: Where it keeps artifacts, and its log.
    """

    backend: str
    folder: Path
    port: int = field(default_factory=closed_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, unless it runs; again if it was killed."""
        if self.process is not None and self.process.poll() is None:
            return
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mlflow", "server", "--backend-store-uri", self.backend),
                    *("--artifacts-destination", (self.folder / "files").as_uri(), "--workers", "1"),
                    *("--host", "127.0.0.1", "--port", str(self.port)),
                ],
                env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert get(f"{self.url}/health", wait_s=60) == b"OK"

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to it and its workers."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)
            if number == signal.SIGKILL:
                self.process.wait(10)


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL of a test's own, which listens on this machine only.

    Args:
        programs: The folder of its programs.
        folder: Where it keeps everything.
        port: Where it listens.
    """

    programs: Path
    folder: Path
    port: int

    @property
    def uri(self) -> str:
        """The address of MLflow's database in it; PGPASSWORD has its password.

        Without the driver's name, SQLAlchemy looks for psycopg 3.
        """
        return f"postgresql+psycopg2://mlflow@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """Makes its files; the user is that of `uri`."""
        (self.folder / "password").write_text(PASSWORD)
        shutil.chown(self.folder, *(["postgres"] * 2 if os.geteuid() == 0 else [os.geteuid(), os.getegid()]))
        options = "--username mlflow --auth scram-sha-256 --encoding UTF8 --no-sync --no-instructions"
        self._do("initdb", *options.split(), "--pwfile", f"{self.folder}/password", "-D", f"{self.folder}/data")

    def start(self) -> None:
        """Starts it, again if it was killed."""
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self.folder} -c fsync=off"
        self._do("pg_ctl", "start", "-w", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log", "-o", options)

    def stop(self) -> None:
        if self._pid.is_file():
            self._do("pg_ctl", "stop", "-m", "immediate", "-D", f"{self.folder}/data")

    def kill(self) -> None:
        """Takes it down without warning, with the processes that it made for connections."""
        postmaster = psutil.Process(int(self._pid.read_text().split()[0]))
        postmaster.suspend()  # so that it makes no more of them
        processes = [*postmaster.children(), postmaster]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=10)

    @property
    def _pid(self) -> Path:
        return self.folder / "data/postmaster.pid"

    def _do(self, program: str, *arguments: str) -> None:
        """Runs one of its programs, which refuse to be root."""
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*as_user, str(self.programs / program), *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
        assert done.returncode == 0, f"{program} ended with {done.returncode}; see {self.folder}/log"


PASSWORD = "pg-s3cret-word"


@pytest.fixture
def command(world: World) -> list[str]:
    """A search of hundreds of rows."""
    return ["search", *world.search(**BEAM), "--json"]


@pytest.fixture(scope="session")
def searched(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store of the search of `command`, to which nothing happened, and what it found."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            result = raysearch.search(*world.search(**BEAM)).result
        (folder / "result.json").write_text(json.dumps(in_brief(result)))

    return made_once(tmp_path_factory, "searched", make)


@pytest.fixture
def undisturbed(searched: Path, cwd: Path) -> dict[str, Any]:
    """What `command` finds when nothing happens to it; all that it computed is in the store ``undisturbed``."""
    shutil.copytree(searched / "mlruns", cwd / "undisturbed")
    result: dict[str, Any] = json.loads((searched / "result.json").read_text())
    return result


@contextlib.contextmanager
def serving(backend: str, folder: Path) -> Iterator[Server]:
    """Makes an MLflow server, which is gone in the end."""
    server = Server(backend, folder)
    try:
        yield server
    finally:
        server.send(signal.SIGKILL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, store_with_tables: Path) -> Iterator[Server]:
    """An MLflow server on SQLite for all tests of a file, since each start takes seconds; it may run or not."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(store_with_tables, folder)
    with serving(f"sqlite:///{folder / store_with_tables.name}", folder) as running_server:
        yield running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL that runs; in CI it must be there."""
    initdb = shutil.which("initdb")
    programs = [Path(initdb).resolve()] if initdb else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        reason = "needs PostgreSQL; run: apt-get install postgresql"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="raysearch-postgres-"))  # pytest's own folders are closed to its user
    database = Postgres(programs[-1].parent, folder, closed_port())
    try:
        database.make()
        database.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGPASSWORD", PASSWORD)
            yield database
    finally:
        database.stop()
        shutil.rmtree(folder)
