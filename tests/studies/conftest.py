"""The tiny world and command line of the tests of commands."""

from tests.cli.conftest import cwd, run, world

__all__ = ["cwd", "run", "world"]
