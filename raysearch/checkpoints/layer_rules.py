"""The rules by which the values of a model change when layers are removed, for config.json and GGUF files.

A model has values that depend on its layers: lists with a value for each layer, lists of layers, numbers of leading
layers. The first rule for a key whose kind fits the value says how it changes. `PERIODS` are the values from which
transformers derives properties of layers by their places.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.periods import EXPERTS, Key, ListForm, PeriodList, PeriodRule, PlacedRule
from raysearch.core.mask import PARTS, Part
from raysearch.errors import UnsupportedModelError


@dataclass(frozen=True)
class KeptLayers:
    """The layers of a pruned model.

    Args:
        indices: The indices of the kept layers in the dense model, ascending.
        n_layers: N, the layers of the dense model.
        n_predicting: The layers after these, which predict further tokens and stay.
    """

    indices: Sequence[int]
    n_layers: int
    n_predicting: int = 0

    @property
    def blocks(self) -> tuple[int, ...]:
        """The indices of the kept layers and of those that predict further tokens, ascending."""
        return (*self.indices, *range(self.n_layers, self.n_layers + self.n_predicting))

    def number_of(self, layer: int) -> int | None:
        """Return the number of a layer in the pruned model; None if it is removed."""
        if layer >= self.n_layers:
            return len(self.indices) + layer - self.n_layers
        return self.indices.index(layer) if layer in self.indices else None

    def renumbered(self, layers: Sequence[int], first: int = 0) -> list[int]:
        """Return new numbers of layers.

        Args:
            layers: Numbers of layers in the dense model.
            first: The number of the first layer.

        Returns:
            The numbers of those layers that are kept, in the pruned model.
        """
        return [self.indices.index(layer - first) + first for layer in layers if layer - first in self.indices]


class Kind(Enum):
    """How a value depends on layers."""

    BY_LAYER = "a list with a value for each layer"
    BY_LAYER_AND_HEAD = "a list with a value for each layer, and for each head that predicts further tokens"
    LETTERS = "a text with a letter for each layer"
    INDICES = "an ascending list of layers"
    NUMBERS = "a list of layers, which start at 1"
    NUMBERS_BY_KIND = "lists of layers, which start at 1, by the name of their kind"
    LISTS_BY_NAME = "a dict with lists that have a value for each layer, among other values"
    BY_NUMBER = "a dict with the values of some layers, by their numbers"
    SOURCES = "a list with another layer, or none, for each layer"
    REPEATED = "a list that is repeated until each layer has a value"
    LEADING = "the number of first layers that are of another kind"
    LAST = "the last layer that is of another kind"
    ROOT_OF_DEPTH = "a number that is proportional to the root of the number of layers"
    FIXED = "a value that describes the dense model only"
    STAYS = "a value that does not depend on layers"


@dataclass(frozen=True)
class LayerRule:
    """How the value of a key changes.

    Args:
        kind: How the value depends on layers.
        config: The key in ``config.json``, as a regular expression; None if the rule does not hold for configs.
        gguf: The key in a GGUF file after the architecture's prefix, as a regular expression; None if the rule does not
            hold for GGUF files.
        families: Model types of transformers, or architectures of llama.cpp, that have the key; empty if the rule holds
            for keys of many names.
        reason: Why the model cannot be pruned, if its value describes the dense model only.
    """

    kind: Kind
    config: str | None = None
    gguf: str | None = None
    families: tuple[str, ...] = ()
    reason: str = ""


#: In this order.
RULES = (
    LayerRule(Kind.STAYS, r"_.*|.*token_ids?", r"(.*[._])?sections?"),
    LayerRule(Kind.STAYS, "num_nextn_predict_layers", "nextn_predict_layers", ("deepseek2", "glm4moe", "qwen35")),
    LayerRule(Kind.NUMBERS, "ple_layer_ids", families=("qwen4_exp_text",)),
    LayerRule(
        Kind.FIXED,
        gguf=r"ple\.layers",
        families=("qwen4exp",),
        reason="its layers with embeddings of their own are listed by number",
    ),
    LayerRule(
        Kind.FIXED,
        gguf="embedding_length_per_layer_input",
        families=("gemma3n", "gemma4"),
        reason="each of its layers has an embedding of its own in one tensor",
    ),
    LayerRule(
        Kind.FIXED,
        gguf=r"attention\.shared_kv_layers",
        families=("gemma3n", "gemma4"),
        reason="its last layers share the keys of others",
    ),
    LayerRule(
        Kind.FIXED,
        gguf="rescale_every_n_layers",
        families=("rwkv6", "rwkv7"),
        reason="its weights are scaled by their places",
    ),
    LayerRule(
        Kind.FIXED,
        gguf="n_deepstack_layers",
        families=("qwen3vl", "qwen3vlmoe"),
        reason="its first layers are given pictures",
    ),
    LayerRule(
        Kind.FIXED, gguf=r"hrm\.layers_per_stack", families=("hrm_text",), reason="its layers are run more than once"
    ),
    LayerRule(Kind.BY_NUMBER, "per_layer_config", families=("gemma4_text",)),
    LayerRule(Kind.LISTS_BY_NAME, "sparse_attention_config", families=("minimax_m3_vl_text",)),
    LayerRule(Kind.SOURCES, "kv_source_layers", families=("mistral_large4_text",)),
    LayerRule(Kind.BY_LAYER_AND_HEAD, "compress_ratios", families=("deepseek_v4",)),
    LayerRule(Kind.INDICES, r".*(layer|idx|indices).*"),
    LayerRule(Kind.BY_LAYER, ".*", ".*"),
    LayerRule(Kind.STAYS, gguf=r"(rope|vision|audio)\..*"),
    LayerRule(Kind.LETTERS, r".*(?<!sliding_window)_pattern"),  # "LLLG" is a period
    LayerRule(Kind.REPEATED, "block_types", families=("recurrent_gemma",)),
    LayerRule(
        Kind.LEADING,
        "first_k_dense_replace",
        "leading_dense_block_count",
        ("deepseek_v3", "glm4_moe", "dots1", "deepseek2", "glm4moe"),
    ),
    LayerRule(Kind.LEADING, "num_dense_layers", "leading_dense_block_count", ("lfm2_moe", "afmoe", "lfm2moe")),
    LayerRule(Kind.LEADING, "moe_layer_start_index", "leading_dense_block_count", ("ernie4_5_moe", "ernie4_5-moe")),
    LayerRule(Kind.LEADING, "max_window_layers", families=("qwen2", "qwen3")),
    LayerRule(Kind.LEADING, "num_hash_layers", "hash_layer_count", ("deepseek_v4",)),
    LayerRule(Kind.LAST, "moe_layer_end_index", families=("ernie4_5_moe",)),
    LayerRule(Kind.ROOT_OF_DEPTH, "scale_depth", families=("minicpm3",)),
    LayerRule(Kind.NUMBERS_BY_KIND, "linear_attn_config", families=("kimi_linear",)),
)

#: The list that an export has in place of a period of experts. transformers, vLLM and MLX read it.
DENSE_LAYERS = PeriodList(Key("mlp_only_layers"), ListForm.EXCEPTIONS)
#: The periods that transformers reads from a config. It writes other periods, such as `sliding_window_pattern`, as a
#: list of `layer_types` itself.
PERIODS = (
    PeriodRule(
        EXPERTS,
        -1,
        Key("decoder_sparse_step"),
        as_list=DENSE_LAYERS,
    ),
    PeriodRule(
        EXPERTS,
        -1,
        Key("interleave_moe_layer_step"),
        as_list=PeriodList(Key("moe_layers"), ListForm.OTHERS),
    ),
    PeriodRule(EXPERTS, -1, Key("moe_layer_interval"), {"ernie45moe": None}),
    PeriodRule(EXPERTS, 1, Key("expert_layer_period"), {"jamba": 2}, place_key=Key("expert_layer_offset")),
    PeriodRule("which layers attend", 4, Key("attn_layer_period"), {"jamba": 8}, place_key=Key("attn_layer_offset")),
    PeriodRule("which layers begin a block of residuals", 0, Key("n_layers_per_attn_res_block"), {"inkling2": 6}),
)
_GEMMA4 = ("gemma4", "gemma4unified", "embeddinggemma2", "diffusiongemma")
#: The properties that transformers gives to the first or the last layer of a model.
#: Source: transformers 5.23.0, `models/`.
ENDS = (
    PeriodRule(
        "which layers attend to all tokens", -1, families=dict.fromkeys(_GEMMA4, 0)
    ),  # gemma4/configuration_gemma4.py:200, and the same line of the others
    PeriodRule(
        "which layer adds a bias", -1, families={"gptneoxjapanese": 0}
    ),  # gpt_neox_japanese/modeling_gpt_neox_japanese.py:318
    PeriodRule("which layer begins with a norm", 0, families={"rwkv": 0}),  # rwkv/modeling_rwkv.py:331
)
#: The properties that transformers computes from a layer's place.
#: Source: transformers 5.23.0, `models/`.
PLACED = (
    PlacedRule("how fast a layer forgets", ("minimax",)),  # minimax/modeling_minimax.py:153
    PlacedRule(
        "the scale of a layer's attention",
        ("gpt2",),
        by_depth=False,
        only_with=Key("scale_attn_by_inverse_layer_idx"),
    ),  # gpt2/modeling_gpt2.py:99
)

#: The names of values that describe the MLPs of layers, and of those that describe the attentions, in this order.
_OF_MLPS = re.compile(r".*(mlp|moe|expert|dense|ffn|feed_forward|intermediate|swiglu|xielu|sparsity|hash).*")
_OF_ATTENTIONS = re.compile(
    r".*(layer_types|block_type|att|rope|window|sliding|head|kv|index|local|global|full|hybrid|linear|recurrent|conv|ssm"
    r"|mamba|compress).*"
)


def described_part(name: str) -> Part | None:
    """Return the half of a layer that a value describes, by its name in a config; None if unknown."""
    if _OF_MLPS.fullmatch(name):
        return "mlp"
    return "attention" if _OF_ATTENTIONS.fullmatch(name) else None


def config_rule(name: str, value: Any, layers: KeptLayers) -> LayerRule | None:
    """Return the rule for a value of a config, in a file or in memory.

    Args:
        name: The name of the value.
        value: The value.
        layers: The layers of the pruned model.

    Returns:
        The rule; None if no rule holds for the value.
    """
    return next((rule for rule in RULES if _holds(rule.config, name, rule.kind, value, layers)), None)


def gguf_rule(key: str, value: Any, layers: KeptLayers) -> LayerRule | None:
    """Return the rule for a value of a GGUF file.

    Args:
        key: The key, without the architecture's prefix.
        value: The value.
        layers: The layers of the pruned model.

    Returns:
        The rule; None if no rule holds for the value.
    """
    return next((rule for rule in RULES if _holds(rule.gguf, key, rule.kind, value, layers)), None)


def cut_value(kind: Kind, value: Any, layers: KeptLayers) -> Any:
    """Return a value for the kept layers.

    Args:
        kind: How the value depends on layers.
        value: The value in the dense model, of a type and a length that fit the kind.
        layers: The layers of the pruned model.

    Returns:
        The value; that of the dense model if it describes that only, or does not depend on layers.
    """
    kept_layers = layers.indices
    match kind:
        case Kind.BY_LAYER:
            return [value[block] for block in layers.blocks if block < len(value)]
        case Kind.BY_LAYER_AND_HEAD:
            return [*(value[layer] for layer in kept_layers), *value[layers.n_layers :]]
        case Kind.LETTERS:
            return "".join(value[layer] for layer in kept_layers)
        case Kind.INDICES:
            return layers.renumbered(value)
        case Kind.NUMBERS:
            return layers.renumbered(value, first=1)
        case Kind.NUMBERS_BY_KIND:
            return {
                name: layers.renumbered(numbers, first=1) if isinstance(numbers, list) else numbers
                for name, numbers in value.items()
            }
        case Kind.LISTS_BY_NAME:
            return {
                name: cut_value(Kind.BY_LAYER, item, layers) if _fits(Kind.BY_LAYER, item, layers) else item
                for name, item in value.items()
            }
        case Kind.BY_NUMBER:
            places = {layer: place for place, layer in enumerate(kept_layers)}
            return {
                f"{places[int(layer)]:0{len(str(layer))}}": values  # transformers writes numbers of equal width
                for layer, values in value.items()
                if int(layer) in places
            }
        case Kind.SOURCES:
            sources = [value[layer] for layer in kept_layers]
            return [None if source is None else layers.number_of(source) for source in sources]
        case Kind.REPEATED:
            return [value[layer % len(value)] for layer in kept_layers]
        case Kind.LEADING:
            return sum(layer < value for layer in kept_layers)
        case Kind.LAST:
            return sum(layer <= value for layer in kept_layers) - 1
        case Kind.ROOT_OF_DEPTH:
            return value * math.sqrt(len(kept_layers) / layers.n_layers)
        case Kind.FIXED | Kind.STAYS:
            return value


def cut_for_blocks(name: str, kind: Kind, value: Any, kept: KeptBlocks, n_predicting: int = 0) -> Any:
    """Return a value for the layers of a pruned model, whose halves may be from different layers.

    A value of attentions follows the attentions, and one of MLPs follows the MLPs.

    Args:
        name: The name of the value.
        kind: How the value depends on layers.
        value: The value in the dense model, of a type and a length that fit the kind.
        kept: The layers of the pruned model.
        n_predicting: The layers after those of the dense model, which predict further tokens and stay.

    Returns:
        The value, see `cut_value`.

    Raises:
        UnsupportedModelError: It is not known which half the value describes, and the halves of a layer differ in it.
    """
    part = described_part(name)
    parts = PARTS if part is None else [part]
    values = [cut_value(kind, value, KeptLayers(kept.layers_of(part), kept.n_layers, n_predicting)) for part in parts]
    if any(other != values[0] for other in values):
        raise UnsupportedModelError(
            f"{name} describes layers, but not clearly their attentions or their MLPs, and it differs for two halves "
            "that make one layer; use space=layers"
        )
    return values[0]


def _holds(pattern: str | None, name: str, kind: Kind, value: Any, layers: KeptLayers) -> bool:
    """Return whether a rule holds for a value: its name matches a pattern, and its type and length fit the kind."""
    return pattern is not None and re.fullmatch(pattern, name) is not None and _fits(kind, value, layers)


def _fits(kind: Kind, value: Any, layers: KeptLayers) -> bool:
    """Return whether the type and the length of a value are those of a kind."""
    n_layers = layers.n_layers
    match kind:
        case Kind.BY_LAYER:
            return isinstance(value, (list, tuple)) and len(value) in (n_layers, n_layers + layers.n_predicting)
        case Kind.BY_LAYER_AND_HEAD:
            return isinstance(value, (list, tuple)) and len(value) >= n_layers
        case Kind.LETTERS:
            return isinstance(value, str) and len(value) == n_layers
        case Kind.INDICES:
            return isinstance(value, (list, tuple)) and _are_indices(value, n_layers)
        case Kind.SOURCES:
            return isinstance(value, (list, tuple))
        case Kind.NUMBERS_BY_KIND | Kind.LISTS_BY_NAME | Kind.BY_NUMBER:
            return isinstance(value, dict)
        case Kind.LEADING:
            return isinstance(value, int)
        case Kind.LAST:
            return isinstance(value, int) and value >= 0
        case Kind.ROOT_OF_DEPTH:
            return value is not None
        case Kind.NUMBERS | Kind.REPEATED | Kind.FIXED:
            return bool(value)
        case Kind.STAYS:
            return True


def _are_indices(value: Sequence[Any], n_layers: int) -> bool:
    """Return whether a list contains layer indices, as ``mlp_only_layers=[0, 2]``, and not a value for each layer."""
    ascending = all(type(item) is int and 0 <= item < n_layers for item in value) and list(value) == sorted(set(value))
    return ascending and (len(value) < n_layers or list(value) == list(range(n_layers)))
