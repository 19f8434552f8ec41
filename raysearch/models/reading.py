"""Reads the files of models with transformers: quietly, safely, and with errors that are one sentence."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysearch.checkpoints.gguf_reader import read_fast
from raysearch.checkpoints.quiet import quiet
from raysearch.core.hub import is_asked, why_no_answer
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.spec import LocatedModel
from raysearch.text.sentences import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

#: The files of a repository that hold the model in other formats.
_OTHER_FORMATS = ["*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx*", "*.msgpack", "*.h5", "original/*", "consolidated*"]


@contextlib.contextmanager
def reading(model: LocatedModel, part: str = "") -> Iterator[None]:
    """Let transformers read a model quietly within the context, and turn its errors into one sentence.

    Args:
        model: The model.
        part: The part that is read, for messages: ``the tokenizer of ``.

    Raises:
        UserError: transformers cannot read the model.
    """
    try:
        with quiet(), read_fast() if model.gguf else contextlib.nullcontext():
            yield
    except UserError:
        raise
    except BaseException as error:
        # The other exceptions must pass, except that of tokenizers' code in Rust.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise _explained(error, model, part) from error


def _explained(error: BaseException, model: LocatedModel, part: str) -> UserError:
    """Return one sentence about an error of transformers, with a remedy."""
    text = str(error)
    reason = first_line(error).split(". ")[0]
    name = f"{part}model={model.name}" + (f" ({model.path})" if model.path != model.name else "")
    failed = f"{name} cannot be loaded"
    if "trust_remote_code" in text:
        return UserError(f"{name} brings its own code; read it, then set model.trust_remote_code=true")
    if isinstance(error, (ValueError, ImportError)) and "ttention" in text:
        return UserError(
            f"model.attention={model.attention} does not work for {name}: {reason}; use model.attention=auto"
        )
    if "ignore_mismatched_sizes" in text:
        return UserError(f"{failed}: its weights have other shapes than its config says; complete the files")
    if "does not recognize this architecture" in text:
        return UnsupportedModelError(f"{name} is of a kind that this transformers does not know: {reason}")
    if part and _lacks_tokenizer(model):
        return UserError(
            f"{failed}: its folder has no tokenizer.json; copy the tokenizer's files of the original model there"
        )
    if isinstance(error, ImportError):
        return UserError(f"{failed}: {reason}; install what it names")
    return UserError(f"{failed}: {reason}; check that its files are complete and of this format")


def _lacks_tokenizer(model: LocatedModel) -> bool:
    """Return whether a model is a folder without the vocabulary of a tokenizer."""
    is_folder = not model.is_hub and model.gguf is None
    return is_folder and not any((*model.folder.glob("tokenizer.json"), *model.folder.glob("*.model")))


def check_code(model: LocatedModel) -> None:
    """Refuse a folder that names code of another repository, which may change while the fingerprint stays.

    Raises:
        UserError: The folder names such code, and `trust_remote_code` allows code.
    """
    if not model.trust_remote_code or model.is_hub:
        return
    for name in ("config.json", "tokenizer_config.json"):
        file = model.folder / name
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if not isinstance(config, dict):
            continue
        for value in (config.get("auto_map") or {}).values():
            class_paths = value if isinstance(value, list) else [value]
            for class_path in class_paths:
                if class_path and "--" in class_path:
                    raise UserError(
                        f"model={model.name} names code of another repository in {name} ({class_path}), which may "
                        "change without notice; copy that file into the model's folder and name it there, without "
                        "'owner/repo--'"
                    )


def model_class(config: PreTrainedConfig) -> Any:
    """Return transformers' class that loads a whole model with its language head.

    It is the class for causal language models, or the one for models that also read images or sounds, if transformers
    has no causal class for them.

    Args:
        config: The model's config.
    """
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_MULTIMODAL_LM_MAPPING,
        AutoModelForCausalLM,
        AutoModelForMultimodalLM,
    )

    is_causal = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None) is not None
    is_multimodal = MODEL_FOR_MULTIMODAL_LM_MAPPING.get(type(config), None) is not None
    return AutoModelForMultimodalLM if is_multimodal and not is_causal else AutoModelForCausalLM


def loaded_class(config: PreTrainedConfig) -> type | None:
    """Return the class of transformers that a model becomes; None if its class is in the checkpoint's own code.

    Args:
        config: The model's config.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING

    mappings: list[Any] = [MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING]
    kinds = [mapping.get(type(config), None) for mapping in mappings]
    return next((kind for kind in kinds if isinstance(kind, type)), None)


def takes_images(kind: type) -> bool:
    """Return whether the forward of a model's class has an argument for images."""
    names = inspect.signature(kind.forward).parameters  # type: ignore[attr-defined]
    return any("pixel" in name or "image" in name for name in names)


