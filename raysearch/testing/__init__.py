"""Conformance suites for new searchers and objectives."""

import pkgutil
import sys

if "pytest" in sys.modules:
    import pytest

    # So that a failed assertion of a suite shows the values compared.
    pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
