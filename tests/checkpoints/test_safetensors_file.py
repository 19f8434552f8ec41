"""Files that are copied tensor by tensor are those that the safetensors library writes and reads."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from raysearch.checkpoints.safetensors_file import SlicedTensor, bits_of, read_header, write_file
from raysearch.errors import UserError
from tests.sentences import Sentences

_TENSORS = {
    "bytes": torch.arange(7, dtype=torch.uint8),
    "flags": torch.tensor([True, False, True]),
    "half": torch.randn(3, 5).to(torch.bfloat16),
    "eighth": torch.randn(4, 4).to(torch.float8_e4m3fn),
    "number": torch.tensor(2.5, dtype=torch.float64),
    "nothing": torch.zeros(0, 3),
    "whole": torch.randn(2, 3, 4),
    "ids": torch.arange(5),
}


def test_copied_tensors_have_the_bytes_of_the_source(tmp_path: Path) -> None:
    save_file(_TENSORS, tmp_path / "source.safetensors", metadata={"format": "pt"})
    metadata, tensors = read_header(tmp_path / "source.safetensors")
    write_file(tmp_path / "copy.safetensors", reversed(tensors), metadata)
    copied = load_file(tmp_path / "copy.safetensors")
    assert copied.keys() == _TENSORS.keys()
    for name, values in _TENSORS.items():
        assert copied[name].dtype == values.dtype, name
        assert torch.equal(copied[name].reshape(-1).view(torch.uint8), values.reshape(-1).view(torch.uint8)), name
    with safe_open(tmp_path / "copy.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    _, written = read_header(tmp_path / "copy.safetensors")
    first = min(tensor.offset for tensor in written)
    for tensor in written:
        assert (tensor.offset - first) % max(1, bits_of(tensor.dtype) // 8) == 0, f"{tensor.name} is aligned"


def test_slices_along_an_axis_are_those_of_the_tensor(tmp_path: Path) -> None:
    values = torch.randn(12, 8).to(torch.bfloat16)
    save_file({"table": values}, tmp_path / "source.safetensors")
    _, [tensor] = read_header(tmp_path / "source.safetensors")
    for axis, width, expected in ((0, 3, values.view(4, 3, 8)[[0, 2]].flatten(0, 1)), (1, 2, values[:, [0, 1, 4, 5]])):
        sliced = SlicedTensor(tensor, "cut", axis, width, [0, 2])
        write_file(tmp_path / "cut.safetensors", [sliced], {})
        assert torch.equal(load_file(tmp_path / "cut.safetensors")["cut"], expected), axis


def test_an_incomplete_file_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    file = tmp_path / "source.safetensors"
    save_file(_TENSORS, file)
    whole = file.read_bytes()
    for content in (
        b"",
        whole[:6],
        whole[:50],
        whole[:-1],
        b"\xff" * 64,
        b"version https://git-lfs.github.com/spec/v1\n",
    ):
        file.write_bytes(content)
        with sentences.refused(UserError):
            read_header(file)
