"""The output of a command: results to standard output, all else to standard error, and the exit code."""

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

from raysearch.core.escaping import visible
from raysearch.core.json import plain
from raysearch.errors import EvaluationError, UserError, redact

if TYPE_CHECKING:  # heavy for a command that only prints its help
    from rich.console import Console

#: What is said after Ctrl-C where nothing is lost.
GOES_ON = "stopped; the same command again goes on from here"
_WIDTH_OF_FILES = 200  # characters; tables that go to a file or a program are not cut to a terminal's 80


class Output:
    """The output of a command: tables for people, or one JSON value.

    Attributes:
        when_stopped: What is said after Ctrl-C.
    """

    def __init__(self, as_json: bool, out: Console, err: Console) -> None:
        self.as_json, self.out, self.err = as_json, out, err
        self.when_stopped = "stopped"

    def answer(self, value: Any, *readable: Any) -> None:
        """Print the one answer of a command: an object or a list of them as JSON, or what people read."""
        if self.as_json:
            shown = [plain(one) for one in value] if isinstance(value, list) else plain(value)
            self.out.file.write(json.dumps(shown) + "\n")
        else:
            from raysearch.cli.fitting import FittingTable

            for part in readable:
                shown = part.fitted(self.out.width) if isinstance(part, FittingTable) else part
                self.out.print(shown, highlight=False, soft_wrap=isinstance(part, str), crop=False)


class LastingStream(io.TextIOWrapper):
    """A stream of text whose errors are no errors of the program: its disk may be full, its terminal gone."""

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
    """Give a command its output; if it fails, end it with one sentence and the right exit code."""
    from raysearch.cli.console import SafeConsole

    err = stderr()
    with _clean_stdout() if as_json else nullcontext(sys.stdout) as results:
        width = None if results.isatty() else _WIDTH_OF_FILES
        out = Output(as_json, SafeConsole(file=results, markup=False, emoji=False, width=width), err)
        try:
            with _undisguised():
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
        except OSError as error:  # of the machine's making: a full disk, a name too long, a link that leads nowhere
            if error.filename is None and error.errno != errno.ENOSPC:
                raise  # a library's own, such as of a connection
            say_unusable(error, results)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            say(err, "", out.when_stopped)
            raise typer.Exit(130) from error


@contextmanager
def _undisguised() -> Iterator[None]:
    """Raise a Ctrl-C as `KeyboardInterrupt`, also where a library wrapped it in an error of its own."""
    try:
        yield
    except Exception as error:
        causes: list[BaseException] = [error]
        for cause in causes:
            if isinstance(cause, KeyboardInterrupt):
                raise cause from error
            causes += [each for each in (cause.__cause__, cause.__context__) if each is not None and each not in causes]
        raise


@contextmanager
def _clean_stdout() -> Iterator[TextIO]:
    """Reserve standard output for the JSON: the prints of libraries go to standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as results:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            yield results
        finally:
            sys.stdout.flush()
            os.dup2(results.fileno(), sys.stdout.fileno())


def say_unusable(error: OSError, results: TextIO) -> None:
    """Print which file the machine refuses; an error without a name is taken for one of the results' stream."""
    if error.filename is None:
        _forget(results)
    what = error.filename or "a file or standard output"
    say(stderr(), "[red]error:[/]", f"{what} cannot be used ({error.strerror}); make room, or name another")


def _forget(results: TextIO) -> None:
    """Drop output that could not be written, so that Python does not try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), results.fileno())


def prepare_streams() -> None:
    """Make the three standard streams usable, whatever state the parent process left them in.

    A closed stream would give its number to the next opened file, such as a ledger, and prints would go there.
    Characters that the terminal's encoding lacks are escaped.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
    if type(sys.stderr) is io.TextIOWrapper and sys.stderr is sys.__stderr__:
        encoding = sys.stderr.encoding
        sys.stderr = sys.__stderr__ = LastingStream(sys.stderr.detach(), encoding, line_buffering=True)  # type: ignore[misc]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def stderr() -> Console:
    """Return standard error, for all that is not a result; also while libraries are silenced, as when a model loads."""
    from raysearch.cli.console import SafeConsole

    return SafeConsole(file=sys.stderr, emoji=False)


def say(err: Console, opening: str, sentence: object) -> None:
    """Print one line on standard error, without line breaks or terminal commands that a file name may contain."""
    from rich.markup import escape

    shown = visible(" ".join(redact(str(sentence)).splitlines()))
    err.print(f"{opening} {escape(shown)}".lstrip(), highlight=False, soft_wrap=True)
