"""Loads models and tokenizers, and refuses models that cannot be searched before any weight is read.

`describe` returns the sizes by which a search is planned, from the config. torch and transformers are imported when
they are first used, so that the command line starts without them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.checkpoints.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from raysearch.checkpoints.quiet import quiet as quiet
from raysearch.checkpoints.side_files import TEXT_FILES
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models import gguf
from raysearch.models.file_cache import FileCache
from raysearch.models.gguf_config import complete
from raysearch.models.gguf_content import read_content
from raysearch.models.reading import (
    check_causal,
    check_code,
    check_quantisation,
    commit_of,
    loaded_class,
    model_class,
    pretrained_arguments,
    reading,
    takes_images,
    tokenizer_class,
)
from raysearch.models.reading import (
    tokenizer_fingerprint as tokenizer_fingerprint,
)
from raysearch.models.spec import LocatedModel, ModelInfo

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

#: The files of a processor, of which a model has at least one.
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


def resolve_dtype(dtype: str, config: PreTrainedConfig) -> torch.dtype:
    """Return the dtype of the weights in memory.

    Args:
        dtype: A torch dtype's name, or ``auto`` for the config's dtype.
        config: The model's config. If it names no dtype, that is float32.

    Returns:
        The dtype of torch.
    """
    import torch

    config_dtype: Any = config.dtype or config.get_text_config().dtype or torch.float32
    return config_dtype if dtype == "auto" else getattr(torch, dtype)


def load_config(model: LocatedModel) -> PreTrainedConfig:
    """Read the config, and refuse a model that cannot be searched, before any weight is read.

    Raises:
        UserError: The files cannot be read or are unsafe.
        UnsupportedModelError: The model is not a causal decoder that transformers supports.
    """
    # A model that does not exist is refused before the import, which takes seconds.
    arguments = pretrained_arguments(model)
    from transformers import AutoConfig

    with reading(model):
        check_code(model)
        config: PreTrainedConfig
        if model.gguf is None:
            config = AutoConfig.from_pretrained(**arguments)
        else:
            content = read_content(model.folder / model.gguf, model.name)
            try:
                config = AutoConfig.from_pretrained(**arguments)
            except KeyError as error:
                raise content.refused(f"it has no {error.args[0]}, which transformers reads") from error
            vars(config).pop("quantization_config", None)  # the weights in memory and in an export are not quantised
            complete(config, content)
        check_causal(model, config)
    return config


def load_tokenizer(model: LocatedModel) -> PreTrainedTokenizerBase:
    """Load the model's tokenizer.

    Raises:
        UserError: The model has no tokenizer, or it cannot be read.
    """
    with reading(model, "the tokenizer of "):
        tokenizer: PreTrainedTokenizerBase = tokenizer_class(model).from_pretrained(**pretrained_arguments(model))
        tokenizer("a")  # loading does not detect a missing vocabulary
    return tokenizer


def load_processor(model: LocatedModel) -> Any:
    """Load the model's processor, which turns text and images into the input of the model.

    Raises:
        UserError: The model reads text alone, it has no processor of images, or that cannot be loaded.
    """
    config = load_config(model)
    name = f"model={model.name} ({config.model_type})"
    kind = loaded_class(config)
    if kind is not None and not takes_images(kind):
        raise UserError(f"{name} is run by transformers' {kind.__name__}, which reads no images; use data of text")
    processor = None
    if model.is_hub or any((model.folder / file).is_file() for file in _PROCESSOR_FILES):
        from transformers import AutoProcessor

        with reading(model, "the processor of "):
            processor = AutoProcessor.from_pretrained(**pretrained_arguments(model))
    if getattr(processor, "image_processor", None) is None or getattr(processor, "tokenizer", None) is None:
        raise UserError(
            f"{name} has no processor of images; copy {' or '.join(_PROCESSOR_FILES)} of the original model into its "
            "folder"
        )
    return processor


def load_model(model: LocatedModel, device: str | None = None) -> PreTrainedModel:
    """Load the model in eval mode, with parameters that need no gradients. Its adapter, if it has one, is merged.

    An adapter is merged in the dtype of the model's files, as in a checkpoint; the dtype of the model is set then.

    Args:
        model: The model.
        device: The torch device to load it onto; None for the model's device.

    Returns:
        The model, in eval mode.

    Raises:
        UserError: As `load_config`, or the weights are incomplete, corrupt or pickled.
        UnsupportedModelError: As `load_config`, or the weights have other names than the model's class expects.
    """
    device = device or model.device
    if model.adapter is None:
        return gguf.read_or_keep(model, lambda files: _read_model(files, device), _write)
    import torch

    from raysearch.models.adapter import merge_adapter

    dtype = model.dtype if model.digest is not None else "auto"
    read = replace(model, dtype=dtype)
    merged = merge_adapter(gguf.read_or_keep(read, lambda files: _read_model(files, "cpu"), _write), model)
    file_dtype, dtype_in_memory = (resolve_dtype(name, merged.config) for name in (dtype, model.dtype))
    for parameter in merged.parameters():
        if parameter.dtype == file_dtype:
            parameter.data = parameter.data.to(dtype_in_memory)
    torch.nn.Module.to(merged, device)
    return merged


def _read_model(model: LocatedModel, device: str) -> PreTrainedModel:
    import torch
    from transformers import GenerationConfig

    config = load_config(model)
    arguments = pretrained_arguments(model)
    with reading(model):
        check_quantisation(model, config)
        # With output_loading_info, from_pretrained returns a pair; its annotations do not say so.
        pair: Any = model_class(config).from_pretrained(
            config=config,
            dtype=resolve_dtype(model.dtype, config),
            attn_implementation=None if model.attention == "auto" else model.attention,
            use_safetensors=True if model.gguf is None else None,  # a pickle can run code
            output_loading_info=True,
            # Without this, transformers would ask the hub for an adapter.
            adapter_kwargs={"local_files_only": arguments.get("local_files_only", False)},
            **arguments,
        )
        loaded: PreTrainedModel = pair[0]
        missing = sorted(pair[1]["missing_keys"])
        unread = sorted(pair[1]["unexpected_keys"])
        if missing and len(unread) >= len(missing):
            raise UnsupportedModelError(
                f"model={model.name} ({config.model_type}) names its weights otherwise than the causal language model "
                f"that transformers reads it as ({unread[0]} …, not {missing[0]}); use another architecture"
            )
        if missing:
            raise UserError(
                f"model={model.name} lacks {len(missing)} of its weights ({missing[0]} …), which would be random; "
                "use a complete checkpoint saved by a causal LM"
            )
        torch.nn.Module.to(loaded, device)
    if model.gguf is not None:
        vars(loaded.config).pop("quantization_config", None)
        vars(loaded).pop("hf_quantizer", None)  # with it, save_pretrained refuses the weights as quantised
        # The present one was made before the file was read.
        loaded.generation_config = GenerationConfig.from_model_config(loaded.config)
    return loaded.eval().requires_grad_(False)


def write_as_safetensors(model: LocatedModel, folder: Path) -> None:
    """Write the model of a GGUF file without its adapter, and its tokenizer, to a folder.

    Args:
        model: The model.
        folder: The folder, which exists.

    Raises:
        UserError: The file cannot be read, or the tokenizer cannot be written so that it stays the same.
    """
    base = replace(model, adapter=None)
    _write(load_model(base), base, folder)


def _write(loaded: PreTrainedModel, model: LocatedModel, folder: Path) -> None:
    """Write a model of a GGUF file and its tokenizer to a folder; refuse a tokenizer that writing changes."""
    with quiet():
        tokenizer = load_tokenizer(model)
        tokenizer.save_pretrained(folder)
        written_tokenizer = load_tokenizer(replace(model, location=str(folder), gguf=None))
        if tokenizer_fingerprint(written_tokenizer) != tokenizer_fingerprint(tokenizer):
            raise UserError("its tokenizer cannot be written so that it stays the same")
        loaded.save_pretrained(folder)


def spread(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """Spread a model on the CPU over all GPUs that this process sees: whole layers in order, about equal parts on each.

    Hooks of accelerate then move the inputs of a module to its device.

    Args:
        model: The model.
        name: The user's name for it, for messages.

    Returns:
        The same model, with its hooks.

    Raises:
        UserError: The model does not fit on the GPUs.
    """
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    layer_classes = list(model._no_split_modules or ())
    memory = get_balanced_memory(model, no_split_module_classes=layer_classes)
    gpus = {device: n_bytes for device, n_bytes in memory.items() if device != "cpu"}
    devices = infer_auto_device_map(model, max_memory={**gpus, "cpu": 0}, no_split_module_classes=layer_classes)
    if any(device in ("cpu", "disk") for device in devices.values()):
        raise UserError(
            f"model={name} does not fit on {len(gpus)} GPUs; give more with cluster.gpus_per_replica=…, or hold it "
            "in a smaller model.dtype"
        )
    return dispatch_model(model, devices)


def load_random_layers(info: ModelInfo, layers: Sequence[int]) -> PreTrainedModel:
    """Build a model on its device with some of its layers and random weights. No weight is read.

    Args:
        info: The model.
        layers: The indices of the layers to build, ascending.

    Returns:
        The model, in eval mode, whose layers are those of `layers`.
    """
    from raysearch.checkpoints.config_rules import shrink_config
    from raysearch.checkpoints.kept_blocks import KeptBlocks

    model = info.model
    config = load_config(model)
    vars(config).pop("quantization_config", None)  # the layers have the dtype of the weights in memory
    shrink_config(config.get_text_config(), KeptBlocks.whole(layers, info.sites.n_layers))
    built = _build(model, config, model.device, dtype=resolve_dtype(model.dtype, config))
    return built.eval().requires_grad_(False)


def without_weights(model: LocatedModel, config: PreTrainedConfig, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Build a model on the meta device.

    Args:
        model: The model.
        config: The model's config.
        dtype: The dtype of its weights; None for the config's.

    Returns:
        The model, whose parameters have shapes and no values.
    """
    options = {} if dtype is None else {"dtype": dtype}
    return _build(model, config, "meta", **options)


