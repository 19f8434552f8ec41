"""Simulated GPUs: tensors report that they are on a GPU, and have their data on the CPU.

An operation on tensors of several devices is refused, as on a GPU, and operations for which the host would wait are
recorded. Numbers are the CPU's. Gradients are not supported, since autograd needs a real device.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: Indexing needs the current GPU, which PyTorch for CPUs cannot report without this code.
_GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace c10::impl {
struct Guard final : DeviceGuardImplInterface {
  static constexpr DeviceType static_type = DeviceType::CUDA;
  Device first() const { return Device(static_type, 0); }
  DeviceType type() const override { return static_type; }
  Device exchangeDevice(Device) const override { return first(); }
  Device getDevice() const override { return first(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, first()); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, first()); }
  DeviceIndex deviceCount() const noexcept override { return 0; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}
"""
_ATEN = torch.ops.aten
_WAITS = {_ATEN._local_scalar_dense.default, _ATEN.nonzero.default, _ATEN.masked_select.default, _ATEN.equal.default}
_INDEXES = {_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default, _ATEN._index_put_impl_.default}


class GpuTensor(Tensor):
    """A tensor that reports that it is on a GPU."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, on_cpu: Tensor, device: torch.device) -> GpuTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls,
            on_cpu.size(),
            strides=on_cpu.stride(),
            storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype,
            device=device,
        )
        tensor.on_cpu = on_cpu
        return tensor

    def tolist(self) -> Any:
        """Return the values as of any tensor; PyTorch refuses this for subclasses."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("a simulated GPU is used outside of its context")


class SimulatedGpus(TorchDispatchMode):
    """A context in which tensors can be on ``cuda:0``, ``cuda:1`` ….

    Attributes:
        waits: The operations for which the host has waited, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        device = self._device_of_result(tensors, kwargs)
        if function is _ATEN._pin_memory.default:
            return args[0].clone()
        if device.type == "cpu" and not any(isinstance(tensor, GpuTensor) for tensor in tensors):
            return _on_cpu(function)(*args, **kwargs)
        if function not in (_ATEN._to_copy.default, _ATEN.copy_.default):
            self._check(function, tensors)
        elif isinstance(tensors[-1], GpuTensor):
            target = device if function is _ATEN._to_copy.default else tensors[0].device
            if target.type == "cpu":
                self.waits.append(str(function))
        cpu_kwargs = {name: _changed(value, _data) for name, value in kwargs.items()}
        result = _on_cpu(function)(*_changed(args, _data), **cpu_kwargs)
        inputs = {id(_data(tensor)): tensor for tensor in tensors}  # in-place operations return one of them

        def place(tensor: Tensor) -> Tensor:
            if id(tensor) in inputs:
                return inputs[id(tensor)]
            return GpuTensor(tensor, device) if device.type == "cuda" else tensor

        return _changed(result, place)

    def _device_of_result(self, tensors: list[Tensor], kwargs: dict[str, Any]) -> torch.device:
        """Return the device of the result, and change the arguments so that it is computed on the CPU."""
        argument = kwargs.get("device")
        if argument is None:
            devices = (tensor.device for tensor in tensors if isinstance(tensor, GpuTensor))
            return next(devices, torch.device("cpu"))
        device = torch.device(argument)
        if device.type == "cuda":
            kwargs["device"] = torch.device("cpu")
            return torch.device("cuda", device.index or 0)
        return device

    def _check(self, function: Any, tensors: list[Tensor]) -> None:
        """Refuse tensors of several devices, and record an operation for which the host waits."""
        if not any(isinstance(tensor, GpuTensor) for tensor in tensors):
            return
        devices = {tensor.device for tensor in tensors if tensor.ndim > 0}
        if function in _INDEXES and isinstance(tensors[0], GpuTensor):  # an index may be on the CPU
            devices -= {torch.device("cpu")}
            indices = [tensor for tensor in tensors[1:] if tensor.ndim > 0]
            if any(index.device.type == "cpu" or index.dtype == torch.bool for index in indices):
                self.waits.append(str(function))
        if len(devices) > 1:
            raise RuntimeError(f"{function} has tensors on {' and '.join(sorted(map(str, devices)))}")
        if function in _WAITS:
            self.waits.append(str(function))


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among an operation's arguments, which are tensors, numbers, and lists of these."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return an argument or a result with changed tensors. PyTorch's function for this is five times as slow."""
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_changed(item, change) for item in value) if isinstance(value, list | tuple) else value


def _data(value: Tensor) -> Tensor:
    return value.on_cpu if isinstance(value, GpuTensor) else value


def _on_cpu(function: Any) -> Callable[..., Any]:
    """Return an operation for the CPU, which computes histograms of floats only."""
    if function is _ATEN.histc.default:
        return lambda values, *args, **kwargs: function(values.float(), *args, **kwargs).to(values.dtype)
    return function


#: The results of functions of torch.cuda that PyTorch, transformers and accelerate call.
_ANSWERS: Mapping[str, Any] = {
    "_lazy_init": None,
    "is_available": True,
    "device_count": 2,
    "empty_cache": None,
    "synchronize": None,
    "reset_peak_memory_stats": None,
    "memory_allocated": 1000,
    "max_memory_allocated": 1500,
    "get_device_capability": (9, 0),
    "get_device_name": "simulated",
    "get_rng_state": torch.zeros(1),
    "set_rng_state": None,
}


@pytest.fixture(scope="session")
def guard(tmp_path_factory: pytest.TempPathFactory) -> None:
    if torch.backends.cuda.is_built():
        pytest.skip("needs a PyTorch for CPUs alone")
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("guard")
    pytorch = Path(torch.__file__).parent
    (folder / "guard.cpp").write_text(_GUARD)
    command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{pytorch}/include", "guard.cpp", "-o", "guard.so"]
    subprocess.run([*command, f"-L{pytorch}/lib", "-lc10"], cwd=folder, check=True)
    ctypes.CDLL(str(folder / "guard.so"))


@pytest.fixture
def gpus(guard: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedGpus]:
    """Two GPUs."""
    for name, answer in _ANSWERS.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    before = torch._C._only_lift_cpu_tensors(), torch.__future__.get_swap_module_params_on_conversion()
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)
    with SimulatedGpus() as mode, torch.no_grad():
        yield mode
    torch._C._set_only_lift_cpu_tensors(before[0])
    torch.__future__.set_swap_module_params_on_conversion(before[1])
