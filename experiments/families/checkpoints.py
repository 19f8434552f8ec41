"""Writes the checkpoint of a tiny model: weights, tokenizer, and stand-ins for the other files of a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from experiments.families.settings import SETTINGS
from experiments.families.shrinking import N_TEXT_IDS, VOCABULARY, tiny_config

#: Files that an export must copy as they are. Their content is of no model, so that nothing can write them anew.
SIDE_FILES = {
    "chat_template.jinja": "{% for message in messages %}{{ message['content'] }}  \n{% endfor %}",
    "preprocessor_config.json": '{"image_mean": [0.5],\t"own": "é"}\n\n',
    "processor_config.json": '{ "processor_class": "Own",  "image_seq_len": 4 }',
    "video_preprocessor_config.json": "{}\n",
    "additional_chat_templates/tool_use.jinja": "{{ tools }}\n",
    "LICENSE": "A licence.\r\n",
}
#: A model with more parameters is not tiny.
_MOST_PARAMETERS = 16_000_000


def families() -> list[str]:
    """Return all model types of transformers with a class of causal or of multimodal language models."""
    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES})


def is_multimodal(family: str) -> bool:
    """Return whether a family's models also read images or sounds, or are tuned for them."""
    return family in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES


def has_causal_class(family: str) -> bool:
    """Return whether transformers has a class of causal language models for a family."""
    return family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def auto_class(family: str) -> Any:
    """Return the class of transformers that saves and loads a family's whole model."""
    return AutoModelForMultimodalLM if is_multimodal(family) else AutoModelForCausalLM


def tiny_model(family: str) -> PreTrainedModel:
    """Return a random model of a family, the same at every call, in float32.

    Raises:
        ValueError: The model is not tiny.
    """
    config = tiny_config(family, SETTINGS.get(family, {}))
    with torch.device("meta"):
        n_parameters = sum(weights.numel() for weights in auto_class(family).from_config(config).parameters())
    if n_parameters > _MOST_PARAMETERS:
        raise ValueError(f"it has {n_parameters:,} parameters")
    torch.manual_seed(0)
    model: PreTrainedModel = auto_class(family).from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        # Wider than the usual initialisation, so that every layer matters to the logits.
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.eval().requires_grad_(False)


def write_checkpoint(model: PreTrainedModel, folder: Path) -> None:
    """Write a model with its tokenizer and the side files to a folder.

    Args:
        model: The model.
        folder: The folder.
    """
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    for name, content in SIDE_FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content.encode())


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, with one merge, and no special tokens."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    n_first = N_TEXT_IDS - 2  # those of ASCII among them
    words = [*symbols[:n_first], "Ġ", "th", *symbols[n_first : VOCABULARY - 2]]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    backend = Tokenizer(models.BPE(vocabulary, [("t", "h")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def write_texts(file: Path) -> list[str]:
    """Write texts of different lengths as rows of a JSONL file, and return them."""
    texts = [
        "The people of the United States have a right to know.",
        "Peace with all nations, and honest friendship with each of them.",
        "We the people.",
        "Fellow citizens of the Senate and of the House of Representatives",
    ]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return texts
