"""Loads a checkpoint by transformers without its values, in a process of its own, to compare names and shapes.

So the process that writes a checkpoint larger than the memory imports no torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from raysearch.errors import UnsupportedModelError


def names_that_differ(folder: Path, trust_remote_code: bool) -> dict[str, list[str]]:
    """Return the names of weights that a checkpoint lacks, or that its config does not describe, by kind.

    Args:
        folder: The checkpoint.
        trust_remote_code: Whether code of the checkpoint may run.

    Returns:
        The names, by the kinds of transformers' loading information: ``missing_keys``, ``unexpected_keys`` ….

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
    names: dict[str, list[str]] = json.loads(process.stdout)
    return names


def _main() -> None:
    from transformers import AutoConfig

    from raysearch.checkpoints.quiet import quiet
    from raysearch.models.reading import model_class

    arguments = json.loads(sys.stdin.read())
    trusted = arguments["trust_remote_code"]
    with quiet():
        config = AutoConfig.from_pretrained(arguments["folder"], trust_remote_code=trusted)
        _, info = model_class(config).from_pretrained(
            arguments["folder"], trust_remote_code=trusted, device_map="meta", output_loading_info=True
        )
    json.dump({kind: [str(name) for name in names] for kind, names in info.items()}, sys.stdout)


if __name__ == "__main__":
    _main()
