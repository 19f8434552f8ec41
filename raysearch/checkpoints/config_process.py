"""Writes the config of a pruned checkpoint by transformers without torch, whose import takes longer than an export.

If transformers is not imported yet, this module runs as a program: it hides torch from transformers, which then offers
configs and tokenizers only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from raysearch.checkpoints.config_file import write_pruned_config
from raysearch.checkpoints.quiet import quiet
from raysearch.errors import UnsupportedModelError, UserError

_REFUSED = 3  # the exit code of an error whose sentence is on standard output


def write_config_without_torch(folder: Path, source: Path, **values: Any) -> None:
    """Call `write_pruned_config` here if transformers is imported already, otherwise in a process without torch.

    Args:
        folder: The pruned checkpoint.
        source: The folder of the dense model.
        values: The other arguments of `write_pruned_config`.

    Raises:
        UnsupportedModelError: As `write_pruned_config`.
        UserError: transformers cannot read the config of the source.
    """
    if "transformers" in sys.modules:
        with quiet():
            write_pruned_config(folder, source, **values)
        return
    arguments = json.dumps({"folder": str(folder), "source": str(source), **values})
    process = subprocess.run(
        [sys.executable, "-m", __name__], input=arguments, capture_output=True, text=True, check=False
    )
    if process.returncode == _REFUSED:
        raise UnsupportedModelError(process.stdout.strip())
    if process.returncode:
        reason = (process.stderr.strip() or "no message").splitlines()[-1]
        raise UserError(f"{source} cannot be exported: transformers does not read its config ({reason}); check it")


def _main() -> None:
    values = json.loads(sys.stdin.read())
    folder = Path(values.pop("folder"))
    source = Path(values.pop("source"))
    sys.modules["torch"] = None  # type: ignore[assignment]  # transformers then finds no torch
    try:
        write_pruned_config(folder, source, **values)
    except UnsupportedModelError as error:
        sys.stdout.write(str(error))
        sys.exit(_REFUSED)


if __name__ == "__main__":
    _main()
