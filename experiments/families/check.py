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
from typing_extensions import override

import raysearch
from experiments.families import oracle
from experiments.families.checkpoints import auto_class, is_multimodal, tiny_model, tokenizer, write_checkpoint, write_texts
from experiments.families.results import MaskResult
from raysearch.searchers.base import SearchGenerator
from transformers import PreTrainedModel
from transformers.utils import logging

#: The removed layers of each mask: none, the first, the middle, the last, a pair, scattered ones.
MASKS = ((), (0,), (4,), (7,), (2, 3), (1, 4, 6))
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


def check_family(family: str) -> dict[str, Any]:
    """Build a tiny model of a family, and check everything that raysearch does with it.

    Args:
        family: The model type.

    Returns:
        The fields of a `FamilyResult`.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        seen = _checked(family, Path(folder))
    return {"multimodal": is_multimodal(family), **seen, "seconds": round(time.monotonic() - start_s, 1)}


def _checked(family: str, folder: Path) -> dict[str, Any]:
    dense = folder / family.replace(" ", "-")
    try:
        model = tiny_model(family)
        write_checkpoint(model, dense)
        # What was written is read again, since that is the model that raysearch sees.
        model = auto_class(family).from_pretrained(dense, dtype=torch.float32).eval()
        oracle.logits(model, [3, 4, 5])
    except Exception as error:
        return {"unbuilt": _sentence(error)}
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
        scores = raysearch.score(*overrides, masks=[list(mask) for mask in MASKS])
    except (raysearch.UserError, raysearch.EvaluationError) as error:
        return {"parameters": parameters, "refused": str(error).replace(str(dense), family)}
    rows = [tokenizer()(text)["input_ids"] for text in texts]
    results = []
    for mask, score in zip(MASKS, scores, strict=True):
        with oracle.without_layers(model, mask):
            expected = oracle.loss(model, rows)
            result = {"removed": mask, "loss_gap": abs(score.loss - expected) / expected}
            if mask:
                result |= _exported(family, dense, folder / "-".join(map(str, mask)), mask, overrides, model, rows)
        results.append(MaskResult(**result))
    return {"parameters": parameters, "masks": tuple(results)}


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
    }


def _generates(reloaded: PreTrainedModel, masked: PreTrainedModel, prompt: Sequence[int]) -> bool | str:
    expected = oracle.continuation(masked, prompt, _NEW_TOKENS)
    generator: Any = reloaded
    try:
        tokens = generator.generate(
            torch.tensor([prompt]), max_new_tokens=_NEW_TOKENS, min_new_tokens=_NEW_TOKENS, do_sample=False
        )
    except Exception as error:
        return _sentence(error)
    return tokens[0, len(prompt) :].tolist() == expected


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
