"""A tiny model on disk with a tokenizer of characters."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

from tests.calibration.tokenizers import PLAIN, characters


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with random weights."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    set_seed(0)
    config = LlamaConfig(
        vocab_size=303,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=300,
        eos_token_id=301,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    characters(template=PLAIN).save_pretrained(folder)
    return folder
