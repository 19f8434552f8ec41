"""Copies the other files of a checkpoint to its export: tokenizer, processor, chat templates, code."""

from __future__ import annotations

import json
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


def mend_tokenizer_config(folder: Path) -> None:
    """Rewrite ``tokenizer_config.json`` so that transformers 4 reads it too.

    Args:
        folder: The folder of the file; nothing happens if it has none.
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
    if config != written:
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
