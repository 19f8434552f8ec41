"""The output of a command: results on standard output, everything else on standard error, and the exit code."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

import typer
from typing_extensions import override

from raysearch.core.json import plain
from raysearch.errors import EvaluationError, UserError
from raysearch.text.escaping import visible
from raysearch.text.redaction import redact

if TYPE_CHECKING:  # slow to import for a command that only prints its help
    from rich.console import Console

#: The message after Ctrl-C if nothing is lost.
RESUMABLE = "stopped; the same command again resumes from here"
_FILE_WIDTH = 200  # characters; a table in a file or a pipe is not limited to a terminal's 80


class Output:
    """The output of a command: tables for people, or one JSON value.

    Attributes:
        when_stopped: The message after Ctrl-C.
    """

    def __init__(self, as_json: bool, out: Console, err: Console) -> None:
        self.as_json = as_json
        self.out = out
        self.err = err
        self.when_stopped = "stopped"

    def answer(self, value: Any, *readable: Any) -> None:
        """Print the answer of a command, once.

        Args:
            value: An object or a list of objects, printed as JSON if the user requests JSON.
            *readable: The tables and lines printed otherwise.
        """
        if self.as_json:
            plain_value = [plain(item) for item in value] if isinstance(value, list) else plain(value)
            self.out.file.write(json.dumps(plain_value) + "\n")
        else:
            from raysearch.cli.fitting import FittingTable

            for part in readable:
                shown = part.fitted(self.out.width) if isinstance(part, FittingTable) else part
                self.out.print(shown, highlight=False, soft_wrap=isinstance(part, str), crop=False)


class LastingStream(io.TextIOWrapper):
    """A text stream that ignores errors of writing, such as a full disk or a lost terminal."""

    @override
    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    @override
    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            return


@contextmanager
def output(as_json: bool) -> Iterator[Output]:
    """Yield the output of a command. If the command fails, end it with one sentence and the right exit code."""
    from raysearch.cli.console import SafeConsole

    err = stderr()
    with _clean_stdout() if as_json else nullcontext(sys.stdout) as results:
        width = None if results.isatty() else _FILE_WIDTH
        out = Output(as_json, SafeConsole(file=results, markup=False, emoji=False, width=width), err)
        try:
            with _unwrapped_interrupts():
                yield out
                results.flush()
        except BrokenPipeError as error:
            _forget(results)
            raise typer.Exit(1) from error  # as Rich does
        except UserError as error:
            for sentence in error.sentences:
                say(err, "[red]error:[/]", sentence)
            raise typer.Exit(2) from error
        except EvaluationError as error:
            say(err, "[red]failed:[/]", error)
            raise typer.Exit(1) from error
        except OSError as error:  # of the machine: a full disk, a name that is too long, a broken link
            if error.filename is None and error.errno != errno.ENOSPC:
                raise  # raised by a library, such as for a connection
            say_unusable(error, results)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            say(err, "", out.when_stopped)
            raise typer.Exit(130) from error


@contextmanager
def _unwrapped_interrupts() -> Iterator[None]:
    """Raise a Ctrl-C as `KeyboardInterrupt`, even if a library wrapped it in another error."""
    try:
        yield
    except Exception as error:
        causes: list[BaseException] = [error]
        for cause in causes:
            if isinstance(cause, KeyboardInterrupt):
                raise cause from error
            for next_cause in (cause.__cause__, cause.__context__):
                if next_cause is not None and next_cause not in causes:
                    causes.append(next_cause)
        raise


@contextmanager
def _clean_stdout() -> Iterator[TextIO]:
    """Reserve standard output for the JSON; libraries print to standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as results:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            yield results
        finally:
            sys.stdout.flush()
            os.dup2(results.fileno(), sys.stdout.fileno())


def say_unusable(error: OSError, results: TextIO) -> None:
    """Print which file cannot be used. An error without a file name is assumed to be one of standard output.

    Args:
        error: The error.
        results: The stream of results, which is closed in that case.
    """
    if error.filename is None:
        _forget(results)
    name = error.filename or "a file or standard output"
    say(stderr(), "[red]error:[/]", f"{name} cannot be used ({error.strerror}); make room, or name another")


def _forget(results: TextIO) -> None:
    """Drop output that could not be written, so that Python does not try again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), results.fileno())


def prepare_streams() -> None:
    """Make the three standard streams usable, whatever state the parent process left them in.

    The next opened file, such as a ledger, would get the number of a closed stream, and prints would go into it.
    Characters that the terminal's encoding lacks are escaped.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # uses the lowest free number: this one
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
    if type(sys.stderr) is io.TextIOWrapper and sys.stderr is sys.__stderr__:
        encoding = sys.stderr.encoding
        sys.stderr = sys.__stderr__ = LastingStream(sys.stderr.detach(), encoding, line_buffering=True)  # type: ignore[misc]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def stderr() -> Console:
    """Return a console on standard error, for everything that is not a result."""
    from raysearch.cli.console import SafeConsole

    return SafeConsole(file=sys.stderr, emoji=False)


def say(err: Console, opening: str, sentence: object) -> None:
    """Print one line on standard error.

    Args:
        err: The console of standard error.
        opening: The beginning, in Rich's markup.
        sentence: The text; line breaks, terminal commands and secrets in it are made harmless.
    """
    from rich.markup import escape

    shown = visible(" ".join(redact(str(sentence)).splitlines()))
    err.print(f"{opening} {escape(shown)}".lstrip(), highlight=False, soft_wrap=True)
