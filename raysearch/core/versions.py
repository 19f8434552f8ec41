"""The versions that are recorded with results."""

import importlib.metadata

#: The version of raysearch. It is defined here for checkouts that are not installed; pyproject.toml reads it.
VERSION = "0.1.0"


def version_of(package: str) -> str:
    """Return the version of an installed package, or of raysearch itself."""
    return VERSION if package == "raysearch" else importlib.metadata.version(package)
