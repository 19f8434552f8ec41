"""Starts servers in processes of their own, waits until they answer, and surely ends them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from raysearch.errors import UserError

#: Ends a group of processes once its standard input is closed: also if this process is killed.
_GUARD = "import os, signal, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), signal.SIGKILL)"
_CAUSE = re.compile(r"\b\w*(?:Error|Exception): \S")
_END_S = 10.0


@dataclass(frozen=True)
class ServerProcess:
    """A server that raysearch has started, the leader of a group with all processes that it starts.

    Args:
        process: The server.
        url: Its address, up to ``/v1``.
        log: The file with all that it has written.
    """

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def cause(self) -> str:
        """The line of the log that is likeliest to say what is wrong."""
        return cause_of(self.log.read_text(errors="replace").splitlines())

    @property
    def members(self) -> list[psutil.Process]:
        """The processes of the group."""
        members = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                if os.getpgid(process.pid) == self.process.pid:
                    members.append(process)
        return members

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the server run in this context; outside it is stopped, so that it does not slow another server."""
        os.killpg(self.process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGSTOP)

    def reset_peak(self) -> bool:
        """Forget the peaks of memory until now, and return whether the system can."""
        try:
            for process in self.members:
                (_proc(process) / "clear_refs").write_text("5")
        except OSError:
            return False
        return True

    def peak_bytes(self) -> int | None:
        """Return the sum of the peaks of memory of all processes, in bytes; None if the system does not tell them."""
        try:
            texts = [(_proc(process) / "status").read_text() for process in self.members]
        except OSError:
            return None
        peaks = [re.search(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE) for text in texts]
        return sum(int(peak[1]) * 1024 for peak in peaks if peak) or None


def _proc(process: psutil.Process) -> Path:
    return Path("/proc") / str(process.pid)


@contextlib.contextmanager
def started(
    words: Sequence[str], port: int, log: Path, *, title: str, timeout_s: float, environment: Mapping[str, str]
) -> Iterator[ServerProcess]:
    """Start a server, and yield it when it answers. At the end it is ended, with all processes that it has started.

    Args:
        words: The program and its arguments.
        port: The port on which the server listens.
        log: The file for all that the server writes.
        title: The server in messages.
        timeout_s: The longest time to wait for an answer, in seconds.
        environment: Additional environment variables.

    Yields:
        The server.

    Raises:
        UserError: The program does not exist, or the server ends or does not answer.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(log.open("wb"))
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"serve.command={words[0]} cannot be started ({error}); name the program") from error
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert guard.stdin is not None
        stack.callback(guard.wait)
        stack.callback(guard.stdin.close)
        stack.callback(_end, process)
        server = ServerProcess(process, f"http://127.0.0.1:{port}/v1", log)
        _wait(server, f"http://127.0.0.1:{port}/health", title, timeout_s)
        yield server


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGCONT, signal.SIGTERM):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    with contextlib.suppress(ProcessLookupError):  # processes that the server has left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait(server: ServerProcess, address: str, title: str, timeout_s: float) -> None:
    """Wait until a server is ready."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise UserError(
                f"{title} has ended before it answered ({server.cause}); see serve.command and serve.arguments"
            )
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.1)
    raise UserError(
        f"{title} has not answered for {timeout_s:g} s ({server.cause}); allow more with "
        "serve.timeout_s=…, or see serve.command and serve.arguments"
    )


def cause_of(lines: Sequence[str]) -> str:
    """Return the first line of a log that names an error; the last line if none does."""
    words = [" ".join(line.split()) for line in lines if line.strip()]
    errors = [line for line in words if _CAUSE.search(line)]
    return (errors or words[-1:] or ["it has written nothing"])[0][:300]
