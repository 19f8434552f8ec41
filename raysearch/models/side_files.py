"""Copies the other files of a checkpoint to its export: tokenizer, processor, chat templates, code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

#: The files that generation, the tokenizer and chat templates need.
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
#: The files that the processor of images, videos and sounds needs.
PROCESSOR_FILES = ("*processor*.json", "feature_extractor*.json")
CODE_FILES = ("*.py", "**/*.py")


def copy_files(source: Path, folder: Path, patterns: Iterable[str]) -> None:
    """Copy files to the same relative paths of another folder.

    Args:
        source: The folder to copy from.
        folder: The folder to copy to.
        patterns: Glob patterns of files.
    """
    for file in {file for pattern in patterns for file in source.glob(pattern) if file.is_file()}:
        copy = folder / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def mend_tokenizer_config(folder: Path, *, own_code: bool) -> None:
    """Rewrite ``tokenizer_config.json`` so that transformers 4 reads it too.

    Args:
        folder: The folder of the file; nothing happens if it has none.
        own_code: Whether the folder contains the code of the tokenizer's class. If not, the config must not name such
            code, since transformers would look for it if remote code is trusted.
    """
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return
    written = json.loads(file.read_text(encoding="utf-8"))
    config = dict(written)
    if config.get("tokenizer_class") == "TokenizersBackend":  # a name of transformers 5
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):  # transformers 4 expects a dict under this name
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    if not own_code:
        config.pop("auto_map", None)
    if config != written:
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
