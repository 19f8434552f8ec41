"""raysearch's rooms without `raysearch/__init__.py`, whose imports need more than torch and transformers."""

import sys
from pathlib import Path
from types import ModuleType

package = ModuleType("raysearch")
package.__path__ = [str(Path(__file__).parents[2] / "raysearch")]
sys.modules["raysearch"] = package
