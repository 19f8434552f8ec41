"""The properties of layers that llama.cpp derives from a layer's place alone, such as which attend to a sliding window.

Names of architectures have letters and digits only, since transformers and llama.cpp separate their parts differently.

Source: llama.cpp's `src/models/*.cpp` at commit 0c1e57098; tests run build b11549.
"""

from __future__ import annotations

from raysearch.checkpoints.periods import EXPERTS, Key, ListForm, PeriodList, PeriodRule, family_of

VERSION = "b11549"
_WINDOWS = "which layers attend to a window only"
_ROTATED = "which layers rotate positions"
_ATTEND = "which layers attend"
_SLIDING = Key("sliding_window_pattern", "attention.sliding_window_pattern")
_INTERVAL = Key("full_attention_interval", "full_attention_interval")
#: The lists that llama.cpp reads instead of a period, with the first build that reads them for all architectures.
_SLIDING_LIST = PeriodList(_SLIDING, ListForm.FLAGS, since=11040)
_RECURRENT_LIST = PeriodList(Key(gguf="attention.recurrent_layers"), ListForm.FLAGS, since=9509)
#: The default periods, in layers. The last layer of each period, or the first, attends to all tokens.
_LAST_OF = {"gemma2": 2, "gptoss": 2, "cohere2": 4, "exaone4": 4, "exaonemoe": 4, "olmo2": 4, "mellum": 4, "afmoe": 4}
_LAST_OF |= {"llama4": 4, "museglimmer": 4, "gemma3n": 5, "gemma3": 6, "gemmaembedding": 6, "plamo3": 8}
_FIRST_OF = {"smallthinker": 4, "laguna": 4, "cohere2moe": 4, "modernbert": 3}
#: The default periods of models of which one layer in each period attends.
_RECURRENT = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax01": 8}
PERIODS = (
    PeriodRule(_WINDOWS, -1, _SLIDING, _LAST_OF, windows=True, as_list=_SLIDING_LIST),
    PeriodRule(_WINDOWS, 0, _SLIDING, _FIRST_OF, windows=True, as_list=_SLIDING_LIST),
    PeriodRule(_ROTATED, -1, families={"smollm3": 4, "afmoe": 4}),
    PeriodRule(_ROTATED, -1, families={"llama4": 4}, windows=True),
    PeriodRule(_ROTATED, -1, families={"llama4": 0}, windows=False),
    PeriodRule(_ROTATED, 0, families={"smallthinker": 4}, windows=True),
    PeriodRule(_ATTEND, -1, _INTERVAL, _RECURRENT, as_list=_RECURRENT_LIST),
    PeriodRule(_ATTEND, -1, _INTERVAL),
    PeriodRule(EXPERTS, -1, Key("interleave_moe_layer_step", "interleave_moe_layer_step")),
    PeriodRule(EXPERTS, 1, Key("moe_every_n_layers", "moe_every_n_layers")),
    PeriodRule(
        "which layers begin a block of residuals",
        0,
        Key("block_size", "attn_res.block_size"),
        {"kimik3": None},
    ),
)
#: Numbers of layers by which llama.cpp recognises a certain model, which it computes differently. Within a group, the
#: computation is the same.
DEPTHS = {
    "gemma2": [{46}],
    "gemma3": [{62}],
    "exaone4": [{64}],
    "deepseek2": [{26, 27}, {48}],
    "baichuan": [{32}, {40}],
}
#: Architectures to which llama.cpp gives another name than transformers.
RENAMED = {"olmo3": "olmo2", "deepseekv2": "deepseek2", "deepseekv3": "deepseek2"}


def is_computed_differently(architecture: str, n_layers: int, n_kept: int) -> bool:
    """Return whether llama.cpp computes models of two depths by different rules.

    Args:
        architecture: The name of the architecture.
        n_layers: The number of layers of one model.
        n_kept: The number of layers of the other model.

    Returns:
        Whether the two models are computed differently.
    """
    groups = DEPTHS.get(family_of(architecture), ())
    return any((n_layers in depths) != (n_kept in depths) for depths in groups)
