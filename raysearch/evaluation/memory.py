"""The memory of a replica: whether an error means that there is too little, how to free it, and how to use it again."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import TypeVar

import torch

#: PyTorch has no exception class for this on the CPU; its messages contain one of these texts.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_M_TRIM_THRESHOLD = -1  # as in malloc.h
_M_MMAP_THRESHOLD = -3  # as in malloc.h

T = TypeVar("T")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that an accelerator or the machine has run out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def retry_with_less_memory(attempt: Callable[[], T], use_less: Callable[[], object]) -> T:
    """Return the result of an attempt, which is repeated with less memory until memory is enough.

    Args:
        attempt: Computes the result.
        use_less: Called when memory is not enough; makes the next attempt smaller, or raises an error.

    Returns:
        The result of the first attempt for which memory was enough.
    """
    while True:
        try:
            return attempt()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        release_memory()  # after the except block, where the error no longer holds its frames and their tensors
        use_less()


def reuse_freed_memory() -> None:
    """Make glibc keep the memory of freed tensors for the next ones.

    By default it returns large blocks to the system at once, and the system clears every page of the next block. This
    takes up to half of a replica's time if several share a machine, and a fifth of the time of a training.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        # Before glibc 2.35 the mmap threshold is 2**25 at most. The trim threshold alone would fix it at 128 KiB.
        if libc.mallopt(_M_MMAP_THRESHOLD, 2**30) or libc.mallopt(_M_MMAP_THRESHOLD, 2**25):
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def release_memory() -> None:
    """Free the memory that PyTorch and Python hold but do not use."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def describe_device(device: torch.device) -> str:
    """Return a device with its memory: ``cuda:0 (NVIDIA H100 80GB HBM3, 79.2 GiB)``."""
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    return f"{device} ({properties.name}, {properties.total_memory / 2**30:.1f} GiB)"
