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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.core.hub import is_asked, why_no_answer
from raysearch.errors import UnsupportedModelError, UserError, first_line
from raysearch.models import gguf
from raysearch.models.file_cache import FileCache, identity_of_files
from raysearch.models.gguf_config import check_tensors, complete, read_content
from raysearch.models.side_files import TEXT_FILES
from raysearch.models.source import locate
from raysearch.models.spec import LocatedModel, ModelInfo, ModelSpec

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within the context transformers and the hub client print nothing; their errors are still raised."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    # The GGUF reader has a progress bar of its own that no setting reaches.
    with contextlib.ExitStack() as after, contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        for library in (logging, hub_logging):
            after.callback(library.set_verbosity, library.get_verbosity())
            library.set_verbosity_error()
        if logging.is_progress_bar_enabled():
            after.callback(logging.enable_progress_bar)
        logging.disable_progress_bar()
        warnings.simplefilter("ignore")
        yield


def resolve_dtype(dtype: str, config: PreTrainedConfig) -> torch.dtype:
    """Return the dtype of the weights in memory; of ``auto`` the config's own, and float32 if that names none."""
    import torch

    own: Any = config.dtype or config.get_text_config().dtype or torch.float32
    return own if dtype == "auto" else getattr(torch, dtype)


def load_config(model: LocatedModel) -> PreTrainedConfig:
    """Read the config and refuse what cannot be searched, before any weight is read.

    Raises:
        UserError: The files are unreachable or unsafe.
        UnsupportedModelError: The model is not a causal decoder that transformers knows.
    """
    files = _files(model)  # a model that is nowhere is refused before the import, which takes seconds
    from transformers import AutoConfig

    with _reading(model):
        _check_code(model)
        config: PreTrainedConfig
        if model.gguf is None:
            config = AutoConfig.from_pretrained(**files)
        else:
            content = read_content(model.folder / model.gguf, model.name)
            try:
                config = AutoConfig.from_pretrained(**files)
            except KeyError as error:
                raise content.refused(f"it has no {error.args[0]}, which transformers reads") from error
            vars(config).pop("quantization_config", None)  # weights in memory and in an export have none
            complete(config, content)
        _check_causal(model, config)
    return config


def load_tokenizer(model: LocatedModel) -> PreTrainedTokenizerBase:
    """Load the model's own tokenizer; a `UserError` if it has none, or it cannot be read."""
    with _reading(model, "the tokenizer of "):
        tokenizer: PreTrainedTokenizerBase = _tokenizer_class(model).from_pretrained(**_files(model))
        tokenizer("a")  # loading alone accepts one without a vocabulary
    return tokenizer


