"""What llama.cpp derives from a layer's place alone, such as which layers attend to a sliding window.

Architectures are written in letters and digits alone, since transformers and llama.cpp part them otherwise.

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

SLIDING_PATTERN = "attention.sliding_window_pattern"
RECURRENT_LAYERS = "attention.recurrent_layers"
#: The first builds that read the list of windows, and of recurrent layers, for all architectures that have it.
_WINDOWS_SINCE, _RECURRENT_SINCE = 11040, 9509
_WINDOW = "attention.sliding_window"
#: One layer in so many attends to everything, where the file does not say: the last of them, or the first.
_LAST_OF = {"gemma2": 2, "gptoss": 2, "cohere2": 4, "exaone4": 4, "exaonemoe": 4, "olmo2": 4, "mellum": 4, "afmoe": 4}
_LAST_OF |= {"llama4": 4, "museglimmer": 4, "gemma3n": 5, "gemma3": 6, "gemmaembedding": 6, "plamo3": 8}
_FIRST_OF = {"smallthinker": 4, "laguna": 4, "cohere2moe": 4, "modernbert": 3}
_ALWAYS_WINDOWS = ("gemma2", "llama4", "exaonemoe", "gemma3n")  # also where the file does not say how wide
#: One layer in four; the last of all layers of a Llama 4 without windows.
_UNROTATED = {"smollm3": -1, "llama4": -1, "afmoe": -1, "smallthinker": 0}
_RECURRENT = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax01": 8}  # all but one in so many
#: Numbers of layers that llama.cpp takes for a certain model, which it computes in another way; alike in each group.
_DEPTHS = {
    "gemma2": [{46}],
    "gemma3": [{62}],
    "exaone4": [{64}],
    "deepseek2": [{26, 27}, {48}],
    "baichuan": [{32}, {40}],
}
#: Architectures that llama.cpp names in another way than transformers.
_RENAMED = {"olmo3": "olmo2", "deepseekv2": "deepseek2", "deepseekv3": "deepseek2"}


@dataclass(frozen=True)
class Rule:
    """One layer in `period` is of another kind: the first, 0, the second, 1, or the last, -1.

    Args:
        about: The kind, for a sentence.
        key: The metadata's key of the period; None where llama.cpp reads none.
        period: In layers; 0 for as many as the model has.
        list_key: The metadata's key of a list that llama.cpp reads in place of the period, a value a layer as in
            `flags`; None where it reads none.
        since: The first build of llama.cpp that reads the list.
    """

    about: str
    key: str | None
    period: int
    other: int
    list_key: str | None = None
    since: int = 0

    def flags(self, n_layers: int) -> list[bool]:
        """Return for each place of a model whether a layer there is not of the other kind."""
        period = self.period or n_layers
        return [place % period != self.other % period for place in range(n_layers)]

    def changes(self, kept: Sequence[int], n_layers: int) -> bool:
        """Return whether layers are of another kind at the places that they get."""
        flags = self.flags(n_layers)
        return [flags[layer] for layer in kept] != self.flags(len(kept))


def rules_of(architecture: str, get: Callable[[str], Any]) -> list[Rule]:
    """Return the rules that hold for a model; `get` gives a value of its metadata, or None."""
    name, rules = _letters(architecture), list[Rule]()

    def add(
        about: str, key: str | None, default: int | None, other: int, list_key: str | None = None, since: int = 0
    ) -> None:
        given = None if key is None else get(key)
        period = given if isinstance(given, int) and given else default
        if period is not None:
            rules.append(Rule(about, key, period, other, list_key, since))

    window, periods = get(_WINDOW), _LAST_OF | _FIRST_OF
    if name in periods and (window or (window is None and name in _ALWAYS_WINDOWS)):
        other = -1 if name in _LAST_OF else 0
        about = "which layers attend to a window only"
        add(about, SLIDING_PATTERN, periods[name], other, SLIDING_PATTERN, _WINDOWS_SINCE)
    if name in _UNROTATED and (window or name != "smallthinker"):
        period = 0 if name == "llama4" and window == 0 else 4
        add("which layers rotate positions", None, period, _UNROTATED[name])
    recurrent = (RECURRENT_LAYERS, _RECURRENT_SINCE) if name in _RECURRENT else (None, 0)
    add("which layers attend", "full_attention_interval", _RECURRENT.get(name), -1, *recurrent)
    add("which layers have experts", "interleave_moe_layer_step", None, -1)
    add("which layers have experts", "moe_every_n_layers", None, 1)
    if name == "kimik3":
        add("which layers begin a block of residuals", "attn_res.block_size", None, 0)
    return rules


def differ(architecture: str, n_layers: int, n_kept: int) -> bool:
    """Return whether llama.cpp takes two numbers of layers for models that it computes in different ways."""
    return any((n_layers in alike) != (n_kept in alike) for alike in _DEPTHS.get(_letters(architecture), ()))


def misread_by_llama_cpp(folder: Path, mask: Mask, n_layers: int) -> str | None:
    """Return what llama.cpp would get wrong in a pruned checkpoint that is converted, since it goes by layers' places.

    Its converter writes no list of places for most architectures, so those count here that llama.cpp could read.

    Returns:
        What llama.cpp does, as the end of a sentence; None if it would run the same model, as far as is known here.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config, kept = config.get("text_config") or config, mask.kept(n_layers)
    kind = _letters(config["model_type"].removesuffix("_text"))
    kind = _RENAMED.get(kind, kind)
    if differ(kind, n_layers, len(kept)):
        return f"computes a {config['model_type']} of {n_layers} or {len(kept)} layers in a way of its own"
    for rule in rules_of(kind, lambda key: config.get(key.rpartition(".")[2])):
        if rule.changes(kept, n_layers):
            return f"tells {rule.about} from their places, which have changed"
    return None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
