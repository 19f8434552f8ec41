"""The properties of layers that llama.cpp derives from a layer's place alone, such as which attend to a sliding window.

Names of architectures have letters and digits only, since transformers and llama.cpp separate their parts differently.

Source: llama.cpp's `src/models/*.cpp` at commit 0c1e57098; tests run build b11549.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.core.mask import Mask
from raysearch.core.site import Sites

SLIDING_PATTERN = "attention.sliding_window_pattern"
RECURRENT_LAYERS = "attention.recurrent_layers"
#: The first builds that read the list of windows, or of recurrent layers, for all architectures that have one.
_WINDOWS_SINCE = 11040
_RECURRENT_SINCE = 9509
_WINDOW = "attention.sliding_window"
#: The default periods, in layers. The last layer of each period, or the first, attends to all tokens.
_LAST_OF = {"gemma2": 2, "gptoss": 2, "cohere2": 4, "exaone4": 4, "exaonemoe": 4, "olmo2": 4, "mellum": 4, "afmoe": 4}
_LAST_OF |= {"llama4": 4, "museglimmer": 4, "gemma3n": 5, "gemma3": 6, "gemmaembedding": 6, "plamo3": 8}
_FIRST_OF = {"smallthinker": 4, "laguna": 4, "cohere2moe": 4, "modernbert": 3}
_ALWAYS_WINDOWS = ("gemma2", "llama4", "exaonemoe", "gemma3n")  # also if the file does not give their width
#: The place of the layer in each period of four that does not rotate positions. A Llama 4 without windows has one such
#: layer, the last of the model.
_UNROTATED = {"smollm3": -1, "llama4": -1, "afmoe": -1, "smallthinker": 0}
# Periods; one layer in each attends.
_RECURRENT = {
    "qwen3next": 4,
    "qwen35": 4,
    "qwen35moe": 4,
    "qwen4exp": 4,
    "minimax01": 8,
}
#: Numbers of layers by which llama.cpp recognises a certain model, which it computes differently. Within a group, the
#: computation is the same.
_DEPTHS = {
    "gemma2": [{46}],
    "gemma3": [{62}],
    "exaone4": [{64}],
    "deepseek2": [{26, 27}, {48}],
    "baichuan": [{32}, {40}],
}
#: Architectures to which llama.cpp gives another name than transformers.
_RENAMED = {"olmo3": "olmo2", "deepseekv2": "deepseek2", "deepseekv3": "deepseek2"}


@dataclass(frozen=True)
class Rule:
    """One layer in each period is of another kind than the rest.

    Args:
        about: The property of a layer, for a sentence.
        key: The metadata's key of the period; None if llama.cpp reads no such key.
        period: The period, in layers; 0 for the number of the model's layers.
        other_place: The place of that layer in a period: 0 for the first, 1 for the second, -1 for the last.
        list_key: The metadata's key of a list that llama.cpp reads instead of the period, with one value for each
            layer, as in `flags`; None if llama.cpp reads no such list.
        since: The first build of llama.cpp that reads the list.
    """

    about: str
    key: str | None
    period: int
    other_place: int
    list_key: str | None = None
    since: int = 0

    def flags(self, n_layers: int) -> list[bool]:
        """Return one value for each layer of a model: False if the rule gives it the other kind."""
        period = self.period or n_layers
        return [index % period != self.other_place % period for index in range(n_layers)]

    def changes(self, kept_layers: Sequence[int], n_layers: int) -> bool:
        """Return whether a kept layer is of another kind at its new place.

        Args:
            kept_layers: The indices of the kept layers in the dense model, ascending.
            n_layers: N, the layers of the dense model.

        Returns:
            Whether llama.cpp would run a kept layer as a layer of another kind.
        """
        flags = self.flags(n_layers)
        return [flags[layer] for layer in kept_layers] != self.flags(len(kept_layers))


def rules_of(architecture: str, get: Callable[[str], Any]) -> list[Rule]:
    """Return the rules that hold for a model.

    Args:
        architecture: The name of the architecture.
        get: Returns the metadata's value of a key, or None.

    Returns:
        The rules; empty if all layers are alike.
    """
    name = _letters(architecture)
    rules: list[Rule] = []

    def add(
        about: str, key: str | None, default: int | None, other_place: int, list_key: str | None = None, since: int = 0
    ) -> None:
        """Add a rule whose period is the value of a key, or the default; without either there is no rule."""
        value = None if key is None else get(key)
        period = value if isinstance(value, int) and value else default
        if period is not None:
            rules.append(Rule(about, key, period, other_place, list_key, since))

    window = get(_WINDOW)
    periods = _LAST_OF | _FIRST_OF
    if name in periods and (window or (window is None and name in _ALWAYS_WINDOWS)):
        other_place = -1 if name in _LAST_OF else 0
        about = "which layers attend to a window only"
        add(about, SLIDING_PATTERN, periods[name], other_place, SLIDING_PATTERN, _WINDOWS_SINCE)
    if name in _UNROTATED and (window or name != "smallthinker"):
        period = 0 if name == "llama4" and window == 0 else 4
        add("which layers rotate positions", None, period, _UNROTATED[name])
    if name in _RECURRENT:
        period = _RECURRENT[name]
        add("which layers attend", "full_attention_interval", period, -1, RECURRENT_LAYERS, _RECURRENT_SINCE)
    else:
        add("which layers attend", "full_attention_interval", None, -1)
    add("which layers have experts", "interleave_moe_layer_step", None, -1)
    add("which layers have experts", "moe_every_n_layers", None, 1)
    if name == "kimik3":
        add("which layers begin a block of residuals", "attn_res.block_size", None, 0)
    return rules


def is_computed_differently(architecture: str, n_layers: int, n_kept: int) -> bool:
    """Return whether llama.cpp computes models of two depths by different rules.

    Args:
        architecture: The name of the architecture.
        n_layers: The number of layers of one model.
        n_kept: The number of layers of the other model.

    Returns:
        Whether the two models are computed differently.
    """
    groups = _DEPTHS.get(_letters(architecture), ())
    return any((n_layers in depths) != (n_kept in depths) for depths in groups)


def misread_by_llama_cpp(folder: Path, mask: Mask, sites: Sites) -> str | None:
    """Return why llama.cpp would run another model than a pruned checkpoint, once that is converted.

    Rules apply here even if llama.cpp could read a list of layers instead, since its converter writes no such list for
    most architectures.

    Args:
        folder: The checkpoint.
        mask: The removed layers.
        sites: The sites of the dense model.

    Returns:
        What llama.cpp does, as the end of a sentence; None if no rule of this module applies.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config") or config
    n_layers = sites.n_layers
    kept_layers = sites.kept_layers(mask)
    kind = _letters(config["model_type"].removesuffix("_text"))
    kind = _RENAMED.get(kind, kind)
    if is_computed_differently(kind, n_layers, len(kept_layers)):
        return f"computes a {config['model_type']} of {n_layers} layers differently from one of {len(kept_layers)}"
    for rule in rules_of(kind, lambda key: config.get(key.rpartition(".")[2])):
        if rule.changes(kept_layers, n_layers):
            return f"derives {rule.about} from their places, which have changed"
    return None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
