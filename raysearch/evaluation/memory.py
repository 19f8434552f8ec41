"""What to do when memory runs out: fewer samples at once, and in the end a word on what would fit."""

from __future__ import annotations

import gc

import torch

#: How PyTorch words it where it has no exception of its own: on the CPU.
_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of an accelerator or of the machine."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def release() -> None:
    """Gives back what is held for no use."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def describe(device: torch.device) -> str:
    """A device with its memory: ``cuda:0 (NVIDIA H100 80GB HBM3, 79.2 GiB)``."""
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    return f"{device} ({properties.name}, {properties.total_memory / 2**30:.1f} GiB)"
