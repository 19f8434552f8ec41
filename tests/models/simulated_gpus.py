"""GPUs that are not there: tensors say that they are on one, and have their data on the CPU.

An operation on tensors of several devices is refused, as on a GPU, and what the host would wait for is noted. Numbers
are the CPU's. Gradients are out of reach, since autograd asks for a real device.
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

#: PyTorch for CPUs has nobody who knows which GPU is the current one, as indexing asks.
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
    """A tensor that says that it is on a GPU."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, on_cpu: Tensor, device: torch.device) -> GpuTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            on_cpu.size(),
            strides=on_cpu.stride(),
            storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype,
            device=device,
        )
        made.on_cpu = on_cpu
        return made

    def tolist(self) -> Any:
        """As of any tensor; PyTorch refuses it for classes of others."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("a simulated GPU is used outside of its context")


class SimulatedGpus(TorchDispatchMode):
    """Within the context ``cuda:0``, ``cuda:1`` … take tensors.

    Attributes:
        waits: What the host has waited for, in order.
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
        if device.type == "cpu" and not any(isinstance(one, GpuTensor) for one in tensors):
            return _on_cpu(function)(*args, **kwargs)
        if function not in (_ATEN._to_copy.default, _ATEN.copy_.default):
            self._check(function, tensors)
        elif isinstance(tensors[-1], GpuTensor):
            to = device if function is _ATEN._to_copy.default else tensors[0].device
            if to.type == "cpu":
                self.waits.append(str(function))
        result = _on_cpu(function)(*_changed(args, _data), **{name: _changed(of, _data) for name, of in kwargs.items()})
        given = {id(_data(one)): one for one in tensors}  # in-place operations return what they were given

        def place(one: Tensor) -> Tensor:
            if id(one) in given:
                return given[id(one)]
            return GpuTensor(one, device) if device.type == "cuda" else one

        return _changed(result, place)

    def _device_of_result(self, tensors: list[Tensor], kwargs: dict[str, Any]) -> torch.device:
        """Return where the result will be, and have it computed on the CPU."""
        asked = kwargs.get("device")
        if asked is None:
            return next((one.device for one in tensors if isinstance(one, GpuTensor)), torch.device("cpu"))
        device = torch.device(asked)
        if device.type == "cuda":
            kwargs["device"] = torch.device("cpu")
            return torch.device("cuda", device.index or 0)
        return device

    def _check(self, function: Any, tensors: list[Tensor]) -> None:
        """Refuse tensors of several devices, and note what the host waits for."""
        if not any(isinstance(one, GpuTensor) for one in tensors):
            return
        large = [one for one in tensors if one.ndim > 0]
        devices = {one.device for one in large}
        if function in _INDEXES and isinstance(tensors[0], GpuTensor):  # an index may be on the CPU
            devices -= {torch.device("cpu")}
            if any(one.device.type == "cpu" or one.dtype == torch.bool for one in tensors[1:] if one.ndim > 0):
                self.waits.append(str(function))
        if len(devices) > 1:
            raise RuntimeError(f"{function} has tensors on {' and '.join(sorted(map(str, devices)))}")
        if function in _WAITS:
            self.waits.append(str(function))


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among an operation's arguments, which are tensors, numbers and lists of such."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return an argument or a result with its tensors changed; PyTorch's own way for any tree is five times as slow."""
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_changed(one, change) for one in value) if isinstance(value, list | tuple) else value


def _data(value: Tensor) -> Tensor:
    return value.on_cpu if isinstance(value, GpuTensor) else value


def _on_cpu(function: Any) -> Callable[..., Any]:
    """Return an operation as the CPU has it: it makes histograms of floats alone."""
    if function is _ATEN.histc.default:
        return lambda values, *args, **kwargs: function(values.float(), *args, **kwargs).to(values.dtype)
    return function


#: What PyTorch, transformers and accelerate ask of CUDA beside operations.
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
    folder, pytorch = tmp_path_factory.mktemp("guard"), Path(torch.__file__).parent
    (folder / "guard.cpp").write_text(_GUARD)
    words = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{pytorch}/include", "guard.cpp", "-o", "guard.so"]
    subprocess.run([*words, f"-L{pytorch}/lib", "-lc10"], cwd=folder, check=True)
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
