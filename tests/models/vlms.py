"""Tiny random models that read images, with processors made here: a tokenizer of bytes and a small image processor."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForMultimodalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.llava.processing_llava import LlavaProcessor

from raysearch.models.spec import ModelSpec
from tests.models.families import _HEAD, _SLIDING, _VISION, _WIDTHS

#: The tokens of images, after 3 special tokens and 256 bytes.
IMAGE = 259
_SPECIALS = ["<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<boi>", "<eoi>", "<end>"]
TEXT = {**_WIDTHS, "vocab_size": 272, "max_position_embeddings": 512}
CHAT_TEMPLATE = (
    "{% for turn in messages %}{{ turn.role }}:{% for part in turn.content %}"
    "{% if part.type == 'image' %}<image>{% else %} {{ part.text }}{% endif %}{% endfor %}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, with the special tokens of the processors here."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(_SPECIALS)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={f"{name}_token": f"<{name}>" for name in ("image", "boi", "eoi")},
    )


def _llava() -> Any:
    return LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        byte_tokenizer(),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def _idefics3() -> Any:
    images = Idefics3ImageProcessorPil(size={"longest_edge": 56}, max_image_size={"longest_edge": 28})
    return Idefics3Processor(images, byte_tokenizer(), image_seq_len=1)


def _gemma3() -> Any:
    return Gemma3Processor(
        Gemma3ImageProcessorPil(size={"height": 28, "width": 28}), byte_tokenizer(), image_seq_length=4
    )


#: By kind, the settings of the config and the processor.
VLMS: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "llava": (
        {
            "text_config": {"model_type": "llama", **TEXT},
            "vision_config": {"model_type": "clip_vision_model", **_VISION},
            "image_token_index": IMAGE,
        },
        _llava,
    ),
    "idefics3": (
        {
            "text_config": {"model_type": "llama", **TEXT},
            "vision_config": _VISION,
            "image_token_id": IMAGE,
            "scale_factor": 2,
        },
        _idefics3,
    ),
    "gemma3": (
        {
            "text_config": {**TEXT, **_HEAD, **_SLIDING},
            "vision_config": _VISION,
            "mm_tokens_per_image": 4,
            "image_token_index": IMAGE,
        },
        _gemma3,
    ),
}


def build(kind: str, settings: dict[str, Any]) -> PreTrainedModel:
    """Return a random model of a kind that reads images, whose layers and images all matter to its logits."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForMultimodalLM.from_config(
        AutoConfig.for_model(kind, **settings), dtype=torch.float32
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.eval().requires_grad_(False)


def processor_of(kind: str, chats: bool = True) -> Any:
    """Return the processor of a model.

    Args:
        kind: One of `VLMS`.
        chats: Whether it has a chat template.

    Returns:
        The processor.
    """
    processor = VLMS[kind][1]()
    processor.chat_template = CHAT_TEMPLATE.replace("<image>", processor.image_token) if chats else None
    return processor


def write_vlm(folder: Path, kind: str, chats: bool = True) -> ModelSpec:
    """Write a tiny model that reads images, and its processor.

    Args:
        folder: The folder.
        kind: One of `VLMS`.
        chats: Whether its processor has a chat template.

    Returns:
        The model.
    """
    settings, _ = VLMS[kind]
    build(kind, settings).save_pretrained(folder)
    processor_of(kind, chats).save_pretrained(folder)
    return ModelSpec(kind, str(folder), device="cpu")


def write_photos(folder: Path, sizes: Sequence[tuple[int, int]] = ((40, 28), (28, 56), (30, 30))) -> Path:
    """Write random images, and rows that ask about them; the last row has two images.

    Args:
        folder: The folder.
        sizes: The width and the height of each image, in pixels.

    Returns:
        The file of the rows.
    """
    (folder / "pictures").mkdir(parents=True)
    random = np.random.default_rng(0)
    names = [f"pictures/{index}.png" for index in range(len(sizes))]
    for name, (width, height) in zip(names, sizes, strict=True):
        Image.fromarray(random.integers(256, size=(height, width, 3), dtype=np.uint8)).save(folder / name)
    rows: list[dict[str, Any]] = [
        {"image": name, "question": f"Which picture is this, number {index}?", "answer": "red" + index * " and blue"}
        for index, name in enumerate(names)
    ]
    rows.append({"image": names[:2], "question": "Are they alike?", "answer": "no"})
    file = folder / "photos.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file
