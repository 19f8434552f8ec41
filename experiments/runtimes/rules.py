"""Print the lines of code behind the rules of place of transformers, vLLM and MLX, or compare them with `rules.txt`.

Every rule in `raysearch/checkpoints/` names its file and line in one version of the runtime. This finds them in the
sources of the runtimes, and what each runtime has code for. For a new version, it shows which rules to read again.

Run: PYTHONPATH=. python experiments/runtimes/rules.py --vllm PATH/vllm --mlx PATH/mlx_lm --converter CONVERTER
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import transformers

ROOT = Path(__file__).parents[2]
RULES = ROOT / "raysearch" / "checkpoints"
PLACE = re.compile(r"# .*?(?=[\w/]+\.py:)(.*)")
FILE = re.compile(r"([\w/]+\.py):(\d+)(?: and (\d+))?")


def quoted(table: str, runtime: str, folders: list[Path]) -> Iterator[str]:
    """Yield each line of code that a table of rules names.

    Args:
        table: The name of the table's file.
        runtime: The name of the runtime.
        folders: The folders in which the named files may lie.
    """
    for line in (RULES / table).read_text(encoding="utf-8").splitlines():
        for place in PLACE.findall(line):
            for name, *numbers in FILE.findall(place):
                file = next(folder / name for folder in folders if (folder / name).is_file())
                code = file.read_text(encoding="utf-8").splitlines()
                for number in filter(None, numbers):
                    text = code[int(number) - 1].strip() if int(number) <= len(code) else ""
                    yield f"{runtime} {name}:{number}: {text}"


def table_keys(file: Path, names: set[str]) -> set[str]:
    """Return the keys of dicts that a Python file assigns to names."""
    keys = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(node.value, ast.Dict):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id in names for target in targets):
            keys |= {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    return {str(key) for key in keys}


def supported(vllm: Path, mlx: Path, converter: Path) -> dict[str, list[str]]:
    """Return what each runtime has code for, as in `supported.json`.

    Args:
        vllm: The folder of vLLM's package.
        mlx: The folder of mlx-lm's package.
        converter: The folder of llama.cpp's converter.

    Returns:
        Architectures of vLLM and llama.cpp, and model types of MLX.
    """
    registry = vllm / "model_executor" / "models" / "registry.py"
    tables = {"_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS"}
    models = [file for file in (mlx / "models").glob("*.py") if re.search(r"^class Model\b", file.read_text(), re.M)]
    names = {
        "vllm": table_keys(registry, tables),
        "llama.cpp": table_keys(converter / "conversion" / "__init__.py", {"TEXT_MODEL_MAP"}),
        "mlx": {file.stem for file in models} | table_keys(mlx / "utils.py", {"MODEL_REMAPPING"}),
    }
    return {runtime: sorted(listed) for runtime, listed in names.items()}


def main() -> None:
    """Compare `rules.txt` and `supported.json` with the sources, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, required=True, help="the folder of vLLM's package")
    parser.add_argument("--mlx", type=Path, required=True, help="the folder of mlx-lm's package")
    parser.add_argument("--converter", type=Path, required=True, help="the folder of llama.cpp's converter")
    parser.add_argument("--write", action="store_true", help="write the files instead of comparing them")
    arguments = parser.parse_args()
    vllm = [arguments.vllm / folder for folder in ("model_executor/models", "models", "model_executor")]
    lines = [
        *quoted("layer_rules.py", "transformers", [Path(transformers.__file__).parent / "models"]),
        *quoted("vllm.py", "vLLM", vllm),
        *quoted("mlx.py", "MLX", [arguments.mlx / "models"]),
    ]
    texts = {
        ROOT / "experiments" / "runtimes" / "rules.txt": "\n".join(lines) + "\n",
        RULES / "supported.json": json.dumps(supported(arguments.vllm, arguments.mlx, arguments.converter), indent=1)
        + "\n",
    }
    differences: list[str] = []
    for file, text in texts.items():
        if arguments.write:
            file.write_text(text, encoding="utf-8")
        before = file.read_text(encoding="utf-8").splitlines()
        differences += difflib.unified_diff(before, text.splitlines(), file.name, "the sources", lineterm="", n=0)
    print("\n".join(differences) or f"All {len(lines)} lines are the same.")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
