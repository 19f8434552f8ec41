"""The tiny world and command line of the tests of commands."""

from tests.cli.conftest import here, run, world

__all__ = ["here", "run", "world"]
