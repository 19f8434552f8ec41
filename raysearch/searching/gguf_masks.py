"""Masks that cannot be exported as a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from raysearch.checkpoints.gguf_pruning import refusals
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.models.file_cache import FileCache, code, user_cache
from raysearch.models.source import gguf_file
from raysearch.models.spec import ModelSpec
from raysearch.searching.settings import SearchSettings


def refused_masks(model: ModelSpec, masks: Sequence[Mask]) -> dict[Mask, str]:
    """Return the masks that `export --gguf` refuses, each with the reason.

    Args:
        model: The model; if it is not a GGUF file, or has an adapter, no mask is refused.
        masks: The masks to check.

    Returns:
        The reason for each refused mask, in the order of `masks`; empty if none is refused.
    """
    source = gguf_file(model)
    if source is None or not source.is_file() or model.adapter is not None:
        return {}
    if model.cache is None:
        return refusals(source, masks)
    cache = FileCache(model.cache)
    key = {"refused": [str(mask) for mask in masks], "file": cache.sha256(source), "code": code()}
    if (cached_bytes := cache.get(key)) is not None:
        return {Mask.parse(mask): reason for mask, reason in json.loads(cached_bytes).items()}
    reasons = refusals(source, masks)
    cache.put(key, json.dumps({str(mask): reason for mask, reason in reasons.items()}).encode())
    return reasons


def refused_masks_of_record(settings: SearchSettings, masks: Sequence[Mask]) -> dict[Mask, str]:
    """Return the masks of a recorded search that `export --gguf` refuses, each with the reason.

    If the file is damaged, or the package that reads it is missing, no mask is returned.

    Args:
        settings: The settings of the search.
        masks: The masks to check.

    Returns:
        The reason for each refused mask; empty if none is refused.
    """
    with suppress(UserError, OSError):
        cache = user_cache() if settings.model_cache else None
        model = ModelSpec(settings.model_name, settings.model_path, cache=cache, adapter=settings.adapter)
        return refused_masks(model, masks)
    return {}
