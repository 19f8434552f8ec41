"""A checkpoint as files: its config, its tensors by name, and all its other files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.checkpoints.safetensors_file import FileTensor, read_header
from raysearch.errors import UserError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
#: The files that hold weights, in any format. Those that the checkpoint's index does not name are another copy of the
#: dense model, so an export leaves them out.
_WEIGHT_FILES = re.compile(
    r".*\.(safetensors|bin|pt|pth|ckpt|gguf|ggml|onnx|onnx_data|msgpack|h5|tflite|ot|npz|mlmodel|nemo)"
    r"|.*\.(safetensors|bin)\.index\.json"
)
#: Folders with copies of the dense model in other formats, with an adapter, or with what a training has left.
_OTHER_FOLDERS = re.compile(
    r"original|onnx|openvino|coreml|metal|adapter|checkpoint-\d+|global_step\d+|runs|logs|wandb|__pycache__"
)
#: Files that describe the dense model as a repository. An export has its own.
_OF_THE_REPOSITORY = ("README.md", "raysearch.json", "mergekit.yaml", "checksums.json")


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a model in safetensors files.

    Args:
        folder: The folder.
        config: The content of ``config.json``.
        tensors: The tensors of the model, in the order of their files and places.
        metadata: The metadata of the files, such as ``{"format": "pt"}``.
        index_metadata: The metadata of the index, except sizes; empty without an index.
        file_bytes: The size of the tensors of each file, in bytes.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Sequence[FileTensor]
    metadata: Mapping[str, str]
    index_metadata: Mapping[str, Any]
    file_bytes: Sequence[int]

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read the config, the index and the headers of a checkpoint, but no weight.

        Args:
            folder: The folder.

        Raises:
            UserError: A file is missing or cannot be read, or the index names a tensor that its file does not have.
        """
        config = read_json(folder / CONFIG)
        index: dict[str, Any] = {}
        weight_map: Mapping[str, str] | None = None
        files = [WEIGHTS]
        if not (folder / WEIGHTS).is_file():
            index = read_json(folder / INDEX)
            weight_map = index.get("weight_map") or {}
            files = sorted(set(weight_map.values()))
        metadata: dict[str, str] = {}
        tensors = []
        for name in files:
            file_metadata, file_tensors = read_header(folder / name)
            metadata |= file_metadata
            # transformers reads a tensor from the file that the index names.
            tensors += [tensor for tensor in file_tensors if weight_map is None or weight_map.get(tensor.name) == name]
        missing = set(weight_map or ()) - {tensor.name for tensor in tensors}
        if missing:
            name = min(missing)
            raise UserError(
                f"{folder / INDEX} names {name}, which {(weight_map or {})[name]} does not hold; complete the download"
            )
        index_metadata = {key: value for key, value in (index.get("metadata") or {}).items() if key != "total_size"}
        sizes: dict[Path, int] = {}
        for tensor in tensors:
            sizes[tensor.file] = sizes.get(tensor.file, 0) + tensor.n_bytes
        return cls(folder, config, tensors, metadata, index_metadata, tuple(sizes.values()))

    @property
    def largest_file_bytes(self) -> int:
        """The size of the tensors in the largest file, in bytes."""
        return max(self.file_bytes, default=0)

    @property
    def in_shards(self) -> bool:
        """Whether the tensors lie in files that an index names."""
        return len(self.file_bytes) > 1

    def other_files(self) -> list[Path]:
        """Return the paths, relative to the folder, of the files that an export copies as they are.

        These are all files but the config, weights, files of the repository, hidden ones, and what a training has left.
        """
        paths = [file.relative_to(self.folder) for file in sorted(self.folder.rglob("*")) if file.is_file()]
        return [path for path in paths if _is_copied(path)]


def _is_copied(path: Path) -> bool:
    """Return whether an export copies a file, given by its path relative to the checkpoint."""
    if any(part.startswith(".") or _OTHER_FOLDERS.fullmatch(part) for part in path.parts):
        return False
    return str(path) not in (CONFIG, *_OF_THE_REPOSITORY) and not _WEIGHT_FILES.fullmatch(path.name)


def read_decoder_config(folder: Path) -> dict[str, Any]:
    """Return the content of ``config.json``; of a multimodal model, its part that describes the decoder.

    Raises:
        UserError: The file cannot be read.
    """
    config = read_json(folder / CONFIG)
    decoder: dict[str, Any] = config.get("text_config") or config
    return decoder


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        UserError: The file cannot be read, or holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read ({error}); complete the download") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} holds no JSON object; complete the download")
    return content
