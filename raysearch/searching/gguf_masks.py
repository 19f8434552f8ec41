"""Masks that cannot be exported as a GGUF file: a warning before the first round, and a mark in tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from raysearch.core.mask import Mask
from raysearch.core.problem import AUTO, Problem, sizes_of
from raysearch.errors import UserError
from raysearch.models.file_cache import FileCache, code, user_cache
from raysearch.models.gguf_pruning import refusals
from raysearch.models.source import gguf_file
from raysearch.models.spec import ModelSpec
from raysearch.searching.settings import SearchSettings

if TYPE_CHECKING:
    from raysearch.searching.observer import Observer


def refused_masks(model: ModelSpec, masks: Sequence[Mask]) -> dict[Mask, str]:
    """Return the masks that `export --gguf` refuses, each with the reason.

    Args:
        model: The model; if it is not a GGUF file, no mask is refused.
        masks: The masks to check.

    Returns:
        The reason for each refused mask, in the order of `masks`; empty if none is refused.
    """
    source = gguf_file(model)
    if source is None or not source.is_file():
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
        return refused_masks(ModelSpec(settings.model_name, settings.model_path, cache=cache), masks)
    return {}


def warn_of_refused_masks(model: ModelSpec, problem: Problem, remove: int | str, observer: Observer) -> None:
    """Warn if `export --gguf` would refuse some or all masks of a search.

    Args:
        model: The model.
        problem: The space of legal masks.
        remove: The number of layers to remove, a range, or ``"auto"``.
        observer: Gets the warning.
    """
    sizes = range(1, problem.n_remove + 1) if remove == AUTO else sizes_of(remove)
    # No layer changes its position.
    ends = [problem.sites.last(size) for size in sizes]
    moved = [Mask.of(0, *list(end)[1:]) for end in ends]  # every layer moves by one position
    refused = refused_masks(model, [*ends, *moved])
    if refused:
        quantity = "all masks" if all(end in refused for end in ends) else "some masks"
        observer.warn(f"export --gguf will refuse {quantity} of this search: {next(iter(refused.values()))}")
