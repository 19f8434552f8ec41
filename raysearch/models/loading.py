"""Loads models and tokenizers, and refuses what cannot be searched before any weight is read.

`describe` gives the sizes that a search is planned by from the config alone. torch and transformers are imported when
first used, so that the command line starts without them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.errors import UnsupportedModelError, UserError, did_you_mean, first_line
from raysearch.models.devices import check_device, resolve_device
from raysearch.models.source import Source, hub_answers, locate
from raysearch.models.spec import ModelInfo, ModelSpec

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_DTYPES = ("auto", "float32", "bfloat16", "float16")
_ATTENTIONS = ("auto", "sdpa", "eager", "flash_attention_2")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within the context transformers and the hub client print nothing; their errors are still raised."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    level, hub_level, bars = logging.get_verbosity(), hub_logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The GGUF reader has a progress bar of its own that no setting reaches.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        hub_logging.set_verbosity(hub_level)
        if bars:
            logging.enable_progress_bar()


def resolve_dtype(spec: ModelSpec, config: PreTrainedConfig) -> torch.dtype:
    """Return the dtype of the weights in memory; float32 if the config names none.

    Raises:
        UserError: The name is unknown.
    """
    import torch

    _check_name("model.dtype", spec.dtype, _DTYPES)
    if spec.dtype != "auto":
        named: torch.dtype = getattr(torch, spec.dtype)
        return named
    if locate(spec.name, spec.path).gguf is not None:
        return torch.bfloat16 if resolve_device(spec).startswith("cuda") else torch.float32
    own = config.dtype or config.get_text_config().dtype or torch.float32
    return own if isinstance(own, torch.dtype) else resolve_dtype(replace(spec, dtype=own), config)


def load_config(spec: ModelSpec) -> PreTrainedConfig:
    """Read the config and refuse what cannot be searched, before any weight is read.

    Raises:
        UserError: The spec has an unknown value, or its files are missing, unreachable or unsafe.
        UnsupportedModelError: The model is not a causal decoder that transformers knows.
    """
    from transformers import AutoConfig

    _check_name("model.dtype", spec.dtype, _DTYPES)
    _check_name("model.attention", spec.attention, _ATTENTIONS)
    resolve_device(spec)
    source = locate(spec.name, spec.path)
    with _explained(spec), quiet():
        config: PreTrainedConfig = AutoConfig.from_pretrained(source.location, **_where(spec, source))
        if source.gguf is not None:
            _drop_quantization(config)
        _check_causal(spec, config)
    return config


def load_tokenizer(spec: ModelSpec) -> PreTrainedTokenizerBase:
    """Load the model's own tokenizer.

    Raises:
        UserError: The checkpoint has none, or it cannot be read.
    """
    from transformers import AutoTokenizer

    source = locate(spec.name, spec.path)
    with _explained(spec, "the tokenizer of "), quiet():
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source.location, **_where(spec, source))
        tokenizer("a")  # loading alone accepts one without a vocabulary
    return tokenizer


def load_model(spec: ModelSpec, device: str | None = None) -> PreTrainedModel:
    """Load the model in eval mode, its parameters without gradients.

    Args:
        spec: Which model, and how it is held.
        device: The device; None for that of `spec.device`.

    Raises:
        UserError: As `load_config`, or the weights are incomplete, corrupt or pickled.
        UnsupportedModelError: As `load_config`.
    """
    import torch
    from transformers import AutoModelForCausalLM

    if device is None:
        check_device(spec)
        device = resolve_device(spec)
    config, source = load_config(spec), locate(spec.name, spec.path)
    with _explained(spec), quiet():
        # With output_loading_info, from_pretrained returns a pair; its annotations do not say so.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.location,
            config=config,
            dtype=resolve_dtype(spec, config),
            attn_implementation=_attention(spec),
            use_safetensors=None if source.gguf else True,  # a pickle can run code
            output_loading_info=True,
            **_where(spec, source),
        )
        model: PreTrainedModel = loaded[0]
        missing = sorted(loaded[1]["missing_keys"])
        if missing:
            raise UserError(
                f"model={spec.name} lacks {len(missing)} of its weights ({missing[0]} …), which would be random; "
                "use a complete checkpoint saved by a causal LM"
            )
        torch.nn.Module.to(model, device)
    if source.gguf is not None:
        _drop_quantization(model.config)
        vars(model).pop("hf_quantizer", None)  # with it, save_pretrained refuses the weights as quantised
    model.eval().requires_grad_(False)
    return model


def describe(spec: ModelSpec) -> ModelInfo:
    """Return the sizes of the model from its config alone; no weight is downloaded or read.

    Raises:
        UserError: As `load_config`.
        UnsupportedModelError: As `load_config`, or the model has no stack of layers.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from raysearch.models.layers import layer_lists

    config = load_config(spec)
    with _explained(spec), quiet(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=_attention(spec), trust_remote_code=spec.trust_remote_code
        )
    # A vision tower may have as many blocks; the text stack is the one with the most parameters.
    layers = max(layer_lists(model), key=_count)
    text, head = config.get_text_config(), model.get_output_embeddings()
    return ModelInfo(
        n_layers=len(layers),
        parameters=_count(model),
        layer_parameters=tuple(_count(layer) for layer in layers),
        head_parameters=0 if head is None else _count(head),
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        max_positions=getattr(text, "max_position_embeddings", getattr(text, "max_seq_len", None)),
        dtype=str(resolve_dtype(spec, config)).removeprefix("torch."),
    )


