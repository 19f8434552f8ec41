"""Which splits are kept for evaluation: what a model is judged by in the end is no place to calibrate."""

from __future__ import annotations

import re

_EVALUATION = frozenset({"test", "validation", "valid", "val", "dev", "eval", "evaluation"})


def evaluation_word(name: str) -> str | None:
    """The word in a name that tells of an evaluation split, as a whole word; None without one.

    ``validation[:100]``, ``train+test``, ``gsm8k_test`` and ``val2017`` have one; ``contest`` and ``latest`` have not.

    Args:
        name: A split, or the name of a file without its ending.
    """
    return next((word for word in re.findall(r"[a-z]+", name.lower()) if word in _EVALUATION), None)
