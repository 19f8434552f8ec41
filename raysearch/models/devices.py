"""The device of a model, or the devices that it is spread over."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from raysearch.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def resolve_device(device: str) -> str:
    """Return the torch device of ``model.device``, e.g. ``cpu`` or ``cuda:0``; this machine may not have it.

    Raises:
        UserError: The name is unknown.
    """
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and (kind != "cuda" or not index.isdecimal())):
        raise UserError(f"model.device={device} is unknown; {did_you_mean(device, ['auto', 'cpu', 'cuda', 'cuda:0'])}")
    if kind != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Refuse a GPU that this machine does not have.

    Raises:
        UserError: It is not there.
    """
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"model.device={device} asks for a GPU, but torch sees none; use model.device=cpu or model.device=auto"
        )
    count = torch.cuda.device_count()
    if index and int(index) >= count:
        raise UserError(f"model.device={device} is not there; torch sees {count}: use cuda:0 … cuda:{count - 1}")


def spread(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """Spread a model over all GPUs that this process sees: whole layers in order, about as much on each.

    Hooks of accelerate then move the inputs of a module to its device.

    Args:
        model: A model on the CPU.
        name: Its name, for messages.

    Raises:
        UserError: It does not fit on them.
    """
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole = list(model._no_split_modules or ())
    memory = get_balanced_memory(model, no_split_module_classes=whole)
    gpus = {device: most for device, most in memory.items() if device != "cpu"}
    places = infer_auto_device_map(model, max_memory={**gpus, "cpu": 0}, no_split_module_classes=whole)
    if any(place in ("cpu", "disk") for place in places.values()):
        raise UserError(
            f"model={name} does not fit on {len(gpus)} GPUs; give more with cluster.gpus_per_replica=…, or hold it "
            "in a smaller model.dtype"
        )
    spread_model: PreTrainedModel = dispatch_model(model, places)
    return spread_model


def processor() -> str:
    """Return the name of this machine's CPU."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