def _tokenizer_class(model: LocatedModel) -> Any:
    """Return what reads the tokenizer. That of a kept GGUF file is mostly of a class that needs no torch."""
    if model.is_kept:
        said = json.loads((model.folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        if said.get("tokenizer_class") == "TokenizersBackend":
            from transformers import TokenizersBackend

            return TokenizersBackend
    from transformers import AutoTokenizer  # imports torch, to look into the model's config

    return AutoTokenizer


def load_model(model: LocatedModel, device: str | None = None) -> PreTrainedModel:
    """Load the model in eval mode, its parameters without gradients, onto a device; None for its own.

    Raises:
        UserError: As `load_config`, or the weights are incomplete, corrupt or pickled.
        UnsupportedModelError: As `load_config`.
    """
    return gguf.read_or_keep(model, lambda found: _read_model(found, device or model.device), _write)


def _read_model(model: LocatedModel, device: str) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    config, files = load_config(model), _files(model)
    with _reading(model):
        # With output_loading_info, from_pretrained returns a pair; its annotations do not say so.
        pair: Any = AutoModelForCausalLM.from_pretrained(
            config=config,
            dtype=resolve_dtype(model.dtype, config),
            attn_implementation=None if model.attention == "auto" else model.attention,
            use_safetensors=True if model.gguf is None else None,  # a pickle can run code
            output_loading_info=True,
            adapter_kwargs={"local_files_only": files.get("local_files_only", False)},  # it asks by itself for one
            **files,
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
        loaded.generation_config = GenerationConfig.from_model_config(loaded.config)  # made before the file was read
    return loaded.eval().requires_grad_(False)


def _write(loaded: PreTrainedModel, model: LocatedModel, folder: Path) -> None:
    """Write a model read from a GGUF file to a folder, with its tokenizer; refuse what would not be the same."""
    with quiet():
        tokenizer = load_tokenizer(model)
        tokenizer.save_pretrained(folder)
        again = load_tokenizer(replace(model, location=str(folder), gguf=None))
        if tokenizer_fingerprint(again) != tokenizer_fingerprint(tokenizer):
            raise UserError("its tokenizer cannot be written so that it stays the same")
        loaded.save_pretrained(folder)


def spread(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """Spread a model on the CPU over all GPUs that this process sees: whole layers in order, about as much on each.

    Hooks of accelerate then move the inputs of a module to its device. What does not fit on them is a `UserError`.
    """
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole = list(model._no_split_modules or ())
    memory = get_balanced_memory(model, no_split_module_classes=whole)
    gpus = {device: most for device, most in memory.items() if device != "cpu"}
    places = infer_auto_device_map(model, max_memory={**gpus, "cpu": 0}, no_split_module_classes=whole)
    if any(place in ("cpu", "disk") for place in places.values()):
        raise UserError(
            f"model={name} does not fit on {len(gpus)} GPUs; give more with cluster.gpus_per_replica=…, or hold it "
            "in a smaller model.dtype"
        )
    return dispatch_model(model, places)


def describe(spec: ModelSpec) -> ModelInfo:
    """Locate the model, and return its sizes from its config alone; no weight is downloaded or read.

    Raises:
        UserError: As `locate` and `load_config`.
        UnsupportedModelError: As `load_config`, or the model has no stack of layers.
    """
    from raysearch.core.json import from_json, to_record  # needs pydantic, which a replica does without

    model = locate(spec)
    identity = None if model.attention == "flash_attention_2" else identity_of_files(model)  # may not be installed
    if identity is None:
        return _describe(model)
    cache, key = FileCache(model.cache), {"sizes": identity, "dtype": model.dtype, "attention": model.attention}
    if (known := cache.get(key)) is not None:
        return replace(from_json(ModelInfo, known.decode()), model=model)
    info = _describe(model)
    if identity_of_files(model) == identity:  # else a file was changed while it was read
        cache.put(key, to_record(info).encode())
    return info


def _describe(model: LocatedModel) -> ModelInfo:
    """Return a model's sizes, by building it without weights."""
    config = load_config(model)  # first, as it may refuse the model
    from raysearch.models.layers import layer_lists

    if model.is_hub:  # a replica on another node may start after the next push
        model = replace(model, revision=_commit(model))
    skeleton = without_weights(model, config)
    if model.gguf is not None:
        with _reading(model):
            check_tensors(read_content(model.folder / model.gguf, model.name), skeleton)
    # A vision tower may have as many blocks; the text stack is the one with the most parameters.
    layers = max(layer_lists(skeleton), key=_count)
    text, head = config.get_text_config(), skeleton.get_output_embeddings()
    embedding: Any = skeleton.get_input_embeddings()
    positions = getattr(text, "max_position_embeddings", getattr(text, "max_seq_len", None))
    return ModelInfo(
        model=model,
        n_layers=len(layers),
        parameters=_count(skeleton),
        layer_parameters=tuple(_count(layer) for layer in layers),
        head_parameters=0 if head is None else _count(head),
        vocab_size=text.vocab_size,
        hidden_size=getattr(text, "hidden_size", None) or embedding.weight.shape[1],
        max_positions=positions if positions is not None and positions > 0 else None,  # XLNet's -1 is no limit
        dtype=str(resolve_dtype(model.dtype, config)).removeprefix("torch."),
        unwritable=_unwritable(model, config),
    )


def _unwritable(model: LocatedModel, config: PreTrainedConfig) -> str | None:
    """Return the quantisation of a model that transformers reads and does not write; None if there is none."""
    quantisation = getattr(config, "quantization_config", None)
    if not quantisation:
        return None
    from transformers.quantizers.auto import AutoHfQuantizer

    with _reading(model):
        if isinstance(quantisation, dict) and not AutoHfQuantizer.supports_quant_method(quantisation):
            return None  # it is not read as quantised, either
        quantizer = AutoHfQuantizer.from_config(quantisation, pre_quantized=True)
        return None if quantizer.is_serializable() else str(quantizer.quantization_config.quant_method.value)


def load_random_layers(info: ModelInfo, layers: Sequence[int]) -> PreTrainedModel:
    """Build a model on its device with some of its layers, ascending, and random weights; no weight is read."""
    from raysearch.models.surgery import shrink_config

    model, config = info.model, load_config(info.model)
    vars(config).pop("quantization_config", None)  # the layers are timed in the dtype that they have in memory
    shrink_config(config.get_text_config(), layers, info.n_layers)
    built = _build(model, config, model.device, dtype=resolve_dtype(model.dtype, config))
    return built.eval().requires_grad_(False)


def without_weights(model: LocatedModel, config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model on the meta device; `config` is its own."""
    return _build(model, config, "meta")


def _build(model: LocatedModel, config: PreTrainedConfig, device: str, **options: Any) -> PreTrainedModel:
    """Build a model of a config on a device, with new weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with _reading(model), torch.device(device):
        built: PreTrainedModel = AutoModelForCausalLM.from_config(
            config,
            attn_implementation=None if model.attention == "auto" else model.attention,
            trust_remote_code=model.trust_remote_code,
            **options,
        )
    return built


def fingerprint(model: LocatedModel) -> str:
    """Return what identifies a model: the commit of a hub id, else the SHA-256 over all files that a loss follows from.

    Hashing reads every byte, once: under a second for a small model, minutes for hundreds of gigabytes.

    Raises:
        UserError: As `load_config`.
    """
    code = ["**/*.py"] if model.trust_remote_code else []
    return _named(model, ["config.json", "*.safetensors", "*.safetensors.index.json", *code])


def writing_fingerprint(model: LocatedModel) -> str:
    """As `fingerprint`, of the files by which texts are written: generation config, tokenizer and chat templates."""
    return _named(model, TEXT_FILES)


def folder_of_files(model: LocatedModel, patterns: Sequence[str]) -> Path | None:
    """Return a folder with those files of a model, beside its weights, that patterns fit; None for a GGUF file."""
    if model.digest is not None:
        return None
    if not model.is_hub:
        return model.folder
    from huggingface_hub import snapshot_download

    with _reading(model):
        commit, offline = _commit(model), not _hub_answers(model)
        folder = snapshot_download(
            model.location, revision=commit, allow_patterns=list(patterns), local_files_only=offline
        )
    return Path(folder)


def _named(model: LocatedModel, patterns: Sequence[str]) -> str:
    """Return the digest of a GGUF file, the commit of a hub id, or the SHA-256 over the files that patterns fit."""
    if model.digest is not None:
        return model.digest
    if model.is_hub:
        load_config(model)
        return _commit(model)
    folder = model.folder
    files = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    names = sorted(file.relative_to(folder).as_posix() for file in files)
    cache = FileCache(model.cache)
    listing = "".join(f"{name} {cache.sha256(folder / name)}\n" for name in names)
    return hashlib.sha256(listing.encode()).hexdigest()


def _commit(model: LocatedModel) -> str:
    """Return the commit of a hub id, whose config is in the hub's cache; transformers no longer tells it."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model.location, "config.json", revision=model.revision)
    assert isinstance(config, str), "it has been read"
    return Path(config).parent.name


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


def _files(model: LocatedModel) -> dict[str, Any]:
    """Return the arguments by which every `from_pretrained` reads the same files."""
    files: dict[str, Any] = {
        "pretrained_model_name_or_path": model.location,
        "trust_remote_code": model.trust_remote_code,
    }
    if model.gguf is not None:
        files["gguf_file"] = model.gguf
    if model.is_hub:
        files |= {"revision": model.revision or "main", "local_files_only": not _hub_answers(model)}
    return files


def _hub_answers(model: LocatedModel) -> bool:
    """Return whether the hub answers; refuse a model that is not in its cache either."""
    from huggingface_hub import try_to_load_from_cache

    revision = model.revision
    if revision is not None and (".." in revision or revision.startswith("/")):  # would lead out of the cache
        raise UserError(f"model.revision={revision} names no branch, tag or commit; see the model's page on the hub")
    cause: Exception | None = None
    if is_asked():
        cause = why_no_answer()
        if cause is None:
            return True
    try:
        cached = try_to_load_from_cache(model.location, "config.json", revision=revision)
    except ValueError as error:  # malformed id
        cached, cause = None, error
    if isinstance(cached, str):
        return False
    raise UserError(
        f"model={model.name} is neither a folder nor reachable on the Hugging Face hub as {model.location!r}; "
        "check the name and the network, or give the path of a local folder"
    ) from cause


@contextlib.contextmanager
def _reading(model: LocatedModel, part: str = "") -> Iterator[None]:
    """Within the context transformers reads a model, quietly; its errors are one sentence, the original chained."""
    try:
        with quiet(), gguf.read_fast() if model.gguf else contextlib.nullcontext():
            yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # that of tokenizers' Rust
            raise
        said, reason = str(error), first_line(error).split(". ")[0]
        known = f"{part}model={model.name}" + (f" ({model.path})" if model.path != model.name else "")
        kind, failed = UserError, f"{known} cannot be loaded"
        if "trust_remote_code" in said:
            message = f"{known} brings its own code; read it, then set model.trust_remote_code=true"
        elif isinstance(error, (ValueError, ImportError)) and "ttention" in said:
            message = f"model.attention={model.attention} does not work for {known}: {reason}; use model.attention=auto"
        elif "ignore_mismatched_sizes" in said:
            message = f"{failed}: its weights have other shapes than its config says; complete the files"
        elif "does not recognize this architecture" in said:
            kind = UnsupportedModelError
            message = f"{known} is of a kind that this transformers does not know: {reason}"
        elif part and _lacks_tokenizer(model):
            message = (
                f"{failed}: its folder has no tokenizer.json; copy the tokenizer's files of the original model there"
            )
        elif isinstance(error, ImportError):
            message = f"{failed}: {reason}; install what it names"
        else:
            message = f"{failed}: {reason}; check that its files are complete and of this format"
        raise kind(message) from error


def _lacks_tokenizer(model: LocatedModel) -> bool:
    """Return whether a model is a folder without the vocabulary of a tokenizer."""
    is_folder = not model.is_hub and model.gguf is None
    return is_folder and not any((*model.folder.glob("tokenizer.json"), *model.folder.glob("*.model")))


def _check_code(model: LocatedModel) -> None:
    """Refuse a folder that runs code of other repositories, which may change behind its fingerprint."""
    if not model.trust_remote_code or model.is_hub:
        return
    for name in ("config.json", "tokenizer_config.json"):
        file = model.folder / name
        said = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        for named in (said.get("auto_map") or {}).values() if isinstance(said, dict) else ():
            elsewhere = [one for one in (named if isinstance(named, list) else [named]) if one and "--" in one]
            if elsewhere:
                raise UserError(
                    f"model={model.name} names code of another repository in {name} ({elsewhere[0]}), which may change "
                    "without notice; copy that file into the model's folder and name it there, without 'owner/repo--'"
                )


def _check_causal(model: LocatedModel, config: PreTrainedConfig) -> None:
    """Refuse encoder-decoders, and checkpoints that were not saved by a causal language model."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    known = f"model={model.name} ({config.model_type})"
    if config.is_encoder_decoder:
        raise UnsupportedModelError(f"{known} is an encoder-decoder; use a decoder-only language model")
    causal = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if causal is None and "AutoModelForCausalLM" not in (getattr(config, "auto_map", None) or {}):
        raise UnsupportedModelError(
            f"{known} is no model that transformers' AutoModelForCausalLM loads; use a decoder-only language model"
        )
    saved_by = config.architectures or []
    classes = causal if isinstance(causal, tuple) else (causal,)
    names = {cls.__name__ for cls in classes if cls is not None}
    # Of a model that sees or hears, transformers reads the language part, where it has a causal class for it.
    heads = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    if saved_by and not any(name in names or name.endswith(heads) for name in saved_by):
        raise UnsupportedModelError(
            f"{known} was saved as {saved_by[0]}, which is not a causal language model; use a decoder with its head"
        )


def _count(module: torch.nn.Module) -> int:
    """Count the parameters of a module, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())
