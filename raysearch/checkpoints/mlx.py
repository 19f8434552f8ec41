"""The properties of layers that mlx-lm derives from a layer's place, and not from the config's lists.

Source: mlx-lm 0.32.2, `mlx_lm/models/`; each rule names its file and line.
"""

from __future__ import annotations

from raysearch.checkpoints.layer_rules import DENSE_LAYERS
from raysearch.checkpoints.periods import EXPERTS, Key, PeriodRule, PlacedRule

VERSION = "0.32.2"
_WINDOWS = "which layers attend to a window only"
_ROTATED = "which layers rotate positions"
_FULL = "which layers attend to all tokens"
_ATTEND = "which layers attend"
_SLIDING = Key("sliding_window_pattern")
_INTERVAL = Key("full_attention_interval")
_STEP = Key("decoder_sparse_step")
_FREQUENCY = Key("moe_layer_freq")
_GROUP = Key("layer_group_size")
#: The key that a config of Ling 3 has and one of Ling 2.5 has not. Both have the model type `bailing_hybrid`.
_CONVOLUTION = Key("short_conv_kernel_size")
PERIODS = (
    PeriodRule(_WINDOWS, -1, _SLIDING, {"gemma3": 6}),  # gemma3_text.py:55
    PeriodRule(_WINDOWS, -1, _SLIDING, {"cohere2": 4}),  # cohere2.py:59
    PeriodRule(_WINDOWS, -1, _SLIDING, {"plamo3": 8}),  # plamo3.py:43
    PeriodRule(_WINDOWS, 0, _SLIDING, {"exaone4": None}, repeats=True),  # exaone4.py:149
    PeriodRule(_WINDOWS, 0, families={"step3p5": 2}, unless=Key("layer_types")),  # step3p5.py:196
    PeriodRule(
        "which layers attend to blocks of tokens", 0, Key("dense_attention_every_n_layers"), {"phi3small": None}
    ),  # phi3small.py:87
    PeriodRule(_ROTATED, -1, families={"llama4": 4}),  # llama4.py:59
    PeriodRule(_ATTEND, -1, _INTERVAL, {"qwen3next": 4}),  # qwen3_next.py:352
    PeriodRule(_ATTEND, -1, _INTERVAL, {"qwen35": 4, "qwen35moe": 4}),  # qwen3_5.py:212
    PeriodRule(
        _ATTEND,
        4,
        Key("attn_layer_period"),
        {"jamba": 8},
        place_key=Key("attn_layer_offset"),
        unless=Key("layers_block_type"),
    ),  # jamba.py:54
    PeriodRule(_ATTEND, 1, Key("mamba_step"), {"plamo2": 2}),  # plamo2.py:373, with the step of all PLaMo 2
    PeriodRule(_FULL, -1, _GROUP, {"bailinghybrid": None}, rest=True),  # bailing_hybrid.py:527, bailing_moe_v3.py:66
    PeriodRule(_FULL, -1, _GROUP, {"bailingmoelinear": None}, rest=True),  # bailing_moe_linear.py:435
    PeriodRule(EXPERTS, -1, Key("interleave_moe_layer_step"), {"llama4": None}),  # llama4.py:182
    PeriodRule(
        EXPERTS, 1, Key("expert_layer_period"), {"jamba": 2}, place_key=Key("expert_layer_offset")
    ),  # jamba.py:260
    PeriodRule(EXPERTS, -1, Key("moe_layer_interval"), {"ernie45moe": None}),  # ernie4_5_moe.py:184
    PeriodRule(EXPERTS, -1, _STEP, {"qwen3moe": None, "qwen3vlmoe": None}, as_list=DENSE_LAYERS),  # qwen3_moe.py:166
    PeriodRule(EXPERTS, -1, _STEP, {"qwen3next": None}, as_list=DENSE_LAYERS),  # qwen3_next.py:363
    PeriodRule(EXPERTS, -1, _STEP, {"klear": None}, as_list=DENSE_LAYERS),  # Klear.py:163
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"deepseek": None}),  # deepseek.py:180
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"deepseekv2": None}),  # deepseek_v2.py:352
    PeriodRule(EXPERTS, 0, _FREQUENCY, dict.fromkeys(("deepseekv3", "kimik2", "joyaillmflash"))),  # deepseek_v3.py:301
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"deepseekv32": None, "glmmoedsa": None}),  # deepseek_v32.py:401
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"glm4moelite": None}),  # glm4_moe_lite.py:303
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"kimilinear": None}),  # kimi_linear.py:401
    PeriodRule(EXPERTS, 0, _FREQUENCY, {"kimik3": None}),  # kimi_k3.py:674
    PeriodRule(
        "which layers begin a block of residuals", 0, Key("attn_res_block_size"), {"kimik3": None}
    ),  # kimi_k3.py:687
    PeriodRule(
        "which layers have keys of their own", 0, Key("cla_share_factor"), {"hunyuan": 2}, only_with=Key("use_cla")
    ),  # hunyuan.py:253
    PeriodRule("which layer has the first values", 0, families={"rwkv7": 0}),  # rwkv7.py:272
)
PLACED = (
    PlacedRule("how fast a layer forgets", ("bailinghybrid",), unless=_CONVOLUTION),  # bailing_hybrid.py:379
    PlacedRule("how fast a layer forgets", ("bailingmoelinear",)),  # bailing_moe_linear.py:271
    PlacedRule(
        "which layer predicts further tokens",  # layer 61, whatever the depth: it does not load those of other numbers
        ("deepseekv3", "kimik2", "joyaillmflash"),
        only_with=Key("num_nextn_predict_layers"),
    ),  # deepseek_v3.py:479
)
