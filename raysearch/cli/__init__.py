"""The command line. Heavy imports wait until a command needs them, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import typer

# isort: off
from raysearch.cli import search, calibration, study, record  # noqa: F401  # in the order of --help

# isort: on
from raysearch.cli.app import app
from raysearch.terminal import say, stderr

_UsageError: Any = typer.BadParameter.__base__  # a mistake in the words themselves; typer has no public name for it


def main() -> NoReturn:
    """The console script: 0 done, 1 failed, 2 a mistake of the user's, 130 stopped by the user."""
    _quiet_libraries()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also where SIGINT itself is ignored, as under nohup
    try:
        sys.exit(app(prog_name="raysearch", standalone_mode=False))
    except _UsageError as error:
        if sys.argv[1:]:
            command = error.ctx.command_path if error.ctx else "raysearch"
            say(stderr(), "[red]error:[/]", f"{error.format_message().rstrip('.')}; see {command} --help")
        else:
            error.show()  # the help
        sys.exit(2)


def _quiet_libraries() -> None:
    """Keeps the chatter of libraries off the user's terminal, unless the user asked for it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # it tells of every retry
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a searcher's small matrices lose by more, and replicas work
