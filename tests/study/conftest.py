"""The tiny world and command line of the tests of commands, and Ray for its studies."""

from tests.cli.conftest import here, run, world
from tests.cli.studies import one_ray

__all__ = ["here", "one_ray", "run", "world"]
