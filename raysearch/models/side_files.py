"""Copies to an export what lies beside the weights of its source: tokenizer, processor, chat templates, code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

#: The files by which texts are written and read.
TEXT_FILES = (
    "generation_config.json",
    "*token*",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates/*",
)
#: The files by which images, videos and sounds are read.
PROCESSOR_FILES = ("*processor*.json", "feature_extractor*.json")
CODE_FILES = ("*.py", "**/*.py")


def copy_files(source: Path, folder: Path, patterns: Iterable[str]) -> None:
    """Copy the files of a folder that patterns fit to another folder, each to the same place in it."""
    for file in {file for pattern in patterns for file in source.glob(pattern) if file.is_file()}:
        place = folder / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


def mend_tokenizer_config(folder: Path, *, own_code: bool) -> None:
    """Write a tokenizer's config so that transformers 4 reads it, too; `own_code`: it may name code that comes with it.

    Without code the names of its classes go, since transformers would look for them where code is trusted.
    """
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return
    written = json.loads(file.read_text(encoding="utf-8"))
    config = dict(written)
    if config.get("tokenizer_class") == "TokenizersBackend":  # the name that transformers 5 gives it
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):  # of which transformers 4 expects a dict
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    if not own_code:
        config.pop("auto_map", None)
    if config != written:
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
