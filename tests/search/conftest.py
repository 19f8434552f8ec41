"""The tiny world of the tests of commands."""

from tests.cli.conftest import here, world

__all__ = ["here", "world"]
