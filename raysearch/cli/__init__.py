"""The command line. Commands import heavy modules when they run, so that ``--help`` is fast."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
from difflib import get_close_matches
from typing import Any, NoReturn

import typer

# isort: off
from raysearch.cli import search, calibration, study, recovery, record, ledger  # noqa: F401  # in the order of --help

# isort: on
from raysearch.cli.app import app
from raysearch.cli.output import prepare_streams, say, stderr

_UsageError: Any = typer.BadParameter.__base__  # a mistake in the words themselves; typer has no public name for it


def main() -> NoReturn:
    """Run the console script; exit codes: 0 done, 1 failed, 2 user error, 130 stopped."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also where SIGINT itself is ignored, as under nohup
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # of a terminal that is lost; nohup ignores it
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    # Most objects are those of imports and stay: to look for garbage among them takes a second, most of it at the end.
    gc.set_threshold(10_000, 10, 10)
    atexit.register(gc.freeze)
    try:
        prepare_streams()
        _quiet_libraries()
        _stand_somewhere()
        sys.exit(app(prog_name="raysearch", standalone_mode=False))
    except _UsageError as error:
        if sys.argv[1:] and type(error).__name__ != "NoArgsIsHelpError":
            command = error.ctx.command_path if error.ctx else "raysearch"
            say(stderr(), "[red]error:[/]", f"{_said_of(error)}; see {command} --help")
        else:
            error.show()  # the help
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):  # before anything was begun
        sys.exit(130)


def _stand_somewhere() -> None:
    """End the command if the current folder is gone; torch would fail with an obscure error."""
    try:
        os.getcwd()
    except OSError:
        say(stderr(), "[red]error:[/]", "the current folder is gone; cd into one that is there")
        sys.exit(2)


def _said_of(error: Any) -> str:
    """Return the message of a usage error, for the middle of a sentence."""
    said = str(error.format_message()).rstrip(".")
    option = error.option_name if type(error).__name__ == "NoSuchOption" else ""
    if option and error.ctx and {"overrides", "budget"} & {one.name for one in error.ctx.command.params}:
        likely = get_close_matches(option, error.possibilities or (), cutoff=0.7)
        if not likely:
            key = option.lstrip("-").replace("-", "_")
            said = f"No such option: {option}; keys of the configuration are words without dashes, such as {key}=…"
    return said


def _quiet_libraries() -> None:
    """Silence the messages of libraries on the user's terminal, unless the user asked for them."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # it tells of every retry
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells of kernels that it cannot download
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of a home that it cannot write to
