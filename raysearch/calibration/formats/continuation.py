"""Continuations: each document makes a question with choices, from the sentences of that document alone.

The questions are like those of HellaSwag (Zellers et al. 2019, arXiv 1905.07830), but the wrong choices are real
sentences.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import Field, PositiveInt
from typing_extensions import override

from raysearch.calibration.batch import Form
from raysearch.calibration.fields import take_text
from raysearch.calibration.formats.base import Format, Item
from raysearch.calibration.items import ItemOptions

_FEWEST_WORDS = 5  # shorter sentences are all similar
_MOST_WORDS = 60  # longer sentences are lists, or were split in the wrong places

_CAPITAL = r"A-Z\u00c0-\u00d6\u00d8-\u00de\u0391-\u03a9\u0400-\u042f"  # Latin, Greek and Cyrillic
_OPENING = r"[\"'“‘«(]*"  # without [, which opens a note: [Applause]
_CLOSING = r"[\"'”’»)\]]*"
_TITLES = "Mr|Mrs|Ms|Messrs|Dr|Prof|Hon|Rev|St|Gen|Col|Maj|Capt|Lieut|Lt|Sgt|Gov|Sen|Rep|Pres|vs"
#: A full stop that ends a sentence: not after a title (``Mr.``) or an initial (``J.``, ``U.S.``).
_STOP = r"\." + "".join(rf"(?<!\b{title}\.)" for title in (*_TITLES.split("|"), f"[{_CAPITAL}]"))
_SENTENCE_END = re.compile(rf"((?:{_STOP}|[!?…]){_CLOSING}) (?={_OPENING}[{_CAPITAL}])")
_SENTENCE = re.compile(rf"{_OPENING}[{_CAPITAL}].*[.!?…]{_CLOSING}")
#: A line break, unless the next line begins with a small letter: such lines were broken by hand.
_PARAGRAPH_END = re.compile(rf"\n\s*\n|\n(?!\s*[^\W\d_{_CAPITAL}])")


@dataclass(frozen=True)
class ContinuationFormat(Format):
    """Documents, each of which makes one item: a few of its sentences, and the choice of the sentence that follows.

    The wrong choices come from other parts of the document. Their lengths are as close to the length of the right
    choice as possible, so neither topic nor length reveals it. The place of the question depends on the document alone,
    not on other rows, their order or a seed.

    A sentence ends at a full stop, ``!``, ``?`` or ``…`` before a space and a capital, and at the end of its paragraph,
    which is a line break. A text with fewer than 5 or more than 60 words, without a capital at its start or without
    such a sign at its end (a heading, a list, a table) is not used.

    Args:
        field: The field that holds the document.
        context_sentences: The number of sentences before the choices, at least 1.
        choices: The number of choices, the right one included, at least 2.
    """

    field: str = "text"
    context_sentences: PositiveInt = 3
    choices: Annotated[int, Field(ge=2)] = 4

    offers = frozenset({Form.TEXT, Form.CHOICES})  # not PROMPT: no model generates exactly the right sentence
    draws = ItemOptions
    needs = "long documents of sentences that begin with a capital (Chinese has none); use such, or data=file"

    @override
    def read(self, row: Mapping[str, Any], where: str) -> Item | None:
        text = take_text(row, "field", self.field, where)
        sentences = _sentences(text)
        seed = _random_bytes(b"", text)
        indices = [index for index in range(self.context_sentences, len(sentences)) if self._can_ask(sentences, index)]
        for index in sorted(indices, key=lambda index: _random_bytes(seed, str(index))):
            wrong_choices = self._wrong_choices(sentences, index, seed)
            if len(wrong_choices) == self.choices - 1:
                prompt = " ".join(sentence.text for sentence in sentences[index - self.context_sentences : index])
                gold = int.from_bytes(_random_bytes(seed, "gold")) % self.choices
                choices = (*wrong_choices[:gold], sentences[index].text, *wrong_choices[gold:])
                return Item(prompt, choices, gold)
        return None

    def _can_ask(self, sentences: Sequence[_Sentence], index: int) -> bool:
        """Return whether a sentence and its context are usable, and the last two are in the same paragraph."""
        passage = sentences[index - self.context_sentences : index + 1]
        return all(sentence.whole for sentence in passage) and passage[-1].paragraph == passage[-2].paragraph

    def _wrong_choices(self, sentences: Sequence[_Sentence], index: int, seed: bytes) -> list[str]:
        """Return the wrong choices for a question; fewer than needed if the document has no more."""
        n = self.context_sentences
        gold = sentences[index].text
        # Sentences near the prompt or the answer are excluded, because they could follow the prompt as well.
        distant = [*sentences[: max(0, index - 2 * n)], *sentences[index + n + 1 :]]
        shown = {sentence.text.casefold() for sentence in sentences[index - n : index + 1]}
        candidates = {
            sentence.text.casefold(): sentence.text
            for sentence in distant
            if sentence.whole and sentence.text.casefold() not in shown
        }
        by_length = sorted(
            candidates.values(), key=lambda text: (abs(len(text) - len(gold)), _random_bytes(seed, text))
        )
        return by_length[: self.choices - 1]


class _Sentence(NamedTuple):
    """A sentence, or other text between two ends of sentences."""

    text: str  #: the words, with single spaces
    paragraph: int  #: the number of the paragraph
    whole: bool  #: whether the text has the form of a sentence, and is neither too short nor too long


def _sentences(text: str) -> list[_Sentence]:
    """Return all sentences of a document, in order."""
    sentences = []
    for number, paragraph in enumerate(_PARAGRAPH_END.split(text)):
        for sentence in _SENTENCE_END.sub("\\1\n", " ".join(paragraph.split())).split("\n"):
            fits = _FEWEST_WORDS <= len(sentence.split()) <= _MOST_WORDS
            sentences.append(_Sentence(sentence, number, fits and _SENTENCE.fullmatch(sentence) is not None))
    return sentences


def _random_bytes(seed: bytes, name: str) -> bytes:
    """Return pseudo-random bytes that depend on a seed and a name alone, and are the same on every machine."""
    return hashlib.sha256(seed + name.encode(errors="backslashreplace")).digest()