def check_causal(model: LocatedModel, config: PreTrainedConfig) -> None:
    """Refuse encoder-decoders, and checkpoints that were not saved by a causal or a multimodal language model.

    Args:
        model: The model.
        config: The model's config.

    Raises:
        UnsupportedModelError: The model is not a causal decoder.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING

    name = f"model={model.name} ({config.model_type})"
    if config.is_encoder_decoder or config.get_text_config().is_encoder_decoder:
        raise UnsupportedModelError(f"{name} is an encoder-decoder; use a decoder-only language model")
    classes: list[Any] = []
    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING):
        mapped = mapping.get(type(config), None)
        classes += mapped if isinstance(mapped, tuple) else [mapped]
    class_names = {cls.__name__ for cls in classes if cls is not None}
    if not class_names and "AutoModelForCausalLM" not in (getattr(config, "auto_map", None) or {}):
        raise UnsupportedModelError(
            f"{name} is no model that transformers' AutoModelForCausalLM loads; use a decoder-only language model"
        )
    saved_by = config.architectures or []
    heads = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    if saved_by and not any(class_name in class_names or class_name.endswith(heads) for class_name in saved_by):
        raise UnsupportedModelError(
            f"{name} was saved as {saved_by[0]}, which is not a causal language model; use a decoder with its head"
        )


def check_quantisation(model: LocatedModel, config: PreTrainedConfig) -> None:
    """Refuse quantised weights of a method that transformers does not know, since it would read them as plain ones.

    Args:
        model: The model.
        config: The model's config.

    Raises:
        UserError: transformers does not know the method.
    """
    from transformers.quantizers.auto import AutoHfQuantizer

    quantisation = quantisation_of(config)
    if quantisation is not None and not AutoHfQuantizer.supports_quant_method(quantisation):
        raise UserError(
            f"transformers does not know the quantisation {quantisation.get('quant_method')} of model={model.name}; "
            "use the model before it was quantised"
        )


def quantisation_of(config: PreTrainedConfig) -> dict[str, Any] | None:
    """Return the description of quantised weights in a config that was just read; None if they are not quantised."""
    return getattr(config, "quantization_config", None) or getattr(
        config.get_text_config(), "quantization_config", None
    )


def pretrained_arguments(model: LocatedModel) -> dict[str, Any]:
    """Return the arguments for `from_pretrained`, so that every call reads the same files."""
    files: dict[str, Any] = {
        "pretrained_model_name_or_path": model.location,
        "trust_remote_code": model.trust_remote_code,
    }
    if model.gguf is not None:
        files["gguf_file"] = model.gguf
    if model.is_hub:
        files |= {"revision": model.revision or "main", "local_files_only": not hub_answers(model)}
    return files


def hub_answers(model: LocatedModel) -> bool:
    """Return whether the hub answers; if it does not, refuse a model that is not in its cache.

    Raises:
        UserError: The hub does not answer and the model is not in its cache, or the revision is malformed.
    """
    from huggingface_hub import try_to_load_from_cache

    revision = model.revision
    if revision is not None and (".." in revision or revision.startswith("/")):  # it would lead out of the cache
        raise UserError(f"model.revision={revision} names no branch, tag or commit; see the model's page on the hub")
    cause: Exception | None = None
    if is_asked():
        cause = why_no_answer()
        if cause is None:
            return True
    try:
        cached = try_to_load_from_cache(model.location, "config.json", revision=revision)
    except ValueError as error:  # the id is malformed
        cached = None
        cause = error
    if isinstance(cached, str):
        return False
    raise UserError(
        f"model={model.name} is neither a folder nor reachable on the Hugging Face hub as {model.location!r}; "
        "check the name and the network, or give the path of a local folder"
    ) from cause


def commit_of(model: LocatedModel) -> str:
    """Return the commit of a hub id whose config is in the hub's cache. transformers does not report the commit."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model.location, "config.json", revision=model.revision)
    assert isinstance(config, str), "the config has been read"
    return Path(config).parent.name


def folder_of_checkpoint(model: LocatedModel) -> Path:
    """Return the folder with all files of a model. Of a hub id, files in other formats are not downloaded.

    Args:
        model: The model, whose location is a folder or a hub id.

    Raises:
        UserError: The files cannot be downloaded.
    """
    if not model.is_hub:
        return model.folder
    from huggingface_hub import snapshot_download

    with reading(model):
        folder = snapshot_download(
            model.location,
            revision=commit_of(model),
            ignore_patterns=_OTHER_FORMATS,
            local_files_only=not hub_answers(model),
        )
    return Path(folder)


def tokenizer_class(model: LocatedModel) -> Any:
    """Return the class that reads the tokenizer. For a copy of a GGUF file, it is often one that needs no torch."""
    if model.is_copy:
        tokenizer_config = json.loads((model.folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        if tokenizer_config.get("tokenizer_class") == "TokenizersBackend":
            from transformers import TokenizersBackend

            return TokenizersBackend
    from transformers import AutoTokenizer  # this imports torch, to read the model's config

    return AutoTokenizer


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 of everything that decides how a tokenizer turns text into token ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
        # Padding and truncation are settings of the last call, not of the tokenizer.
        content["padding"] = content["truncation"] = None
    else:
        content = tokenizer.get_vocab()
    text = json.dumps([content, tokenizer.special_tokens_map], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
