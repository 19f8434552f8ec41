"""Where a command's answers go: results to standard output, all else to standard error, and the exit code."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from raysearch.core.paths import options_for
from raysearch.errors import EvaluationError, UserError, redact

if TYPE_CHECKING:  # heavy for a command that only prints its help
    from rich.console import Console

    from raysearch.study.result import StudyResults

_WIDTH_OF_FILES = 200  # characters; tables that go to a file or a program are not cut to a terminal's 80
_LONG_WORD = re.compile(r"(\S{200})\S{200,}(\S{100})")  # keeps its ends, where mistakes are found


class Report:
    """Where a command's answers go: tables for people, or one JSON value."""

    def __init__(self, as_json: bool, out: Console, err: Console) -> None:
        self.as_json, self.out, self.err = as_json, out, err
        self.when_stopped = "stopped"

    def answer(self, value: Any, *readable: Any) -> None:
        """Prints the one answer of a command."""
        if self.as_json:
            self.out.file.write(json.dumps(value) + "\n")
        else:
            for part in readable:
                self.out.print(part, highlight=False, soft_wrap=isinstance(part, str))

    def search(self, spec: Any, resumes: str | None = None) -> None:
        """Runs a search to its closing table."""
        from raysearch.cli import search_display as display
        from raysearch.cli import tables
        from raysearch.search.run import run_search

        self.when_stopped = "stopped; the same command again goes on from here"
        in_ledger = options_for(spec.tracking.folder, spec.evaluation.ledger)
        in_store = options_for(spec.tracking.folder) if spec.tracking.is_embedded else None
        with display.SearchDisplay(self.err) as live:
            try:
                result = run_search(spec, live, resumes)
            except KeyboardInterrupt:
                if live.search_id:
                    self.when_stopped += f", and so does: raysearch resume {live.search_id}{in_ledger}"
                raise
        value = result.as_json()
        found = [tables.result_table(result)]
        if len(value["path"]) > 2 or len(spec.sizes) > 1:
            found.append(tables.path_table(result.measure, value["path"]))
        self.answer(value, *found, *tables.result_notes(result, in_ledger, in_store))

    def assess(self, assess: Callable[..., Any]) -> None:
        """Assesses what a search found, to the closing table."""
        from raysearch.cli import search_display as display
        from raysearch.cli.assessment_tables import assessment_tables

        self.when_stopped = "stopped; the same command again goes on from here"
        with display.SearchDisplay(self.err) as live:
            done = assess(on_progress=live.line, warn=live.warn)
        self.answer(done.as_json(), *assessment_tables(done))

    def study(self, spec: Any, out: Path | None) -> None:
        """Runs a study to its report; fails if one of its searches did."""
        from raysearch import api
        from raysearch.cli.study_display import StudyDisplay
        from raysearch.study.run import run_study

        self.when_stopped = "stopped; the same command again goes on from here"
        with StudyDisplay(self.err) as live:
            record = run_study(spec, live)
        self.written(
            *api.report(record.study_id, store=spec.tracking.folder, ledger=spec.ledger, out=out, warn=self.warn)
        )

    def plan(self, spec: Any) -> None:
        """Says what a study would cost."""
        from dataclasses import replace

        from raysearch.cli.study_display import plan_line, plan_table
        from raysearch.study.plan import plan_study, time_study

        plan = plan_study(spec)
        plan = replace(plan, seconds=time_study(spec, plan))
        self.answer(plan.as_json(), plan_table(plan), plan_line(plan))

    def written(self, results: StudyResults, files: Sequence[Path]) -> None:
        """Says what a study found and where its report is; fails if a search did."""
        from raysearch.cli.study_display import study_lines, study_table

        self.answer({**results.as_json(), "report": str(files[0])}, study_table(results), *study_lines(results, files))
        failed = [cell for cell in results.cells if cell.state == "failed"]
        if failed:
            raise EvaluationError(
                f"{len(failed)} of {len(results.cells)} searches, the first with: {failed[0].failure}; "
                "the same command tries them again"
            )

    def warn(self, message: str) -> None:
        """Tells of something that went wrong and stops nothing."""
        say(self.err, "[yellow]warning:[/]", message)

    def assess_study(self, assess: Callable[..., Any]) -> None:
        """Assesses what a study's searches found, to its report."""
        from raysearch.cli import search_display as display

        self.when_stopped = "stopped; the same command again goes on from here"
        with display.SearchDisplay(self.err) as live:
            results, files = assess(on_progress=live.line, warn=live.warn)
        self.written(results, files)

    def forecast(self, spec: Any) -> None:
        """Says what a search would cost."""
        from raysearch.cli import search_display as display
        from raysearch.search.run import forecast_search

        expected = forecast_search(spec)
        totals = None if expected is None else [vars(cost) for cost in expected]
        self.answer({"rounds": totals}, display.forecast_line(expected))


