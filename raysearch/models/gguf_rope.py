"""Sets the rotary embeddings of a config as its GGUF file describes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raysearch.models.gguf_content import FREQUENCIES, LONG_FACTORS, SHORT_FACTORS, GGUFContent

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

#: Llama 3's `low_freq_factor` and `high_freq_factor`: the context before scaling divided by these is the wavelength
#: above which frequencies are divided, or below which they stay.
_LOW = 1.0
_HIGH = 4.0
_CONTEXTS = [2**power for power in range(4, 21)]  # possible contexts before scaling, in tokens
#: The architectures whose class in transformers can rotate a part of a head, though the config names no such part.
_PARTLY_ROTATED = ("phi3", "minimax-m2")


def set_rope(config: PreTrainedConfig, content: GGUFContent) -> None:
    """Set the rotary embeddings of a config: base, share of a head's width, and scaling.

    Layers with a window have a separate base and no scaling.

    Args:
        config: The config that transformers has read from the file. It is changed in place.
        content: The metadata of the file.

    Raises:
        UnsupportedModelError: The model's class in transformers has no such rotary embeddings.
    """
    values = {key.removeprefix("rope."): value for key, value in content.values.items() if key.startswith("rope.")}
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None:
        if content.factors or _scaling(config, content, values) != {"rope_type": "default"}:
            raise content.refused("its rotary embeddings have no place in its class in transformers")
        return
    window_parameters = parameters.get("sliding_attention")
    full_parameters = parameters.get("full_attention") or parameters
    if window_parameters is not None:
        window_parameters["rope_theta"] = values.pop("freq_base_swa", 10_000.0)
    full_parameters["rope_theta"] = values.pop("freq_base", 10_000.0)
    width = head_width(config)
    n_rotated = values.pop("dimension_count", width)
    if n_rotated != int(width * full_parameters.get("partial_rotary_factor", 1.0)):
        if "partial_rotary_factor" not in full_parameters and content.architecture not in _PARTLY_ROTATED:
            raise content.refused(f"{content.architecture}.rope.dimension_count={n_rotated} is not a head's {width}")
        full_parameters["partial_rotary_factor"] = _share(n_rotated, width)
    if "mrope_section" in full_parameters:
        values.pop("dimension_sections", None)  # transformers reads it
    full_parameters.update(_scaling(config, content, values))
    if values:
        raise content.refused(f"{content.architecture}.rope.{next(iter(values))} is not read from GGUF files")


def _share(n_rotated: int, width: int) -> float:
    """Return the rotated share of a head's width, for which transformers computes `n_rotated` as int(width * share)."""
    share = n_rotated / width
    return share if int(width * share) == n_rotated else math.nextafter(share, 1)


def _scaling(config: PreTrainedConfig, content: GGUFContent, values: dict[str, Any]) -> dict[str, Any]:
    """Return the scaling of rotary embeddings for transformers, and remove its keys from the values."""
    factor = values.pop("scaling.factor", 0.0) or values.pop("scale_linear", 0.0)
    kind = values.pop("scaling.type", "linear")  # llama.cpp reads a factor without a type as linear
    values.pop("scaling.finetuned", None)
    context = values.pop("scaling.original_context_length", getattr(config, "max_position_embeddings", None))
    attention_factor = values.pop("scaling.attn_factor", 1.0) * values.pop("scaling.yarn_attn_factor", 1.0)
    if kind == "longrope" or LONG_FACTORS in content.factors:
        if hasattr(config, "original_max_position_embeddings"):
            config.original_max_position_embeddings = context
        return {
            "rope_type": "longrope",
            "original_max_position_embeddings": context,
            "long_factor": content.factors[LONG_FACTORS].tolist(),
            "short_factor": content.factors[SHORT_FACTORS].tolist(),
            "attention_factor": attention_factor,
        }
    is_scaled = kind != "none" and factor not in (0.0, 1.0)
    if kind == "yarn" and is_scaled:
        if values.pop("scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0) or FREQUENCIES in content.factors:
            raise content.refused("its YaRN has an extrapolation factor or divided frequencies")
        if values.pop("scaling.yarn_log_multiplier", 0.0):
            raise content.refused("its YaRN has a multiplier of logarithms")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": context,
            "beta_fast": values.pop("scaling.yarn_beta_fast", 32.0),
            "beta_slow": values.pop("scaling.yarn_beta_slow", 1.0),
            "attention_factor": attention_factor * (1 + 0.1 * math.log(factor)),
        }
    if attention_factor != 1.0 or kind not in ("none", "linear", "yarn"):
        raise content.refused(f"its rotary embeddings are scaled by {kind}, attention factor {attention_factor:g}")
    divisors = content.factors.get(FREQUENCIES)
    if divisors is not None and not np.all(divisors == 1):
        if is_scaled:
            raise content.refused(f"it scales its rotary embeddings by {kind} and by {FREQUENCIES}")
        return _llama3_scaling(content, divisors)
    return {"rope_type": "linear", "factor": factor} if is_scaled else {"rope_type": "default"}


def _llama3_scaling(content: GGUFContent, divisors: NDArray[np.float32]) -> dict[str, Any]:
    """Return the parameters of Llama 3's scaling that give these divisors of frequencies; refuse other divisors.

    Source: ``rope_type: llama3`` of transformers. Frequencies with a wavelength below a fourth of the context before
    scaling stay; those with a wavelength above that context are divided by the factor; the others are interpolated.
    """
    base = content.values.get("rope.freq_base", 10_000.0)
    wavelengths = 2 * np.pi * base ** (np.arange(len(divisors)) / len(divisors))
    factor = float(divisors.max())
    for context in _CONTEXTS:
        share = ((context / wavelengths - _LOW) / (_HIGH - _LOW)).clip(0, 1)  # of a frequency that stays
        expected = 1 / ((1 - share) / factor + share)
        if np.allclose(expected, divisors, rtol=1e-5, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": context,
            }
    raise content.refused(f"{FREQUENCIES} divides frequencies in another way than Llama 3 does")


def head_width(config: PreTrainedConfig) -> int:
    """Return the width of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
