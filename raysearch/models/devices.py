"""The device of a model, and the processor of this machine. torch is imported only if there may be a GPU."""

from __future__ import annotations

import importlib.util
import platform
import re
import runpy
import sys
from contextlib import suppress
from pathlib import Path

from raysearch.errors import UserError
from raysearch.text.sentences import did_you_mean

#: The flags in ``/proc/cpuinfo`` of x86 and ARM CPUs that have instructions to multiply in a dtype.
_INSTRUCTIONS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "fphp"},
}


def resolve_device(device: str) -> str:
    """Return the torch device of ``model.device``, such as ``cpu`` or ``cuda:0``. This machine may not have it.

    Raises:
        UserError: The name is unknown.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:(0|[1-9][0-9]*))?", device):  # as torch reads it
        meant = re.sub("^gpu", "cuda", device.lower())
        raise UserError(f"model.device={device} is unknown; {did_you_mean(meant, ['auto', 'cpu', 'cuda', 'cuda:0'])}")
    if device != "auto":
        return device
    return "cuda" if n_gpus() else "cpu"


def n_gpus() -> int:
    """Return the number of GPUs of this machine that torch sees."""
    if "torch" not in sys.modules and not _may_have_gpus():
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_device(device: str) -> None:
    """Refuse a GPU that this machine does not have.

    Raises:
        UserError: torch does not see the GPU.
    """
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return
    count = n_gpus()
    if not count:
        raise UserError(
            f"model.device={device} needs a GPU, but torch sees none; use model.device=cpu or model.device=auto"
        )
    if index and int(index) >= count:
        raise UserError(f"model.device={device} does not exist; torch sees {count}: use cuda:0 … cuda:{count - 1}")


def check_fused_head(device: str) -> None:
    """Refuse ``model.fused_head=true`` on a CPU, or if the kernel's package is not installed.

    Raises:
        UserError: The device is the CPU, or liger-kernel is not installed.
    """
    if device == "cpu":
        raise UserError(
            "model.fused_head=true is a kernel for GPUs, but the model runs on the CPU; use model.fused_head=false"
        )
    if importlib.util.find_spec("liger_kernel") is None:
        raise UserError("model.fused_head=true needs liger-kernel; install it with: pip install liger-kernel")


def _may_have_gpus() -> bool:
    """Return whether torch may see a GPU, without importing it. It does not if it is built for CPUs only."""
    package = importlib.util.find_spec("torch")
    assert package is not None and package.origin is not None, "raysearch requires torch"
    version = runpy.run_path(str(Path(package.origin).with_name("version.py")))
    return version.get("cuda") is not None or version.get("hip") is not None


def processor() -> str:
    """Return the name of this machine's CPU."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


def has_instructions(dtype: str) -> bool | None:
    """Return whether this machine's CPU has instructions to multiply in a dtype; None if that is unknown."""
    flags = _cpu_info("flags", "Features")
    if dtype not in _INSTRUCTIONS or flags is None:
        return None
    return not _INSTRUCTIONS[dtype].isdisjoint(flags.split())


def _cpu_info(*names: str) -> str | None:
    """Return the first value of ``/proc/cpuinfo`` under one of the names; None if there is none."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(names))
    return None