@contextmanager
def reporting(as_json: bool) -> Iterator[Report]:
    """Gives a command its outputs, and ends it with one sentence and the right exit code if it fails."""
    from rich.console import Console

    err = stderr()
    with _clean_stdout() if as_json else nullcontext(sys.stdout) as results:
        width = None if results.isatty() else _WIDTH_OF_FILES
        report = Report(as_json, Console(file=results, markup=False, emoji=False, width=width), err)
        try:
            with _undisguised():
                yield report
                results.flush()
        except BrokenPipeError as error:
            _forget(results)
            raise typer.Exit(1) from error  # as Rich does
        except UserError as error:
            say(err, "[red]error:[/]", error)
            raise typer.Exit(2) from error
        except EvaluationError as error:
            say(err, "[red]failed:[/]", error)
            raise typer.Exit(1) from error
        except OSError as error:  # of the machine's making: a full disk, a name too long, a link that leads nowhere
            if error.filename is None and error.errno != errno.ENOSPC:
                raise  # a library's own, such as of a connection
            if error.filename is None:
                _forget(results)
            what = error.filename or "a file or standard output"
            say(err, "[red]error:[/]", f"{what} cannot be used ({error.strerror}); make room, or name another")
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            say(err, "", report.when_stopped)
            raise typer.Exit(130) from error


@contextmanager
def _undisguised() -> Iterator[None]:
    """Lets a Ctrl-C be one, whatever a library has made of it that it struck."""
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
    """Standard output for the JSON alone: what a library prints meanwhile goes to standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as results:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            yield results
        finally:
            sys.stdout.flush()
            os.dup2(results.fileno(), sys.stdout.fileno())


def _forget(results: TextIO) -> None:
    """Lets what could not be written go, so that Python does not try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), results.fileno())


def prepare_streams() -> None:
    """Makes the three standard streams usable, whatever whoever started the program made of them.

    One that is closed would give its number to the next file opened, a ledger say, for all to print into. What a
    terminal's encoding lacks is written as an escape. Rich takes COLUMNS and LINES at their word, be they 0.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch("[1-9][0-9]{1,3}", os.environ.get(name, "")):
            os.environ.pop(name, None)


def stderr() -> Console:
    """Standard error, for all that is not a result; also while libraries are kept off it, as when a model loads."""
    from rich.console import Console

    return Console(file=sys.stderr, emoji=False)


def say(err: Console, opening: str, sentence: object) -> None:
    """One line on standard error, whatever a file name in it may hold: no line break, no command to the terminal."""
    from rich.markup import escape

    shown = "".join(mark if mark.isprintable() else _visible(mark) for mark in redact(str(sentence)))
    text = escape(_LONG_WORD.sub(r"\1…\2", shown))
    err.print(f"{opening} {text}".lstrip(), highlight=False, soft_wrap=True)


def _visible(mark: str) -> str:
    """What stands for a character that cannot be shown."""
    return " " if mark.isspace() else mark.encode("unicode_escape").decode()
