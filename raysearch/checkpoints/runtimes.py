"""The runtimes that run an exported model, and what their rules of place leave of the masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.checkpoints import layer_rules, llama_cpp, vllm
from raysearch.checkpoints.periods import Get, PeriodRule, family_of, periods_of
from raysearch.core.place_limits import PlaceLimits

#: The rules of each runtime by the name that users type.
_RULES: Mapping[str, tuple[str, Sequence[PeriodRule]]] = {
    "transformers": ("transformers", layer_rules.PERIODS),
    "vllm": ("vLLM 0.32.0", vllm.PERIODS),
    "llama.cpp": ("llama.cpp b11549", llama_cpp.PERIODS),
    "mlx": ("MLX", ()),
}
RUNTIMES = _RULES


@dataclass(frozen=True)
class Values:
    """The values of a model that rules read.

    Args:
        family: The model's family, see `family_of`.
        get: Returns the value of a key.
        is_gguf: Whether these are the metadata of a GGUF file.
    """

    family: str
    get: Get
    is_gguf: bool = False

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Values:
        """Return the values of a config, or of its part that describes the decoder."""
        return cls(family_of(config["model_type"]), lambda key: config.get(key.config or ""))


def place_limits(values: Values, n_layers: int, runtimes: Sequence[str]) -> PlaceLimits:
    """Return what the rules of place of runtimes leave of the masks of a model.

    Args:
        values: The values of the model.
        n_layers: N, the layers of the model.
        runtimes: The names of the runtimes.

    Returns:
        The limits of masks that all of these runtimes run as they are.
    """
    limits = PlaceLimits()
    for runtime in runtimes:
        title, rules = _RULES[runtime]
        for period in periods_of(rules, values.family, values.get):
            as_list = period.rule.as_list
            if period.length == 1 or (as_list is not None and (values.is_gguf or runtime == "transformers")):
                continue
            reason = f"{title} derives {period.rule.about} from their places, {period.text}"
            if period.length == 0:
                limits |= PlaceLimits(protected=frozenset({period.place % n_layers}), reasons=(reason,))
            else:
                limits |= PlaceLimits(group=period.length, reasons=(reason,))
    return limits
