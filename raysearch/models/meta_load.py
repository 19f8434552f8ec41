"""Loads a checkpoint by transformers without its values, in a process of its own, to compare names and shapes.

So the process that writes a checkpoint larger than the memory imports no torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from raysearch.errors import UnsupportedModelError


@dataclass(frozen=True)
class MetaLoad:
    """What transformers says of a checkpoint that it loads without values.

    Args:
        auto_class: The name of the class that loads it, such as ``AutoModelForCausalLM``.
        names: The names of weights by the kinds of `from_pretrained`: ``missing_keys``, ``unexpected_keys`` …
    """

    auto_class: str
    names: dict[str, list[str]]


def load_without_values(folder: Path, trust_remote_code: bool) -> MetaLoad:
    """Load a checkpoint in another process, without its values.

    Args:
        folder: The checkpoint.
        trust_remote_code: Whether code of the checkpoint may run.

    Returns:
        What transformers says of it.

    Raises:
        UnsupportedModelError: transformers does not load the checkpoint.
    """
    arguments = json.dumps({"folder": str(folder), "trust_remote_code": trust_remote_code})
    process = subprocess.run(
        [sys.executable, "-m", __name__], input=arguments, capture_output=True, text=True, check=False
    )
    if process.returncode:
        reason = (process.stderr.strip() or "no message").splitlines()[-1]
        raise UnsupportedModelError(
            f"{folder} cannot be exported: transformers does not load the pruned checkpoint ({reason}); choose another "
            "mask or architecture"
        )
    return MetaLoad(**json.loads(process.stdout))


def _main() -> None:
    from transformers import AutoConfig

    from raysearch.checkpoints.quiet import quiet
    from raysearch.models.reading import model_class

    arguments = json.loads(sys.stdin.read())
    trust_remote_code = arguments["trust_remote_code"]
    with quiet():
        config = AutoConfig.from_pretrained(arguments["folder"], trust_remote_code=trust_remote_code)
        auto_class = model_class(config)
        _, info = auto_class.from_pretrained(
            arguments["folder"], trust_remote_code=trust_remote_code, device_map="meta", output_loading_info=True
        )
    names_by_kind = {kind: [str(name) for name in names] for kind, names in info.items()}
    json.dump({"auto_class": auto_class.__name__, "names": names_by_kind}, sys.stdout)


if __name__ == "__main__":
    _main()
