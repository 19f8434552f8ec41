"""Answers of several models to the same items, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysearch.generation.score import ScoredText


def examples(
    expected: Sequence[str], dense: Sequence[ScoredText], pruned: Sequence[ScoredText], **others: Sequence[ScoredText]
) -> list[dict[str, Any]]:
    """Return the answers of the dense and the pruned model to each item, in order, as rows of plain values.

    The pruned model's are the ``text``. Answers of others, such as ``recovered``, stand under their names.
    """
    rows = []
    for item, (right, before, after, *more) in enumerate(zip(expected, dense, pruned, *others.values(), strict=True)):
        row = {
            "item": item,
            "expected": right,
            "dense": before.text,
            "dense_score": before.score.value,
            "text": after.text,
            "score": after.score.value,
            "failure": after.score.failure,
            "cut_off": after.cut_off,
        }
        for name, one in zip(others, more, strict=True):
            row |= {name: one.text, f"{name}_score": one.score.value}
        rows.append(row)
    return rows


def worst(rows: Sequence[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Return the `n` rows, or fewer, in which the pruned model's score falls most below the dense one's, most first."""

    def fall(row: dict[str, Any]) -> float:
        return float(row["dense_score"] - row["score"])

    return [row for row in sorted(rows, key=fall, reverse=True) if fall(row) > 0][:n]
