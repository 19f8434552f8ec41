"""Loads a checkpoint by transformers without its values, to compare names and shapes.

If torch is not imported yet, this module runs as a program, since a process with torch needs more memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raysearch.checkpoints.quiet import quiet
from raysearch.errors import UnsupportedModelError
from raysearch.text.sentences import first_line


@dataclass(frozen=True)
class MetaLoad:
    """What transformers says of a checkpoint that it loads without values.

    Args:
        auto_class: The name of the class that loads it, such as ``AutoModelForCausalLM``.
        names: The names of weights by the kinds of `from_pretrained`: ``missing_keys``, ``unexpected_keys`` … If
            transformers cannot read the quantisation, those that `names_by_module` leaves.
    """

    auto_class: str
    names: dict[str, list[str]]


def load_without_values(folder: Path, trust_remote_code: bool) -> MetaLoad:
    """Load a checkpoint without its values: here if torch is imported already, otherwise in a process of its own.

    Args:
        folder: The checkpoint.
        trust_remote_code: Whether code of the checkpoint may run.

    Returns:
        What transformers says of it.

    Raises:
        UnsupportedModelError: transformers does not load the checkpoint.
    """
    if "torch" in sys.modules:
        try:
            with quiet():
                return _load(str(folder), trust_remote_code=trust_remote_code)
        except Exception as error:
            raise _refused(folder, f"{type(error).__name__}: {first_line(error)}") from error
    arguments = json.dumps({"folder": str(folder), "trust_remote_code": trust_remote_code})
    process = subprocess.run(
        [sys.executable, "-m", __name__], input=arguments, capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise _refused(folder, (process.stderr.strip() or "no message").splitlines()[-1])
    return MetaLoad(**json.loads(process.stdout))


def _refused(folder: Path, reason: str) -> UnsupportedModelError:
    """Return the error for a checkpoint that transformers does not load."""
    return UnsupportedModelError(
        f"{folder} cannot be exported: transformers does not load the pruned checkpoint ({reason}); choose another "
        "mask or architecture"
    )


def names_by_module(names: Mapping[str, Iterable[str]], parameters: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of weights that do not fit even if a module may hold its weights in any form.

    A quantised module has, for example, packed values and scales instead of a weight.

    Args:
        names: The names of weights by the kinds of `from_pretrained`, of a model that was built without quantisation.
        parameters: The names of all parameters and buffers of that model.

    Returns:
        The weights of modules for which the checkpoint has nothing, and those that belong to no module.
    """
    modules = {_module_of(name) for name in parameters}
    unread = {ancestor for name in names["unexpected_keys"] for ancestor in _ancestors(name)}
    return {
        "missing_keys": [name for name in names["missing_keys"] if _module_of(name) not in unread],
        "unexpected_keys": [name for name in names["unexpected_keys"] if modules.isdisjoint(_ancestors(name))],
    }


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


def _ancestors(name: str) -> list[str]:
    """Return the names of the module that holds a weight, and of the modules that hold that one."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _load(folder: str, **options: Any) -> MetaLoad:
    """Load a checkpoint without its values in this process."""
    from transformers import AutoConfig
    from transformers.quantizers.auto import AutoHfQuantizer

    from raysearch.models.reading import model_class, quantisation_of

    config = AutoConfig.from_pretrained(folder, **options)
    auto_class = model_class(config)
    options |= {"device_map": "meta", "output_loading_info": True}
    quantisation = quantisation_of(config)
    if quantisation is None or AutoHfQuantizer.supports_quant_method(quantisation):
        try:
            _, info = auto_class.from_pretrained(folder, **options)
            return MetaLoad(auto_class.__name__, {kind: [*map(str, names)] for kind, names in info.items()})
        except Exception:  # the quantisation needs a library or a GPU that is missing
            if quantisation is None:
                raise
    for part in (config, config.get_text_config()):
        vars(part).pop("quantization_config", None)
    model, info = auto_class.from_pretrained(folder, config=config, ignore_mismatched_sizes=True, **options)
    return MetaLoad(auto_class.__name__, names_by_module(info, list(model.state_dict())))


def _main() -> None:
    with quiet():
        load = _load(**json.loads(sys.stdin.read()))
    json.dump(asdict(load), sys.stdout)


if __name__ == "__main__":
    _main()
