"""The properties of layers that vLLM derives from a layer's place alone, and not from the config's lists.

Source: vLLM 0.32.0, `vllm/model_executor/models/` and `vllm/models/`; each rule names its file and line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raysearch.core.mask import Mask
from raysearch.core.site import Sites

_ATTENTION = "which layers attend to all tokens"
_EXPERTS = "which layers have experts"


@dataclass(frozen=True)
class _Rule:
    """One layer in each period is of another kind than the rest.

    Args:
        kinds: The values of ``model_type`` for which the rule holds.
        about: The property of a layer, for a sentence.
        key: The config's key of the period, in layers. Without a value there, the rule does not hold.
        other_place: The place of that layer in a period: 0 for the first, -1 for the last.
        period: The period, if it is not the key's value.
    """

    kinds: tuple[str, ...]
    about: str
    key: str
    other_place: int
    period: int | None = None

    def changes(self, period: int, kept_layers: Sequence[int]) -> bool:
        """Return whether a kept layer is of another kind at its new place.

        Args:
            period: The period, in layers.
            kept_layers: The indices of the kept layers in the dense model, ascending.
        """
        other_place = self.other_place % period
        return any(
            (layer % period == other_place) != (index % period == other_place)
            for index, layer in enumerate(kept_layers)
        )


_RULES = (
    _Rule(("gpt_oss",), "which layers attend to a window only", "sliding_window", 0, 2),  # gpt_oss.py:176
    _Rule(("llama4_text",), _EXPERTS, "interleave_moe_layer_step", -1),  # llama4.py:342
    _Rule(("qwen2_moe",), _EXPERTS, "decoder_sparse_step", -1),  # qwen2_moe.py:319
    _Rule(("qwen3_moe", "qwen3_vl_moe_text"), _EXPERTS, "decoder_sparse_step", -1),  # qwen3_moe.py:391
    _Rule(("qwen3_next",), _EXPERTS, "decoder_sparse_step", -1),  # qwen3_next.py:494
    _Rule(("k2_horizon",), _EXPERTS, "decoder_sparse_step", -1),  # k2_horizon.py:1000
    _Rule(("interns1_pro_text",), _EXPERTS, "decoder_sparse_step", -1),  # interns1_pro.py:416
    _Rule(("ernie4_5_moe",), _EXPERTS, "moe_layer_interval", -1),  # ernie45_moe.py:346
    _Rule(("ernie4_5_vl_moe_text",), _EXPERTS, "moe_layer_interval", -1),  # ernie45_vl_moe.py:434
    _Rule(("deepseek_v2", "deepseek_v3", "kimi_k2"), _EXPERTS, "moe_layer_freq", 0),  # deepseek_v2.py:1296
    _Rule(("deepseek_v32", "glm_moe_dsa"), _EXPERTS, "moe_layer_freq", 0),  # deepseek_v32/nvidia/model.py:94
    _Rule(("dots3_note",), _EXPERTS, "moe_layer_freq", 0),  # dots3_note/nvidia/model.py:541
    _Rule(("glm4_moe_lite",), _EXPERTS, "moe_layer_freq", 0),  # glm4_moe_lite.py:171
    _Rule(("axk1",), _EXPERTS, "moe_layer_freq", 0),  # AXK1.py:650
    _Rule(("bailing_hybrid", "bailing_moe_linear"), _ATTENTION, "layer_group_size", -1),  # bailing_moe_linear.py:72
)


def misread_by_vllm(folder: Path, mask: Mask, sites: Sites) -> str | None:
    """Return why vLLM would run another model than a pruned checkpoint.

    Args:
        folder: The checkpoint.
        mask: The removed layers.
        sites: The sites of the dense model.

    Returns:
        What vLLM does, as the end of a sentence; None if no rule of this module applies.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config") or config
    kept_layers = sites.kept_layers(mask)
    for rule in _RULES:
        if config["model_type"] not in rule.kinds:
            continue
        period = config.get(rule.key)
        if period and rule.period:
            period = rule.period
        if isinstance(period, int) and period > 0 and rule.changes(period, kept_layers):
            return f"derives {rule.about} from their places, which have changed"
    return None
