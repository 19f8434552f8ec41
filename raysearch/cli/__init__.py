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
from raysearch.cli import search, calibration, study, recovery, recorded_searches, ledger  # noqa: F401  # in the order of --help

# isort: on
from raysearch.cli.app import app
from raysearch.cli.log_file import open_log_file
from raysearch.cli.output import prepare_streams, say, stderr
from raysearch.errors import UserError

_UsageError: Any = typer.BadParameter.__base__  # a mistake in the arguments themselves; typer has no public name for it


def main() -> NoReturn:
    """Run the console script; exit codes: 0 done, 1 failed, 2 user error, 130 stopped."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # works where SIGINT is ignored, as under nohup
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # sent when the terminal is lost; nohup ignores it
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    # Most objects belong to imported modules and stay. Collecting garbage among them takes a second, mostly at exit.
    gc.set_threshold(10_000, 10, 10)
    atexit.register(gc.freeze)
    try:
        prepare_streams()
        _quiet_libraries()
        _check_current_folder()
        open_log_file()
        sys.exit(app(prog_name="raysearch", standalone_mode=False))
    except _UsageError as error:
        if sys.argv[1:] and type(error).__name__ != "NoArgsIsHelpError":
            command = error.ctx.command_path if error.ctx else "raysearch"
            say(stderr(), "[red]error:[/]", f"{_message_of(error)}; see {command} --help")
        else:
            error.show()  # the help
        sys.exit(2)
    except UserError as error:  # before the command started
        say(stderr(), "[red]error:[/]", error)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):  # before the command started
        sys.exit(130)


def _check_current_folder() -> None:
    """End the command if the current folder is gone; torch would fail with an obscure error."""
    try:
        os.getcwd()
    except OSError:
        say(stderr(), "[red]error:[/]", "the current folder is gone; cd into one that exists")
        sys.exit(2)


def _message_of(error: Any) -> str:
    """Return the message of a usage error, for the middle of a sentence."""
    message = str(error.format_message()).rstrip(".")
    option = error.option_name if type(error).__name__ == "NoSuchOption" else ""
    if option and error.ctx and {"overrides", "budget"} & {parameter.name for parameter in error.ctx.command.params}:
        similar_options = get_close_matches(option, error.possibilities or (), cutoff=0.7)
        if not similar_options:
            key = option.lstrip("-").replace("-", "_")
            message = f"No such option: {option}; keys of the configuration have no dashes, such as {key}=…"
    return message


def _quiet_libraries() -> None:
    """Silence the messages of libraries on the user's terminal, unless the user enabled them."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # it reports every retry
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it reports kernels that it cannot download
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports a home folder that it cannot write to
