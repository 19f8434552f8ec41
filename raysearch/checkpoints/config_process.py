"""Writes the config of a pruned checkpoint by transformers without torch, whose import takes longer than an export.

If transformers is not imported yet, this module runs as a program: it hides torch from transformers, which then offers
configs and tokenizers only. The program imports transformers while the weights are copied.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from raysearch.checkpoints.config_file import write_pruned_config
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.quiet import quiet
from raysearch.core.site import Block
from raysearch.errors import UnsupportedModelError, UserError

_REFUSED = 3  # the exit code of an error whose sentence is on standard output


class ConfigWriter(Protocol):
    """A function that calls `write_pruned_config` with its arguments."""

    def __call__(self, folder: Path, source: Path, **values: Any) -> None:
        """Write the config.

        Args:
            folder: The pruned checkpoint.
            source: The folder of the dense model.
            values: The other arguments of `write_pruned_config`.

        Raises:
            UnsupportedModelError: As `write_pruned_config`.
            UserError: transformers cannot read the config of the source.
        """


@contextlib.contextmanager
def config_writer() -> Iterator[ConfigWriter]:
    """Yield a function that writes a config, once: in a process without torch, or here if transformers is imported.

    The process starts with the context, and loads transformers until the function is called.
    """
    if "transformers" in sys.modules:
        yield _write_here
        return
    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:

        def write(folder: Path, source: Path, **values: Any) -> None:
            kept = values["kept"]
            values |= {"folder": str(folder), "source": str(source), "kept": [kept.blocks, kept.n_layers]}
            output, errors = process.communicate(json.dumps(values))
            if process.returncode == _REFUSED:
                raise UnsupportedModelError(output.strip())
            if process.returncode:
                reason = (errors.strip() or "no message").splitlines()[-1]
                raise UserError(
                    f"{source} cannot be exported: transformers does not read its config ({reason}); check it"
                )

        try:
            yield write
        finally:
            process.kill()  # it has not ended if an error came before the call


def _write_here(folder: Path, source: Path, **values: Any) -> None:
    """Call `write_pruned_config` in this process."""
    with quiet():
        write_pruned_config(folder, source, **values)


def _main() -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]  # transformers then finds no torch
    from transformers import AutoConfig  # noqa: F401  # before the arguments come

    values = json.loads(sys.stdin.read())
    folder = Path(values.pop("folder"))
    source = Path(values.pop("source"))
    blocks, n_layers = values.pop("kept")
    values["kept"] = KeptBlocks(tuple(Block(*block) for block in blocks), n_layers)
    try:
        write_pruned_config(folder, source, **values)
    except UnsupportedModelError as error:
        sys.stdout.write(str(error))
        sys.exit(_REFUSED)


if __name__ == "__main__":
    _main()
