"""What llama.cpp derives from a layer's place alone, such as which layers attend to a sliding window.

Architectures are written in letters and digits alone, since transformers and llama.cpp part them otherwise.

Source: llama.cpp's `src/models/*.cpp`.
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
_WINDOW = "attention.sliding_window"
#: One layer in so many attends to everything, where the model does not say: the last of them, or the first.
_LAST_OF = {"gemma2": 2, "gptoss": 2, "cohere2": 4, "exaone4": 4, "exaonemoe": 4, "olmo2": 4, "mellum": 4, "afmoe": 4}
_LAST_OF |= {"llama4": 4, "gemma3n": 5, "gemma3": 6, "gemmaembedding": 6, "plamo3": 8}
_FIRST_OF = {"smallthinker": 4, "laguna": 4, "cohere2moe": 4, "modernbert": 3}
_ALWAYS_WINDOWS = ("gemma2", "llama4", "exaonemoe", "gemma3n")  # also where the model does not say how wide
_UNROTATED = {"smollm3": -1, "llama4": -1, "afmoe": -1, "smallthinker": 0}  # one layer in four
_QWEN = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
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
    """One layer in `period` is of another kind: the first, 0, the second, 1, or the last, -1."""

    about: str  #: the kind, for a sentence
    key: str | None  #: the metadata's key of the period; None where llama.cpp reads none
    period: int
    other: int

    def changes(self, kept: Sequence[int]) -> bool:
        """Return whether layers are of another kind at the places that they get."""
        other = self.other % self.period
        return any((layer % self.period == other) != (place % self.period == other) for place, layer in enumerate(kept))


def rules_of(architecture: str, get: Callable[[str], Any]) -> list[Rule]:
    """Return the rules that hold for a model; `get` gives a value of its metadata, or None."""
    name, rules = _letters(architecture), list[Rule]()

    def add(about: str, key: str | None, default: int | None, other: int) -> None:
        given = None if key is None else get(key)
        if period := given if isinstance(given, int) and given else default:
            rules.append(Rule(about, key, period, other))

    window = get(_WINDOW)
    if window or (window is None and name in _ALWAYS_WINDOWS):
        if name in _LAST_OF:
            add("which layers attend to a window only", SLIDING_PATTERN, _LAST_OF[name], -1)
        elif name in _FIRST_OF and not isinstance(get(SLIDING_PATTERN), list):  # of these it reads the list
            add("which layers attend to a window only", SLIDING_PATTERN, _FIRST_OF[name], 0)
    if name in _UNROTATED:
        add("which layers rotate positions", None, 4, _UNROTATED[name])
    if get("attention.recurrent_layers") is None:
        add("which layers attend", "full_attention_interval", _QWEN.get(name), -1)
    add("which layers have experts", "interleave_moe_layer_step", None, -1)
    add("which layers have experts", "moe_every_n_layers", None, 1)
    return rules


def differ(architecture: str, n_layers: int, n_kept: int) -> bool:
    """Return whether llama.cpp takes two numbers of layers for models that it computes in different ways."""
    return any((n_layers in alike) != (n_kept in alike) for alike in _DEPTHS.get(_letters(architecture), ()))


def misread_by_llama_cpp(folder: Path, mask: Mask, n_layers: int) -> str | None:
    """Return what llama.cpp would get wrong in a pruned checkpoint that is converted, since it goes by layers' places.

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
        if rule.changes(kept):
            return f"tells {rule.about} from their places, which have changed"
    return None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
