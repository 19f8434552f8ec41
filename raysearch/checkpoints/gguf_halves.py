"""Which half of a layer a tensor of a GGUF file belongs to, by its name.

Source: the names of tensors in gguf's `constants.py`; llama.cpp's `src/models/*.cpp` at commit 0c1e57098.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from raysearch.core.mask import Part

#: The names of tensors within a block, without `.weight` or `.bias`. A name that is not here may belong to both halves.
_TENSORS: dict[Part, re.Pattern[str]] = {
    "attention": re.compile(
        r"attn_(norm|q|k|v|qkv|output|gate|sinks|rot_embd|sub_norm|(q|k)_norm|(q|k|v|kv)_(a|b|a_norm|a_mqa)|q_a_norm)"
        r"|post_attention_norm|ssm_\w+|shortconv\.\w+|indexer\.\w+"
    ),
    "mlp": re.compile(
        r"ffn_(norm|gate|up|down)|ffn_(gate|up|down|gate_up|gate_inp)_(exps|shexp|chexps)|ffn_gate_inp"
        r"|ffn_(sub_norm|norm_exps|latent_down|latent_up)|post_ffw_norm|exp_probs_b"
    ),
}


def parts_of_tensors(names: Iterable[str]) -> dict[str, Part]:
    """Return the half of each tensor of a layer.

    In some architectures, such as gpt-oss, `post_attention_norm` is the norm before the MLP. They have no other norm of
    the MLP. If the MLP has no norm at all, it may run beside the attention, so no half is returned.

    Args:
        names: The names of all tensors of layers, within a block.

    Returns:
        The half by name, without tensors whose half is unknown.
    """
    stems = {name: name.removesuffix(".weight").removesuffix(".bias") for name in names}
    has_norm = not {"ffn_norm", "post_ffw_norm"}.isdisjoint(stems.values())
    if not has_norm and "post_attention_norm" not in stems.values():
        return {}
    parts: dict[str, Part] = {}
    for name, stem in stems.items():
        part = next((part for part, pattern in _TENSORS.items() if pattern.fullmatch(stem)), None)
        if part is not None:
            parts[name] = "mlp" if stem == "post_attention_norm" and not has_norm else part
    return parts
