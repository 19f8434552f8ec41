"""Which device a model goes to, and what those of this machine are called."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from raysearch.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from raysearch.models.spec import ModelSpec


def resolve_device(spec: ModelSpec) -> str:
    """The torch device that `spec.device` stands for, e.g. ``cpu`` or ``cuda:0``; it may be that of another machine.

    Raises:
        UserError: The name is unknown.
    """
    kind, _, index = spec.device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and (kind != "cuda" or not index.isdecimal())):
        raise UserError(
            f"model.device={spec.device} is unknown; {did_you_mean(spec.device, ['auto', 'cpu', 'cuda', 'cuda:0'])}"
        )
    if kind != "auto":
        return spec.device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(spec: ModelSpec) -> None:
    """Refuses a GPU that this machine does not have.

    Raises:
        UserError: It is not there, or its name is unknown.
    """
    import torch

    kind, _, index = resolve_device(spec).partition(":")
    if kind == "cpu":
        return
    if not torch.cuda.is_available():
        raise UserError(
            f"model.device={spec.device} asks for a GPU, but torch sees none; use model.device=cpu or model.device=auto"
        )
    count = torch.cuda.device_count()
    if index and int(index) >= count:
        raise UserError(f"model.device={spec.device} is not there; torch sees {count}: use cuda:0 … cuda:{count - 1}")


def processor() -> str:
    """The name of this machine's CPU."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
