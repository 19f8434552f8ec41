"""The device of a model."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

from raysearch.errors import UserError, did_you_mean


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


def processor() -> str:
    """Return the name of this machine's CPU."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
