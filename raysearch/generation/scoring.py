"""Scores answers: mathematics by math-verify, summaries by ROUGE-L, code by its tests, others by text or pattern.

The only place of math_verify and rouge_score, which load when they are first needed.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from raysearch.generation.answer import CodeTests
from raysearch.generation.sandbox import Program, run_programs
from raysearch.generation.score import Score

_T = TypeVar("_T")

#: Why code fails, in the order in which it is asked; see `failure_class`.
FailureClass = Literal["assertion", "parenthesis", "other syntax", "undefined name", "time or depth", "other"]

#: The classes of what is not Python.
SYNTAX: tuple[FailureClass, ...] = ("parenthesis", "other syntax")

_FENCE = re.compile(r"```[^\n`]*\n")
_PARENTHESIS = re.compile(r"was never closed|opening parenthesis|unmatched '[)}\]]'")


def score_math(text: str, gold: str) -> Score:
    """Score by math-verify whether the last or boxed expression of an answer equals the right one.

    What comes before ``####`` in that is left out, as in GSM8K.
    """
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # else it warns that it has no limit of time
    # Its own limits of 5 s are signals, which only a main thread can have; a replica of Ray works in another.
    nothing = list[Any]()
    expected = _within(5, partial(parse, gold.rpartition("####")[2], parsing_timeout=None), nothing)
    found = _within(5, partial(parse, text, parsing_timeout=None), nothing)
    return Score(float(_within(5, partial(verify, found, expected, timeout_seconds=None), False)))


class _TimeIsUp(BaseException):
    """Raised in a thread from outside; no `except Exception` on the way may catch it."""


def _within(seconds: float, work: Callable[[], _T], otherwise: _T) -> _T:
    """Return what some Python code returns, or something else if it takes longer; in any thread."""
    lock, running, thread = threading.Lock(), True, ctypes.c_ulong(threading.get_ident())

    def stop() -> None:
        with lock:
            if running:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_TimeIsUp))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        try:
            return work()
        finally:
            with lock:
                running = False
            timer.cancel()
    except _TimeIsUp:
        return otherwise


def score_rouge(text: str, gold: str) -> Score:
    """Score a summary by the F1 of ROUGE-L with Porter's stemmer, 0 … 1."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    return Score(float(scorer.score(gold, text)["rougeL"].fmeasure))


def score_regex(text: str, pattern: str, gold: str) -> Score:
    """Score 1 if what a pattern finds last is the right text: its first group, or all of it if it has none."""
    found = list(re.finditer(pattern, text))
    if not found:
        return Score(0.0)
    last = found[-1][1] or "" if found[-1].re.groups else found[-1][0]
    return Score(float(last.strip() == gold.strip()))


def extract_code(text: str, opening: str = "") -> str:
    """Return the code of an answer.

    Where the opening leaves a fence open (```` ```python````), that is all that follows it up to the closing fence;
    other openings are code, which the answer continues. Without an opening it is the first fenced block, or else all.
    """
    opened = list(_FENCE.finditer(opening))
    if opening.count("```") % 2 and opened:
        return opening[opened[-1].end() :] + text.partition("```")[0]
    fenced = _FENCE.search(text)
    if fenced and (not opening or not text[: fenced.start()].strip()):
        return "\n".join(filter(None, (opening, text[fenced.end() :].partition("```")[0])))
    return opening + text.partition("```")[0]


def score_codes(codes: Sequence[str], tests: Sequence[CodeTests], workers: int | None = None) -> list[Score]:
    """Score pieces of code by their tests, in the sandbox; the second set is run only where the first passes.

    `workers` and what is raised are those of `run_programs`.
    """
    pairs = list(zip(codes, tests, strict=True))
    base = list(run_programs([_program(code, one, one.base) for code, one in pairs], workers))
    harder = {at: one.plus for at, one in enumerate(tests) if one.plus is not None and base[at].passed}
    ran = run_programs([_program(*pairs[at], plus) for at, plus in harder.items()], workers)
    last = dict(enumerate(base)) | dict(zip(harder, ran, strict=True))
    failures = [None if one.passed else failure_class(one.error or "", one.message) for one in last.values()]
    return [
        Score(float(failure is None), failure, None if one.plus is None else first.passed)
        for failure, one, first in zip(failures, tests, base, strict=True)
    ]


def _program(code: str, tests: CodeTests, source: str) -> Program:
    return Program("\n".join(filter(None, (tests.before, code))), source, tests.timeout_s)


def failure_class(error: str, message: str) -> FailureClass:
    """Return why code failed, by the exception's name and message.

    The paper asks the message alone: a failed assertion is an empty one, and syntax is what says "invalid syntax".

    Source: figures 4b and 5b of `On the Limits of Layer Pruning for Generative Reasoning`.
    """
    if error == "AssertionError":
        return "assertion"
    if _PARENTHESIS.search(message):
        return "parenthesis"
    if error in ("SyntaxError", "IndentationError", "TabError"):
        return "other syntax"
    if "is not defined" in message:
        return "undefined name"
    if "timed out" in message or "maximum recursion depth" in message:
        return "time or depth"
    return "other"