def fingerprint(spec: ModelSpec) -> str:
    """Return what identifies the weights: the commit of a hub id, else the SHA-256 over config and weight files.

    Hashing reads every byte: under a second for a small model, minutes for hundreds of gigabytes.

    Raises:
        UserError: As `load_config`.
    """
    source = locate(spec.name, spec.path)
    if source.gguf is not None:
        return _sha256(source.folder / source.gguf)
    folder = source.folder
    if source.is_hub:
        commit: str | None = getattr(load_config(spec), "_commit_hash", None)
        if commit:
            return commit
        from huggingface_hub import snapshot_download

        with _explained(spec), quiet():
            folder = Path(snapshot_download(source.location, revision=spec.revision, local_files_only=True))
    names = sorted(file.name for pattern in ("config.json", "*.safetensors") for file in folder.glob(pattern))
    listing = "".join(f"{name} {_sha256(folder / name)}\n" for name in names)
    return hashlib.sha256(listing.encode()).hexdigest()


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 of everything that turns text into token ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
        # Padding and truncation are settings of the last call, not of the tokenizer.
        content["padding"] = content["truncation"] = None
    else:
        content = tokenizer.get_vocab()
    text = json.dumps([content, tokenizer.special_tokens_map], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _where(spec: ModelSpec, source: Source) -> dict[str, Any]:
    """Return the arguments by which every `from_pretrained` reads the same files."""
    where: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code}
    if source.gguf is not None:
        where["gguf_file"] = source.gguf
    if source.is_hub:
        where |= {
            "revision": spec.revision or "main",
            "local_files_only": not hub_answers(spec.name, source, spec.revision),
        }
    return where


@contextlib.contextmanager
def _explained(spec: ModelSpec, part: str = "") -> Iterator[None]:
    """Turn errors of transformers into one sentence, with the original error chained."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = first_line(error).split(". ")[0]
        known = f"{part}model={spec.name}" + (f" ({spec.path})" if spec.path != spec.name else "")
        if "trust_remote_code" in str(error):
            message = f"{known} brings its own code; read it, then set model.trust_remote_code=true"
        elif isinstance(error, (ValueError, ImportError)) and "ttention" in str(error):
            message = f"model.attention={spec.attention} does not work for {known}: {reason}; use model.attention=auto"
        elif "does not recognize this architecture" in str(error):
            raise UnsupportedModelError(
                f"{known} is of a kind that this transformers does not know: {reason}"
            ) from error
        else:
            message = f"{known} cannot be loaded: {reason}; check that its files are complete and of this format"
        raise UserError(message) from error


def _check_causal(spec: ModelSpec, config: PreTrainedConfig) -> None:
    """Refuse encoder-decoders, and checkpoints that were not saved by a causal language model."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    known = f"model={spec.name} ({config.model_type})"
    if config.is_encoder_decoder:
        raise UnsupportedModelError(f"{known} is an encoder-decoder; use a decoder-only language model")
    causal = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if causal is None and "AutoModelForCausalLM" not in (getattr(config, "auto_map", None) or {}):
        raise UnsupportedModelError(f"{known} is not a causal language model; use a decoder-only language model")
    saved_by = config.architectures or []
    classes = causal if isinstance(causal, tuple) else (causal,)
    names = {cls.__name__ for cls in classes if cls is not None}
    if saved_by and not any(name in names or name.endswith(("ForCausalLM", "LMHeadModel")) for name in saved_by):
        raise UnsupportedModelError(
            f"{known} was saved as {saved_by[0]}, which is not a causal language model; use a decoder with its head"
        )


def _check_name(argument: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse an unknown name."""
    if value not in known:
        raise UserError(f"{argument}={value} is unknown; {did_you_mean(value, known)}")


def _attention(spec: ModelSpec) -> str | None:
    """Return the attention for transformers; None to let it choose."""
    return None if spec.attention == "auto" else spec.attention


def _drop_quantization(config: PreTrainedConfig) -> None:
    """Remove the quantisation of a GGUF file from the config: the weights in memory and in an export have none."""
    if hasattr(config, "quantization_config"):
        del config.quantization_config


def _count(module: torch.nn.Module) -> int:
    """Count the parameters of a module, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def _sha256(file: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
