"""What llama.cpp derives from a layer's place alone, such as which layers attend to a sliding window.

Architectures are written in letters and digits alone, since transformers and llama.cpp part them otherwise.

Source: llama.cpp's `src/models/*.cpp`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysearch.core.mask import Mask


@dataclass(frozen=True)
class Rule:
    """How llama.cpp tells a layer's kind from its place and a number that holds for the whole model.

    Args:
        about: What differs, for a sentence.
        kind: The kind of a layer, of its place and the number.
        key: The metadata's key of the number; None where llama.cpp reads none.
        defaults: The number where the model has none, by architecture.
        needs: A key without which the rule holds for no layer.
        always: Architectures that the rule holds for also without that key.
        least: The least number that llama.cpp runs: with 1, no layer would be of the other kind.
    """

    about: str
    kind: Callable[[int, int], bool]
    key: str | None = None
    defaults: Mapping[str, int] = field(default_factory=dict)
    needs: str | None = None
    always: tuple[str, ...] = ()
    least: int = 1


def _last_differs(layer: int, period: int) -> bool:
    return period > 0 and layer % period == period - 1


def _first_differs(layer: int, period: int) -> bool:
    return period > 0 and layer % period == 0


SLIDING_PATTERN = "attention.sliding_window_pattern"
_WINDOW = "attention.sliding_window"
_RULES = (
    Rule(
        "which layers attend to a window only",
        _last_differs,
        SLIDING_PATTERN,
        {"gemma2": 2, "gptoss": 2, "cohere2": 4, "exaone4": 4, "exaonemoe": 4, "olmo2": 4, "mellum": 4, "afmoe": 4}
        | {"llama4": 4, "gemma3n": 5, "gemma3": 6, "gemmaembedding": 6, "plamo3": 8},
        _WINDOW,
        ("gemma2", "llama4", "exaonemoe", "gemma3n"),
        least=2,
    ),
    Rule(
        "which layers attend to a window only",
        _first_differs,
        SLIDING_PATTERN,
        {"smallthinker": 4, "laguna": 4, "cohere2moe": 4, "modernbert": 3},
        _WINDOW,
        least=2,
    ),
    Rule("which layers rotate positions", _last_differs, None, {"smollm3": 4, "llama4": 4, "afmoe": 4}),
    Rule("which layers rotate positions", _first_differs, None, {"smallthinker": 4}),
    Rule(
        "which layers attend",
        _last_differs,
        "full_attention_interval",
        {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4},
        least=2,
    ),
    Rule("which layers have experts", _last_differs, "interleave_moe_layer_step"),
    Rule("which layers have experts", lambda layer, step: step > 0 and layer % step == 1 % step, "moe_every_n_layers"),
)
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


def rules_of(architecture: str, get: Callable[[str], Any]) -> list[tuple[Rule, int]]:
    """Return the rules that hold for a model, each with its number; `get` gives a value of its metadata, or None."""
    periods = ((rule, _period(rule, _letters(architecture), get)) for rule in _RULES)
    return [(rule, period) for rule, period in periods if period is not None]


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
    for rule, period in rules_of(kind, lambda key: config.get(key.rpartition(".")[2])):
        if any(rule.kind(layer, period) != rule.kind(place, period) for place, layer in enumerate(kept)):
            return f"tells {rule.about} from their places, which have changed"
    return None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _period(rule: Rule, architecture: str, get: Callable[[str], Any]) -> int | None:
    """Return the number that a rule goes by, for a model whose values `get` gives; None if it does not hold for it."""
    given = None if rule.key is None else get(rule.key)
    if rule.needs is not None:
        window = get(rule.needs)
        if architecture not in rule.defaults or window == 0 or (window is None and architecture not in rule.always):
            return None
    if isinstance(given, list) and rule.kind is _first_differs:
        return None  # llama.cpp reads the list of these architectures, and not that of the others
    if rule.key == "full_attention_interval" and get("attention.recurrent_layers") is not None:
        return None
    return given if isinstance(given, int) and given else rule.defaults.get(architecture)
