"""The versions that are put on record beside a number."""

import importlib.metadata

#: raysearch's own. It stands here, so that a checkout which is not installed has one, too; pyproject.toml reads it.
VERSION = "0.1.0"


def version_of(package: str) -> str:
    """Return the version of an installed package, or of raysearch itself."""
    return VERSION if package == "raysearch" else importlib.metadata.version(package)
