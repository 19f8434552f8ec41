"""What the target of a search, the runtimes that are to run its result, leaves of its masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from raysearch.checkpoints.gguf_file import read_gguf
from raysearch.checkpoints.half_formats import formats_of
from raysearch.checkpoints.periods import Values
from raysearch.checkpoints.runtimes import LLAMA_CPP, RUNTIMES, VLLM, place_limits
from raysearch.core.mask import Half
from raysearch.core.place_limits import PlaceLimits
from raysearch.core.space import LAYERS, Space
from raysearch.errors import UserError
from raysearch.models.source import gguf_file
from raysearch.models.spec import ModelInfo
from raysearch.text.numbers import count
from raysearch.text.sentences import as_typed, listed


@dataclass(frozen=True)
class TargetLimits:
    """The limits of a search's target, and how many masks they leave.

    Args:
        runtimes: The names of the runtimes.
        limits: Their limits.
        n_layers: N, the layers of the model.
        n_remove: M, the number of layers to remove; for a range, the largest number.
        n_masks: The number of masks of M layers that the target leaves.
        n_without: The number of masks of M layers without a target.
        space: What the masks remove, and M counts.
    """

    runtimes: tuple[str, ...]
    limits: PlaceLimits
    n_layers: int
    n_remove: int
    n_masks: int
    n_without: int
    space: Space = LAYERS

    @property
    def forbids(self) -> bool:
        """Whether the target forbids a mask."""
        return bool(self.limits.reasons)

    @property
    def override(self) -> str:
        """The target as it is typed."""
        return f"target={as_typed(self.runtimes[0] if len(self.runtimes) == 1 else self.runtimes)}"

    def __str__(self) -> str:
        """Return the limits as a line."""
        if not self.forbids:
            return f"{self.override} forbids no mask of this model"
        clauses = []
        size = self.limits.group
        n_whole = self.n_layers // size * size
        if size > 1:
            first_two = [f"{start}-{start + size - 1}" for start in range(0, n_whole, size)][:2]
            clauses.append(f"allows only groups of {size} layers ({', '.join([*first_two, '…'])})")
        staying = sorted({*self.limits.protected, *range(n_whole, self.n_layers)})
        if staying:
            clauses.append(f"keeps {count(len(staying), 'layer')} {as_typed(staying)}")
        if self.limits.protected_halves:
            clauses.append(f"keeps {listed(sorted(map(str, self.limits.protected_halves)))}")
        if self.limits.refused_depths:
            clauses.append("limits how many layers may go")
        masks = f"{self.n_masks:,} of {self.n_without:,} masks of {self.space.count(self.n_remove)} are left"
        return f"{self.override} {listed(clauses)}: {masks}"

    @property
    def lines(self) -> list[str]:
        """The limits with their reasons, as lines."""
        return [str(self), *(f"  {reason}" for reason in self.limits.reasons)]


def limits_of(info: ModelInfo, runtimes: Sequence[str], setting: str = "target", space: Space = LAYERS) -> PlaceLimits:
    """Return the limits that runtimes set to the masks of a model.

    llama.cpp runs a model that is a GGUF file from a pruned GGUF file. Other runtimes read a pruned checkpoint; so does
    llama.cpp's converter if the model is a checkpoint, or a GGUF file with an adapter.

    Args:
        info: The model.
        runtimes: The names of the runtimes.
        setting: The key by which the user named them, for messages.
        space: What masks can remove.

    Returns:
        The limits of all runtimes together.

    Raises:
        UserError: A runtime has no code for the model, or reads no format that can hold the masks of the space.
    """
    n_layers = info.sites.n_layers
    why_not = {form.name: form.why_not for form in formats_of({**info.config, **info.code}, space)}
    for name in runtimes:
        reason = why_not["gguf" if name == LLAMA_CPP.name else "checkpoint"]
        if reason is not None:
            raise UserError(f"{setting}={name} cannot run masks of space={space.name}: {reason}; use space=pairs")
    file = None if info.model.adapter is not None else gguf_file(info.model)
    for name in runtimes:
        runtime = RUNTIMES[name]
        unknown = None if runtime is LLAMA_CPP and file is not None else runtime.unknown(info.code)
        if unknown is not None and not runtime.fallback:
            raise UserError(f"{setting}={name}: {runtime.text} has no code for {unknown}; leave it out")
    from_checkpoint = [runtime for runtime in runtimes if file is None or runtime != LLAMA_CPP.name]
    limits = place_limits(Values.of_config(info.config), n_layers, from_checkpoint)
    if file is not None and LLAMA_CPP.name in runtimes:
        limits |= _limits_of_gguf(file, n_layers)
    if VLLM.name in runtimes and not space.keeps_blocks:
        reason = f"{VLLM.text} needs the attention of the first layer"  # nemotron_nas.py: residual is None before it
        limits |= PlaceLimits(protected_halves=frozenset({Half(0, "attention")}), reasons=(reason,))
    return limits


@lru_cache(maxsize=1)
def _limits_of_gguf(file: Path, n_layers: int) -> PlaceLimits:
    """Return the limits of a GGUF file in llama.cpp. It is read once, since its vocabulary takes a second."""
    return place_limits(read_gguf(file).values, n_layers, [LLAMA_CPP.name])
