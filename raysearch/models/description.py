"""Describes a model: its sizes follow from its config, and no weight is read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raysearch.checkpoints.config_rules import image_layers
from raysearch.errors import UnsupportedModelError
from raysearch.models.file_cache import FileCache, identity_of_files
from raysearch.models.gguf_config import check_tensors
from raysearch.models.gguf_content import read_content
from raysearch.models.loading import adapter_digest, load_config, resolve_dtype, without_weights
from raysearch.models.reading import commit_of, pretrained_arguments, reading
from raysearch.models.source import gguf_file, locate
from raysearch.models.spec import LocatedModel, ModelInfo, ModelSpec

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

#: The names of settings that may hold the number of streams of hidden states: of hyper-connections, and of AltUp.
_STREAMS = ("hc_mult", "hc_count", "altup_num_inputs")


def describe(spec: ModelSpec) -> ModelInfo:
    """Locate a model, and return its sizes, which follow from its config. No weight is downloaded or read.

    Raises:
        UserError: As `locate` and `load_config`, or the adapter does not fit the model.
        UnsupportedModelError: As `load_config`, the model has no stack of layers, or its layers have no halves and
            `spec.halves` needs them.
    """
    from raysearch.core.json import from_json, to_record  # imports pydantic, which a replica does not need

    model = locate(spec)
    identity = None if model.attention == "flash_attention_2" else identity_of_files(model)  # flash-attn may be removed
    if identity is None:
        return _describe(model)
    cache = FileCache(model.cache)
    key: dict[str, Any] = {
        "model sizes and kinds of layers": identity,
        "dtype": model.dtype,
        "attention": model.attention,
    }
    if model.adapter is not None:
        key["adapter"] = adapter_digest(model)
    if model.halves:
        key["halves"] = True
    if model.digest is not None:
        key["gguf"] = model.digest
    if (cached := cache.get(key)) is not None:
        return replace(from_json(ModelInfo, cached.decode()), model=model)
    info = _describe(model)
    if identity_of_files(model) == identity:  # otherwise a file has changed while it was read
        cache.put(key, to_record(info).encode())
    return info


def _describe(model: LocatedModel) -> ModelInfo:
    """Return a model's sizes, by building it without weights."""
    config = load_config(model)  # before the next import, since it may refuse the model
    from raysearch.models.layers import largest_list, sites_of

    if model.is_hub:  # a replica on another node may start after the branch has changed
        model = replace(model, revision=commit_of(model))
    text = config.get_text_config()
    if getattr(text, "vocab_size", None) is None:
        raise UnsupportedModelError(
            f"model={model.name} ({config.model_type}) has no vocabulary in its config; use a language model"
        )
    skeleton = without_weights(model, config)
    if model.gguf is not None:
        with reading(model):
            check_tensors(read_content(model.folder / model.gguf, model.name), skeleton)
    layers = largest_list(skeleton)
    head = skeleton.get_output_embeddings()
    embedding: Any = skeleton.get_input_embeddings()
    positions = getattr(text, "max_position_embeddings", getattr(text, "max_seq_len", None))
    info = ModelInfo(
        model=model,
        sites=sites_of(layers, text),
        parameters=_count(skeleton),
        head_parameters=0 if head is None else _count(head),
        vocab_size=text.vocab_size,
        hidden_size=getattr(text, "hidden_size", None) or embedding.weight.shape[1],
        n_streams=next((number for name in _STREAMS if (number := getattr(text, name, None))), 1),
        max_positions=positions if positions is not None and positions > 0 else None,  # XLNet has -1 for no limit
        dtype=str(resolve_dtype(model.dtype, config)).removeprefix("torch."),
        image_layers=image_layers(config.to_dict()),
        config=_decoder_config(model, config),
        code={
            "architectures": config.architectures or [type(skeleton).__name__],
            "model_type": config.model_type,
        },
    )
    if model.adapter is not None:
        from raysearch.models.adapter import check_adapter

        check_adapter(model, skeleton)
    if not model.halves:
        return info
    from raysearch.models.model_halves import with_halves  # imports torch

    return with_halves(info)


def _decoder_config(model: LocatedModel, config: PreTrainedConfig) -> dict[str, Any]:
    """Return the values of the decoder's config: those of its file, and for other keys those of transformers."""
    from transformers import PreTrainedConfig

    in_memory = config.get_text_config().to_dict()
    if gguf_file(model) is not None:
        of_this_load = ("_name_or_path", "architectures", "dtype")  # a converted copy has others than the file itself
        return {key: value for key, value in in_memory.items() if key not in of_this_load}
    in_file, _ = PreTrainedConfig.get_config_dict(**pretrained_arguments(model))
    return in_memory | (in_file.get("text_config") or in_file)


def _count(module: torch.nn.Module) -> int:
    """Count the parameters of a module, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())
