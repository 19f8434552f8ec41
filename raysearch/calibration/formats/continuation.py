"""Continuations: each document makes a question with choices, from its own sentences alone.

In the manner of HellaSwag (Zellers et al. 2019, arXiv 1905.07830), with true sentences for wrong choices.
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

_LEAST_WORDS, _MOST_WORDS = 5, 60  # shorter ones all look alike, longer ones are lists or badly split

_CAPITAL = r"A-Z\u00c0-\u00d6\u00d8-\u00de\u0391-\u03a9\u0400-\u042f"  # Latin, Greek and Cyrillic
_OPENING, _CLOSING = r"[\"'“‘«(]*", r"[\"'”’»)\]]*"  # not [, which opens a note: [Applause]
_TITLES = "Mr|Mrs|Ms|Messrs|Dr|Prof|Hon|Rev|St|Gen|Col|Maj|Capt|Lieut|Lt|Sgt|Gov|Sen|Rep|Pres|vs"
#: A full stop that ends a sentence: not after a title (``Mr.``) or an initial (``J.``, ``U.S.``).
_STOP = r"\." + "".join(rf"(?<!\b{title}\.)" for title in (*_TITLES.split("|"), f"[{_CAPITAL}]"))
_SENTENCE_END = re.compile(rf"((?:{_STOP}|[!?…]){_CLOSING}) (?={_OPENING}[{_CAPITAL}])")
_SENTENCE = re.compile(rf"{_OPENING}[{_CAPITAL}].*[.!?…]{_CLOSING}")
#: A line break, unless the next line goes on with a small letter, as where lines are broken by hand.
_PARAGRAPH_END = re.compile(rf"\n\s*\n|\n(?!\s*[^\W\d_{_CAPITAL}])")


@dataclass(frozen=True)
class ContinuationFormat(Format):
    """Documents; each makes one item: a few of its sentences, and the choice of the one that follows.

    The wrong choices come from elsewhere in the document and are as close in length to the right one as possible, so
    neither topic nor length gives it away. The place of the question depends on the document alone: not on other rows,
    their order or a seed.

    A sentence ends at a full stop, ``!``, ``?`` or ``…`` before a space and a capital, and with its paragraph, which
    ends at a line break. Text with fewer than 5 or more than 60 words, no capital first or no such sign last (a
    heading, a list, a table) is not used.

    Args:
        field: The field that holds the document.
        context_sentences: How many sentences come before the choices, at least 1.
        choices: How many choices, the right one included, at least 2.
    """

    field: str = "text"
    context_sentences: PositiveInt = 3
    choices: Annotated[int, Field(ge=2)] = 4

    offers = frozenset({Form.TEXT, Form.CHOICES})  # no model generates the very sentence
    draws = ItemOptions
    needs = "long documents of sentences that begin with a capital (Chinese has none); use such, or data=file"

    @override
    def read(self, row: Mapping[str, Any], where: str) -> Item | None:
        text = take_text(row, "field", self.field, where)
        sentences, seed = _sentences(text), _lot(b"", text)
        places = [place for place in range(self.context_sentences, len(sentences)) if self._can_ask(sentences, place)]
        for place in sorted(places, key=lambda place: _lot(seed, str(place))):
            wrong = self._wrong(sentences, place, seed)
            if len(wrong) == self.choices - 1:
                prompt = " ".join(sentence.text for sentence in sentences[place - self.context_sentences : place])
                gold = int.from_bytes(_lot(seed, "gold")) % self.choices
                return Item(prompt, (*wrong[:gold], sentences[place].text, *wrong[gold:]), gold)
        return None

    def _can_ask(self, sentences: Sequence[_Sentence], place: int) -> bool:
        """Return whether enough sentences come before one without a gap, the last of them in the same paragraph."""
        run = sentences[place - self.context_sentences : place + 1]
        return all(one.whole for one in run) and run[-1].paragraph == run[-2].paragraph

    def _wrong(self, sentences: Sequence[_Sentence], place: int, seed: bytes) -> list[str]:
        """Return the wrong choices to a sentence; fewer than needed where there are no more."""
        n, gold = self.context_sentences, sentences[place].text
        # Not from near the prompt or the answer: what is there could follow as well.
        elsewhere = [*sentences[: max(0, place - 2 * n)], *sentences[place + n + 1 :]]
        shown = {sentence.text.casefold() for sentence in sentences[place - n : place + 1]}
        others = {
            sentence.text.casefold(): sentence.text
            for sentence in elsewhere
            if sentence.whole and sentence.text.casefold() not in shown
        }
        by_length = sorted(others.values(), key=lambda other: (abs(len(other) - len(gold)), _lot(seed, other)))
        return by_length[: self.choices - 1]


class _Sentence(NamedTuple):
    """A sentence, or other text between two sentence ends."""

    text: str  #: its words, with single spaces
    paragraph: int  #: the number of its paragraph
    whole: bool  #: whether it reads as a sentence, neither too short nor too long


def _sentences(text: str) -> list[_Sentence]:
    """Return all sentences of a document, in order."""
    found = []
    for number, paragraph in enumerate(_PARAGRAPH_END.split(text)):
        for sentence in _SENTENCE_END.sub("\\1\n", " ".join(paragraph.split())).split("\n"):
            fits = _LEAST_WORDS <= len(sentence.split()) <= _MOST_WORDS
            found.append(_Sentence(sentence, number, fits and _SENTENCE.fullmatch(sentence) is not None))
    return found


def _lot(seed: bytes, name: str) -> bytes:
    """Return a number drawn by a name: the same on every machine."""
    return hashlib.sha256(seed + name.encode(errors="backslashreplace")).digest()