def _build(model: LocatedModel, config: PreTrainedConfig, device: str, **options: Any) -> PreTrainedModel:
    """Build a model of a config on a device, with new weights."""
    import torch

    with reading(model), torch.device(device):
        built: PreTrainedModel = model_class(config).from_config(
            config,
            attn_implementation=None if model.attention == "auto" else model.attention,
            trust_remote_code=model.trust_remote_code,
            **options,
        )
    return built


def fingerprint(model: LocatedModel) -> str:
    """Return the fingerprint of a model: the commit of a hub id, otherwise the SHA-256 of all files that decide a loss.

    With an adapter, it depends on the adapter's files, too. Hashing reads every byte once, which takes less than a
    second for a small model and minutes for hundreds of gigabytes.

    Raises:
        UserError: As `load_config`.
    """
    code = ["**/*.py"] if model.trust_remote_code else []
    base = _fingerprint_of_files(model, ["config.json", "*.safetensors", "*.safetensors.index.json", *code])
    if model.adapter is None:
        return base
    return hashlib.sha256(f"{base} {adapter_digest(model)}".encode()).hexdigest()


def adapter_digest(model: LocatedModel) -> str:
    """Return the SHA-256 of the files of a model's adapter that decide a loss."""
    cache = FileCache(model.cache)
    folder = Path(str(model.adapter))
    digests = [cache.sha256(folder / name) for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def writing_fingerprint(model: LocatedModel) -> str:
    """Return a fingerprint like `fingerprint` of the files for generation: its config, tokenizer, chat templates."""
    return _fingerprint_of_files(model, TEXT_FILES)


def _fingerprint_of_files(model: LocatedModel, patterns: Sequence[str]) -> str:
    """Return the digest of a GGUF file, the commit of a hub id, or the SHA-256 of the files that fit the patterns."""
    if model.digest is not None:
        return model.digest
    if model.is_hub:
        load_config(model)
        return commit_of(model)
    folder = model.folder
    files = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    names = sorted(file.relative_to(folder).as_posix() for file in files)
    cache = FileCache(model.cache)
    listing = "".join(f"{name} {cache.sha256(folder / name)}\n" for name in names)
    return hashlib.sha256(listing.encode()).hexdigest()
