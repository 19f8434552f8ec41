"""The fixtures of the tests of commands, and an empty ledger."""

from tests.cli.conftest import cwd, world
from tests.ledger.conftest import ledger

__all__ = ["cwd", "ledger", "world"]
