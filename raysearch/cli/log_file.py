"""The log of a command: events that the terminal does not show, as lines of a file."""

from __future__ import annotations

import logging
import os

from typing_extensions import override

from raysearch.errors import UserError
from raysearch.text.redaction import redact
from raysearch.text.sentences import what_failed

VARIABLE = "RAYSEARCH_LOG"  #: the environment variable that names the file


class RedactingFormatter(logging.Formatter):
    """Formats records without secrets."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def open_log_file() -> None:
    """Append the records of all loggers of raysearch to the file that ``RAYSEARCH_LOG`` names, if it is set.

    Raises:
        UserError: The file cannot be written.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{VARIABLE}={path} cannot be written ({what_failed(error)}); name another file") from error
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("raysearch")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False  # a library that shows the records of the root logger would print them on the terminal
