"""Answers of several models to the same items, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysearch.generation.score import ScoredText


def examples(
    expected: Sequence[str],
    dense: Sequence[ScoredText],
    pruned: Sequence[ScoredText],
    **other_models: Sequence[ScoredText],
) -> list[dict[str, Any]]:
    """Return the models' answers to each item, in order, as rows of plain values.

    Args:
        expected: The right answer to each item.
        dense: The dense model's answers, under the keys ``dense`` and ``dense_score``.
        pruned: The pruned model's answers, under ``text``, ``score``, ``failure`` and ``cut_off``.
        other_models: Answers of other models, such as ``recovered``, under ``recovered`` and ``recovered_score``.

    Returns:
        A row for each item: its number, its right answer, and each model's text and score.
    """
    rows = []
    answers = zip(expected, dense, pruned, *other_models.values(), strict=True)
    for item, (right_answer, dense_answer, pruned_answer, *other_answers) in enumerate(answers):
        row = {
            "item": item,
            "expected": right_answer,
            "dense": dense_answer.text,
            "dense_score": dense_answer.score.value,
            "text": pruned_answer.text,
            "score": pruned_answer.score.value,
            "failure": pruned_answer.score.failure,
            "cut_off": pruned_answer.cut_off,
        }
        for name, answer in zip(other_models, other_answers, strict=True):
            row |= {name: answer.text, f"{name}_score": answer.score.value}
        rows.append(row)
    return rows


def worst(rows: Sequence[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Return the rows in which the pruned model scores below the dense model, the largest difference first.

    Args:
        rows: Rows of `examples`.
        n: The most rows to return.

    Returns:
        At most `n` rows; empty if the pruned model is never below.
    """

    def fall(row: dict[str, Any]) -> float:
        return float(row["dense_score"] - row["score"])

    return [row for row in sorted(rows, key=fall, reverse=True) if fall(row) > 0][:n]
