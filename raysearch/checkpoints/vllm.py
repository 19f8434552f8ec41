"""The properties of layers that vLLM derives from a layer's place, and not from the config's lists.

Source: vLLM 0.32.0, `vllm/model_executor/models/` and `vllm/models/`; each rule names its file and line.
"""

from __future__ import annotations

from raysearch.checkpoints.layer_rules import DENSE_LAYERS
from raysearch.checkpoints.periods import EXPERTS, Key, PeriodRule, PlacedRule

VERSION = "0.32.0"
_WINDOWS = "which layers attend to a window only"
_FULL = "which layers attend to all tokens"
_INDEX = "which layers choose the tokens to attend to"
_BLOCKS = "which layers begin a block of residuals"
_STEP = Key("decoder_sparse_step")
_INTERVAL = Key("moe_layer_interval")
_FREQUENCY = Key("moe_layer_freq")
_BLOCK = Key("attn_res_block_size")
_GROUP = Key("layer_group_size")
_INDEX_FREQUENCY = Key("index_topk_freq")
_INDEX_OFFSET = Key("index_skip_topk_offset")
_INDEX_PATTERN = Key("index_topk_pattern")
#: The key that a config of Ling 3 has and one of Ling 2.5 has not. Both have the model type `bailing_hybrid`.
_CONVOLUTION = Key("short_conv_kernel_size")
#: Without a value of the key, a rule does not hold.
PERIODS = (
    PeriodRule(_WINDOWS, 0, families={"gptoss": 2}, windows=True),  # gpt_oss.py:176
    PeriodRule(_WINDOWS, 0, families={"step3p5": 2}, windows=True, unless=Key("layer_types")),  # step3p5.py:154
    PeriodRule(_WINDOWS, 0, Key("interleaved_sliding_window"), repeats=True),  # openpangu.py:468 and 619
    PeriodRule(EXPERTS, -1, Key("interleave_moe_layer_step"), {"llama4": None}),  # llama4.py:342
    PeriodRule(EXPERTS, -1, _STEP, {"qwen2moe": None}, as_list=DENSE_LAYERS),  # qwen2_moe.py:319
    PeriodRule(
        EXPERTS, -1, _STEP, dict.fromkeys(("qwen3moe", "qwen3vlmoe", "qwen3omnimoe")), as_list=DENSE_LAYERS
    ),  # qwen3_moe.py:391
    PeriodRule(EXPERTS, -1, _STEP, {"qwen3next": None}, as_list=DENSE_LAYERS),  # qwen3_next.py:494
    PeriodRule(EXPERTS, -1, _STEP, {"k2horizon": None}, as_list=DENSE_LAYERS),  # k2_horizon.py:1000
    PeriodRule(EXPERTS, -1, _STEP, {"interns1pro": None}, as_list=DENSE_LAYERS),  # interns1_pro.py:416
    PeriodRule(EXPERTS, -1, _INTERVAL, {"ernie45moe": None}),  # ernie45_moe.py:346
    PeriodRule(EXPERTS, -1, _INTERVAL, {"ernie45vlmoe": None}),  # ernie45_vl_moe.py:434
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"deepseekv2": None, "deepseekv3": None}),  # deepseek_v2.py:1296
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"kimik2": None}),  # deepseek_v2.py:1296
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"deepseekv32": None, "glmmoedsa": None}),  # deepseek_v32/nvidia/model.py:94
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"dots3note": None}),  # dots3_note/nvidia/model.py:541
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"glm4moelite": None}),  # glm4_moe_lite.py:171
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"axk1": None}),  # AXK1.py:650
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"kimilinear": None, "kimik3": None}),  # kimi_k3/nvidia/model.py:879
    PeriodRule(
        EXPERTS,
        0,
        _FREQUENCY,
        {"sarvammoe": None, "sarvammla": None},
        place_key=Key("first_k_dense_replace"),
    ),  # sarvam.py:411
    PeriodRule(_BLOCKS, 0, _BLOCK, {"kimilinear": None, "kimik3": None}),  # kimi_k3/nvidia/model.py:975
    PeriodRule(
        _INDEX,
        -1,
        _INDEX_FREQUENCY,
        {"deepseekv32": None, "glmmoedsa": None},
        start=2,
        start_key=_INDEX_OFFSET,
        unless=_INDEX_PATTERN,
    ),  # deepseek_v32/attention.py:172
    PeriodRule(_FULL, -1, _GROUP, {"bailingmoelinear": None}),  # bailing_moe_linear.py:72
    PeriodRule(_FULL, -1, _GROUP, {"bailinghybrid": None, "bailingmoev3": None}, rest=True),  # bailing_moe_v3.py:136
)
PLACED = (
    PlacedRule(
        "how fast a layer forgets", ("bailinghybrid", "bailingmoelinear"), unless=_CONVOLUTION
    ),  # layers/mamba/linear/bailing_linear_attn.py:482
    PlacedRule("which experts a layer shares", ("interns2mobius",), by_depth=False),  # interns2_mobius.py:268
)
