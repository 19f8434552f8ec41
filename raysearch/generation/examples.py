"""Answers of several models to the same items, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysearch.generation.score import ScoredText


@dataclass(frozen=True)
class Example:
    """An item and what models answer.

    Args:
        item: Its place in the task, from 0.
        expected: The right answer.
        answers: By model: ``dense``, ``pruned``, ``recovered``.
        prompt: What was asked, if that is at hand.
    """

    item: int
    expected: str
    answers: Mapping[str, ScoredText]
    prompt: str = ""

    @property
    def row(self) -> dict[str, Any]:
        """The answers of the dense and the pruned model side by side, plain values."""
        dense, pruned = self.answers["dense"], self.answers["pruned"]
        return {
            "item": self.item,
            "expected": self.expected,
            "dense": dense.text,
            "dense_score": dense.score.value,
            "text": pruned.text,
            "score": pruned.score.value,
            "failure": pruned.score.failure,
            "cut_off": pruned.cut_off,
        }


def examples(
    expected: Sequence[str], answers: Mapping[str, Sequence[ScoredText]], prompts: Sequence[str] = ()
) -> list[Example]:
    """Return an example for each item, in order, from the answers of each model.

    Raises:
        ValueError: There are not as many of each.
    """
    by_item = zip(*answers.values(), strict=True)
    return [
        Example(item, right, dict(zip(answers, texts, strict=True)), prompt)
        for item, (prompt, right, texts) in enumerate(
            zip(prompts or [""] * len(expected), expected, by_item, strict=True)
        )
    ]


def worst(of: Sequence[Example], n: int) -> list[Example]:
    """Return the examples on which the pruned model's score falls most below the dense one's, the largest fall first.

    At most `n`; those without a fall are left out, and equal falls stay in their order.
    """

    def fall(example: Example) -> float:
        return example.answers["dense"].score.value - example.answers["pruned"].score.value

    return [example for example in sorted(of, key=fall, reverse=True) if fall(example) > 0][:n]


def side_by_side(of: Sequence[Example], most_characters: int = 300) -> list[tuple[str, ...]]:
    """Return a table: a heading, and a row for each example with its item, prompt, right answer and every answer.

    An answer is followed by its score and why it fails, such as ``[0: parenthesis, cut off]``. Long texts keep their
    beginning and end, with ``…`` between them; a prompt's and an answer's end say the most.
    """
    models = list(of[0].answers) if of else []
    rows = [("item", "prompt", "right answer", *models)]
    for example in of:
        texts = [example.prompt, example.expected]
        shown = [_shortened(text, most_characters) for text in texts]
        for one in example.answers.values():
            why = ", ".join(filter(None, (one.score.failure, "cut off" if one.cut_off else "")))
            mark = f"[{one.score.value:.3g}{f': {why}' if why else ''}]"
            shown.append(" ".join(filter(None, (_shortened(one.text, most_characters), mark))))
        rows.append((str(example.item), *shown))
    return rows


def _shortened(text: str, most: int) -> str:
    text = text.strip()
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half].rstrip()} … {text[-half:].lstrip()}"
