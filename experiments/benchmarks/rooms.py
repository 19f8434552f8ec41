"""raysearch's rooms where there may be no more than torch and transformers.

They come without `raysearch/__init__.py`, whose imports need more, and without pydantic their options are not checked.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

package = ModuleType("raysearch")
package.__path__ = [str(Path(__file__).parents[2] / "raysearch")]
sys.modules["raysearch"] = package
if find_spec("pydantic") is None:
    options = ModuleType("raysearch.core.options")
    options.Options = type("Options", (), {})  # type: ignore[attr-defined]
    sys.modules["raysearch.core.options"] = options
