"""Python processes that have imported the heavy libraries already, as forks of a server.

A Ray worker that starts as a new interpreter imports Ray twice, and torch and transformers: seconds of a core for each
of about a hundred workers. A worker of pytest imports for half a minute. A fork takes a hundredth of that. It has the
arguments, environment, folder and streams of the process that asked for it, and ends with it.

`python_by_fork` makes an executable file that stands for `sys.executable`. It runs the scripts of workers in a fork,
and replaces itself with the real interpreter for everything else.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: The script that a worker of pytest runs.
XDIST_WORKER = Path(__file__).with_name("xdist_worker.py")
#: Ray's script that starts a worker by `sys.executable`.
_SETUP_WORKER = "setup_worker.py"
#: The name of a server, and what it imports. Not Ray for the workers: a process in which Ray was imported before the
#: fork did not join a cluster when it was tried. Not MLflow, whose import may ask its makers' server.
_PRELOADED = {
    _SETUP_WORKER: ("ray",),
    "workers": (
        *("pandas", "raysearch.evaluation.replica", "transformers.models.llama.modeling_llama"),
        *("bitsandbytes", "datasets", "fastapi", "hydra", "jsonschema", "jupyter_client", "matplotlib.figure"),
        *("nbformat", "nevergrad", "optuna", "peft", "requests", "scipy.optimize", "scipy.stats", "sklearn.ensemble"),
        *("sqlalchemy", "transformers.trainer", "trl.trainer.sft_trainer"),
    ),
}
#: The scripts that forks of the second server run: Ray's, and one for pytest.
_WORKERS = ("default_worker.py", XDIST_WORKER.name)
#: Asks the server for a fork, and ends as that ends. It must start fast, so it imports almost nothing.
_CLIENT = """#!{python} -IS
import array, os, sys
address = {folder!r} + "/" + os.path.basename(sys.argv[1])
if not os.path.exists(address):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
import _socket as socket
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.connect(address)
words = b"\\0".join(map(os.fsencode, [__file__, os.getcwd(), *sys.argv[1:]]))
settings = b"\\0".join(name + b"=" + value for name, value in os.environb.items())
sizes = len(words).to_bytes(4, "big") + len(settings).to_bytes(4, "big")
streams = socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2])
server.sendmsg([sizes], [streams])
server.sendall(words + settings)
os._exit((server.recv(1) or b"\\1")[0])  # 1 if the server has ended
"""


@dataclass(frozen=True)
class _Request:
    """What a fork runs, and where.

    Args:
        executable: The file that asked for it, which stands for the interpreter.
        folder: The working directory.
        words: The path of a script, and its arguments.
        settings: All environment variables.
        streams: The file descriptors of standard input, output and error.
    """

    executable: str
    folder: str
    arguments: list[str]
    settings: dict[str, str]
    streams: list[int]


class _Fork(Exception):
    """Ends the server's loop in a fork, which then has no frame of the server below its script."""

    def __init__(self, request: _Request) -> None:
        super().__init__(request)
        self.request = request


@dataclass
class _Server:
    """Forks this process for each request. A fork whose client has died is killed."""

    listening: socket.socket
    clients: dict[int, socket.socket] = field(default_factory=dict)  #: by the process id of their fork

    def serve(self) -> None:
        """Answer requests until standard input is closed, because the owner has ended."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the pipe gets a byte when a fork ends
        with selectors.DefaultSelector() as selector:
            for source in (sys.stdin, self.listening, reading):
                selector.register(source, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if sys.stdin in ready:
                    return
                for pid, client in self.clients.items():
                    if client in ready:  # it sends nothing more, so it has ended
                        selector.unregister(client)
                        os.kill(pid, signal.SIGKILL)
                if reading in ready:
                    os.read(reading, 4096)
                    for client in self._reap():
                        if client in selector.get_map():  # it has not ended before its fork
                            selector.unregister(client)
                        client.close()
                if self.listening in ready:
                    client, _ = self.listening.accept()
                    self._fork(client)
                    selector.register(client, selectors.EVENT_READ)

    def _fork(self, client: socket.socket) -> None:
        request = _received(client)
        pid = os.fork()
        if pid == 0:
            raise _Fork(request)
        for stream in request.streams:
            os.close(stream)
        self.clients[pid] = client

    def _reap(self) -> Iterator[socket.socket]:
        """Yield the clients of forks that have ended, after telling them how."""
        with contextlib.suppress(ChildProcessError):  # no fork is left
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                client = self.clients.pop(pid)
                with contextlib.suppress(OSError):  # it has died, too
                    client.send(bytes([os.waitstatus_to_exitcode(status) % 256]))
                yield client


def _received(client: socket.socket) -> _Request:
    sizes, streams, _, _ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as content:
        command = content.read(int.from_bytes(sizes[:4], "big"))
        settings = content.read(int.from_bytes(sizes[4:], "big"))
    executable, folder, *arguments = map(os.fsdecode, command.split(b"\0"))
    pairs = [os.fsdecode(setting).partition("=") for setting in settings.split(b"\0")]
    return _Request(executable, folder, arguments, {name: value for name, _, value in pairs}, streams)


def _become(request: _Request, server: _Server) -> None:
    """Make this fork look like a new interpreter that was started with the request's arguments."""
    os.setsid()  # Ray kills the process group of a worker that has died
    for client in server.clients.values():
        client.close()
    server.listening.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request.folder)
    for name in os.environ.keys() - request.settings.keys():
        del os.environ[name]
    os.environ.update(request.settings)
    sys.argv = request.arguments
    sys.path[0] = str(Path(request.arguments[0]).parent)


def _main(name: str, listening: socket.socket) -> None:
    with warnings.catch_warnings(action="ignore"):  # of libraries
        for module in _PRELOADED[name]:
            importlib.import_module(module)
    gc.freeze()  # else each fork would copy these objects when it first collects garbage
    os.write(sys.stdout.fileno(), b"ready\n")
    server = _Server(listening)
    try:
        server.serve()
        return
    except _Fork as fork:
        request = fork.request
    _become(request, server)
    if name == _SETUP_WORKER:
        sys.executable = request.executable
    runpy.run_path(request.arguments[0], run_name="__main__")


@contextlib.contextmanager
def python_by_fork() -> Iterator[Path]:
    """Start the servers, wait until they have imported everything, and stop them in the end.

    Yields:
        The path of an executable file that stands for the interpreter.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="forks"))
        servers = [stack.enter_context(_server(name, folder)) for name in _PRELOADED]
        for script in _WORKERS:
            (Path(folder) / script).symlink_to("workers")
        for server in servers:  # Ray ends if its workers do not start in 30 s
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
        executable = Path(folder) / "python"
        executable.write_text(_CLIENT.format(python=sys.executable, folder=folder), encoding="utf-8")
        executable.chmod(0o700)
        yield executable


@contextlib.contextmanager
def _server(name: str, folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, and stop it in the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(f"{folder}/{name}")
        listening.listen(64)
        with subprocess.Popen(
            [sys.executable, "-m", "tests.forks", name, str(listening.fileno())],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listening.fileno()],
            start_new_session=True,  # so that a Ctrl-C does not end it before Ray's workers
        ) as server:
            yield server
            server.communicate()  # closes its standard input, at which it ends


if __name__ == "__main__":
    _main(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
