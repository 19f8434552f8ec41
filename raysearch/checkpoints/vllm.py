"""The properties of layers that vLLM derives from a layer's place alone, and not from the config's lists.

Source: vLLM 0.32.0, `vllm/model_executor/models/` and `vllm/models/`; each rule names its file and line.
"""

from __future__ import annotations

from pathlib import Path

from raysearch.checkpoints.checkpoint import read_decoder_config
from raysearch.checkpoints.periods import Key, PeriodRule, family_of, misread
from raysearch.core.mask import Mask
from raysearch.core.site import Sites

_EXPERTS = "which layers have experts"
_STEP = Key("decoder_sparse_step")
_INTERVAL = Key("moe_layer_interval")
_FREQUENCY = Key("moe_layer_freq")
#: Without a value of the key, a rule does not hold.
PERIODS = (
    PeriodRule("which layers attend to a window only", 0, families={"gptoss": 2}, windows=True),  # gpt_oss.py:176
    PeriodRule(_EXPERTS, -1, Key("interleave_moe_layer_step"), {"llama4": None}),  # llama4.py:342
    PeriodRule(_EXPERTS, -1, _STEP, {"qwen2moe": None}),  # qwen2_moe.py:319
    PeriodRule(_EXPERTS, -1, _STEP, {"qwen3moe": None, "qwen3vlmoe": None}),  # qwen3_moe.py:391
    PeriodRule(_EXPERTS, -1, _STEP, {"qwen3next": None}),  # qwen3_next.py:494
    PeriodRule(_EXPERTS, -1, _STEP, {"k2horizon": None}),  # k2_horizon.py:1000
    PeriodRule(_EXPERTS, -1, _STEP, {"interns1pro": None}),  # interns1_pro.py:416
    PeriodRule(_EXPERTS, -1, _INTERVAL, {"ernie45moe": None}),  # ernie45_moe.py:346
    PeriodRule(_EXPERTS, -1, _INTERVAL, {"ernie45vlmoe": None}),  # ernie45_vl_moe.py:434
    PeriodRule(_EXPERTS, 0, _FREQUENCY, {"deepseekv2": None, "deepseekv3": None}),  # deepseek_v2.py:1296
    PeriodRule(_EXPERTS, 0, _FREQUENCY, {"kimik2": None}),  # deepseek_v2.py:1296
    PeriodRule(_EXPERTS, 0, _FREQUENCY, {"deepseekv32": None, "glmmoedsa": None}),  # deepseek_v32/nvidia/model.py:94
    PeriodRule(_EXPERTS, 0, _FREQUENCY, {"dots3note": None}),  # dots3_note/nvidia/model.py:541
    PeriodRule(_EXPERTS, 0, _FREQUENCY, {"glm4moelite": None}),  # glm4_moe_lite.py:171
    PeriodRule(_EXPERTS, 0, _FREQUENCY, {"axk1": None}),  # AXK1.py:650
    PeriodRule(
        "which layers attend to all tokens",
        -1,
        Key("layer_group_size"),
        {"bailinghybrid": None, "bailingmoelinear": None},
    ),  # bailing_moe_linear.py:72
)


def misread_by_vllm(folder: Path, mask: Mask, sites: Sites) -> str | None:
    """Return why vLLM would run another model than a pruned checkpoint.

    Args:
        folder: The checkpoint.
        mask: The removed layers.
        sites: The sites of the dense model.

    Returns:
        What vLLM does, as the end of a sentence; None if it would run this model.
    """
    config = read_decoder_config(folder)
    return misread(PERIODS, family_of(config["model_type"]), config, sites.kept_layers(mask), sites.n_layers)
