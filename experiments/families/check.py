"""Checks raysearch on one family: losses, exports, reloaded models, files, generation."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging
from typing_extensions import override

import raysearch
from experiments.families import gguf_files, oracle
from experiments.families.checkpoints import (
    auto_class,
    has_causal_class,
    is_multimodal,
    tiny_model,
    tokenizer,
    write_checkpoint,
    write_texts,
)
from experiments.families.results import MaskResult
from raysearch.searchers.base import SearchGenerator

#: The removed layers of each mask: none, the first, the last, a pair and another one in the middle.
MASKS = ((), (0,), (7,), (3, 4, 6))
_NEW_TOKENS = 4
_MOST_TOKENS = 128


@dataclass(frozen=True)
class FixedSearcher(raysearch.Searcher):
    """Proposes one mask.

    Args:
        layers: Its layers.
    """

    layers: tuple[int, ...] = ()

    @override
    def search(self, problem: raysearch.Problem, rng: np.random.Generator) -> SearchGenerator:
        scores = yield raysearch.Round([raysearch.Mask.of(*self.layers)])
        return scores.best(1)[0]


def check_family(family: str, masks: Sequence[Sequence[int]] = MASKS) -> dict[str, Any]:
    """Build a tiny model of a family, and check everything that raysearch does with it.

    Args:
        family: The model type.
        masks: The removed layers of each mask, the empty one first.

    Returns:
        The fields of a `FamilyResult`.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        outcome = _checked(family, Path(folder), masks)
    kind = {"multimodal": is_multimodal(family), "causal": has_causal_class(family)}
    return {**kind, **outcome, "seconds": round(time.monotonic() - start_s, 1)}


def _checked(family: str, folder: Path, masks: Sequence[Sequence[int]]) -> dict[str, Any]:
    dense = folder / family.replace(" ", "-")
    try:
        model = tiny_model(family)
        write_checkpoint(model, dense)
        # What was written is read again, since that is the model that raysearch sees.
        model = auto_class(family).from_pretrained(dense, dtype=torch.float32).eval()
    except Exception as error:
        return {"unbuilt": _sentence(error).replace(str(dense), family)}
    parameters = model.num_parameters()
    texts = write_texts(folder / "texts.jsonl")
    settings = {
        "model": dense,
        "data": "file",
        "data.path": folder / "texts.jsonl",
        "data.sampling": "whole",
        "data.samples": len(texts),
        "data.seq_len": _MOST_TOKENS,
        "cluster": "inline",
        "store": folder / "store",
        "model.cache": False,
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    try:
        scores = raysearch.score(*overrides, masks=[list(mask) for mask in masks])
    except (raysearch.UserError, raysearch.EvaluationError) as error:
        return {"parameters": parameters, "refused": str(error).replace(str(dense), family)}
    rows = [tokenizer()(text)["input_ids"] for text in texts]
    unconverted = _convert_dense(model, dense)
    results = []
    for mask, score in zip(masks, scores, strict=True):
        with oracle.without_layers(model, mask):
            expected = oracle.loss(model, rows)
            result: dict[str, Any] = {"removed": mask, "loss_gap": abs(score.loss - expected) / expected}
            if mask:
                result |= _exported(family, dense, folder / "-".join(map(str, mask)), mask, overrides, model, rows)
        results.append(MaskResult(**result))
    return {"parameters": parameters, "masks": tuple(results), "unconverted": unconverted}


def _convert_dense(model: PreTrainedModel, dense: Path) -> str | None:
    """Write the dense model as a GGUF file beside its folder; return why it cannot be, or None."""
    if not gguf_files.has_converter():
        return None
    try:
        if not gguf_files.is_converted(type(model).__name__):
            return "llama.cpp does not have it"
        gguf_files.convert(dense, _gguf_of(dense))
    except Exception as error:
        _gguf_of(dense).unlink(missing_ok=True)
        return f"llama.cpp's converter refuses the tiny model: {_sentence(error)}"
    return None


def _gguf_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.gguf")


def _exported(
    family: str,
    dense: Path,
    out: Path,
    mask: Sequence[int],
    overrides: Sequence[str],
    masked: PreTrainedModel,
    rows: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """Export a mask, and compare the checkpoint with the masked model and with the dense model's files.

    Args:
        family: The model type.
        dense: The dense model's folder.
        out: The folder to write.
        mask: The removed layers.
        overrides: The settings of the search.
        masked: The model without these layers.
        rows: Tokens.
    """
    try:
        search = raysearch.search(*overrides, "tracking=none", searcher=FixedSearcher(tuple(mask)), remove=len(mask))
        search.export(out)
    except (raysearch.UserError, raysearch.EvaluationError) as error:
        return {"refused": str(error).replace(str(dense), family)}
    equal, wrong = oracle.differing_tensors(dense, out, mask)
    reloaded = auto_class(family).from_pretrained(out, dtype=torch.float32).eval()
    expected = oracle.logits(masked, rows[0])
    gap = (oracle.logits(reloaded, rows[0]) - expected).abs().max() / expected.abs().max()
    return {
        "logit_gap": float(gap),
        "equal_tensors": equal,
        "wrong_tensors": wrong,
        "wrong_files": oracle.differing_files(dense, out),
        "generates": _generates(reloaded, masked, rows[0]),
        **_compared_gguf(search, dense, out),
    }


def _compared_gguf(search: raysearch.Search, dense: Path, pruned: Path) -> dict[str, Any]:
    """Prune the dense model's GGUF file, and compare it with what the converter makes of the pruned checkpoint.

    Args:
        search: The search of the mask.
        dense: The dense model's folder.
        pruned: The exported folder.
    """
    if not _gguf_of(dense).is_file():
        return {}
    file = pruned.with_name(f"{pruned.name}-by-raysearch.gguf")
    try:
        search.export_gguf(file, source=_gguf_of(dense))
    except raysearch.UserError as error:
        return {"gguf": str(error).replace(str(dense), "dense")}
    try:
        gguf_files.convert(pruned, _gguf_of(pruned))
    except Exception as error:
        return {"gguf": False, "wrong_gguf": [f"what the converter does not make ({_sentence(error)})"]}
    wrong = gguf_files.differences(file, _gguf_of(pruned))
    return {"gguf": not wrong, "wrong_gguf": wrong}


def _generates(reloaded: PreTrainedModel, masked: PreTrainedModel, prompt: Sequence[int]) -> bool | str:
    """Return whether a reloaded model continues a prompt as the masked model does, or why it does not.

    The masked model runs without a cache, whose slots are the layers' places in the dense model.

    Args:
        reloaded: The exported model.
        masked: The dense model without the same layers.
        prompt: Tokens.
    """
    expected = oracle.continuation(masked, prompt, _NEW_TOKENS)
    generator: Any = reloaded
    # A family's own settings may force or suppress tokens.
    greedy = GenerationConfig(max_new_tokens=_NEW_TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None)
    try:
        generator.generation_config = greedy
        tokens = generator.generate(torch.tensor([prompt]), generation_config=greedy)
    except Exception as error:
        return _sentence(error)
    if tokens[0, len(prompt) :].tolist() == expected:
        return True
    # Some families select tokens otherwise with a cache than without: that is not of the export.
    same_without_cache = oracle.continuation(reloaded, prompt, _NEW_TOKENS) == expected
    return "with a cache, transformers continues otherwise than without" if same_without_cache else False


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
