"""Scores answers: mathematics by math-verify, summaries by ROUGE-L, code by its tests, others by a pattern.

This is the only module that imports math_verify and rouge_score, and it does so on first use.
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
from raysearch.generation.sandbox import Program, ProgramOutcome, run_programs
from raysearch.generation.score import AnswerScore

_T = TypeVar("_T")

#: The classes of failures of code, in the order in which `failure_class` tests them.
FailureClass = Literal["assertion", "parenthesis", "other syntax", "undefined name", "time or depth", "other"]

#: The classes of code that is not Python.
SYNTAX: tuple[FailureClass, ...] = ("parenthesis", "other syntax")

_FENCE = re.compile(r"```[^\n`]*\n")
_PARENTHESIS = re.compile(r"was never closed|opening parenthesis|unmatched '[)}\]]'")


def score_math(text: str, gold: str) -> AnswerScore:
    """Return whether the last or boxed expression of an answer equals the right one, by math-verify.

    Args:
        text: The answer.
        gold: The right answer; text before ``####`` is ignored, as in GSM8K.

    Returns:
        A score of 1 or 0.
    """
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it would warn that it has no time limit
    # math-verify limits its time by signals, which only the main thread can receive. A Ray actor uses another thread.
    no_expression = list[Any]()
    expected = _within(5, partial(parse, gold.rpartition("####")[2], parsing_timeout=None), no_expression)
    parsed = _within(5, partial(parse, text, parsing_timeout=None), no_expression)
    return AnswerScore(float(_within(5, partial(verify, parsed, expected, timeout_seconds=None), False)))


class _TimeIsUp(BaseException):
    """Raised in a thread from outside. It is no `Exception`, so that the interrupted code does not catch it."""


def _within(seconds: float, work: Callable[[], _T], otherwise: _T) -> _T:
    """Return the result of Python code, or `otherwise` if it takes longer. This works in any thread."""
    lock = threading.Lock()
    running = True
    thread = ctypes.c_ulong(threading.get_ident())

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


def score_rouge(text: str, gold: str) -> AnswerScore:
    """Return the F1 of ROUGE-L of a summary, with Porter's stemmer, 0 … 1.

    Args:
        text: The summary.
        gold: The right summary.

    Returns:
        The score, with a right answer as 1.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    return AnswerScore(float(scorer.score(gold, text)["rougeL"].fmeasure))


def score_regex(text: str, pattern: str, gold: str) -> AnswerScore:
    """Return 1 if the last match of a pattern is the right text, else 0.

    Args:
        text: The answer.
        pattern: A regular expression; if it has groups, the first group of the match counts.
        gold: The right text.

    Returns:
        A score of 1 or 0.
    """
    matches = list(re.finditer(pattern, text))
    if not matches:
        return AnswerScore(0.0)
    last = matches[-1]
    matched_text = last[0]
    if last.re.groups:
        matched_text = last[1] or ""  # None if the group is optional
    return AnswerScore(float(matched_text.strip() == gold.strip()))


def extract_code(text: str, opening: str = "") -> str:
    """Return the code of an answer.

    If the opening leaves a fence open (```` ```python````), the code is all text from there up to the closing fence.
    Any other opening is code, which the answer continues. If there is no opening, the code is the first fenced block,
    or the whole answer if there is none.

    Args:
        text: The answer.
        opening: The beginning of the answer, which was part of the prompt.

    Returns:
        The code, without fences.
    """
    opening_fences = list(_FENCE.finditer(opening))
    leaves_fence_open = opening.count("```") % 2 == 1
    if leaves_fence_open and opening_fences:
        return opening[opening_fences[-1].end() :] + text.partition("```")[0]
    fence = _FENCE.search(text)
    if fence and (not opening or not text[: fence.start()].strip()):
        return _join_lines(opening, text[fence.end() :].partition("```")[0])
    return opening + text.partition("```")[0]


def score_codes(codes: Sequence[str], tests: Sequence[CodeTests], workers: int | None = None) -> list[AnswerScore]:
    """Score pieces of code by their tests, in the sandbox.

    The second set of tests runs only if the first set passes.

    Args:
        codes: The pieces of code.
        tests: The tests of each piece of code.
        workers: The number of programs that run at once; None for the number of processors.

    Returns:
        The scores, in the order of the pieces.

    Raises:
        UserError: This machine cannot isolate generated code.
    """
    pairs = list(zip(codes, tests, strict=True))
    base_programs = [_program(code, code_tests, code_tests.base) for code, code_tests in pairs]
    base_outcomes = list(run_programs(base_programs, workers))
    plus_programs: dict[int, Program] = {}
    for index, (code, code_tests) in enumerate(pairs):
        if code_tests.plus is not None and base_outcomes[index].passed:
            plus_programs[index] = _program(code, code_tests, code_tests.plus)
    last_outcomes = list(base_outcomes)
    plus_outcomes = run_programs(list(plus_programs.values()), workers)
    for index, outcome in zip(plus_programs, plus_outcomes, strict=True):
        last_outcomes[index] = outcome
    scores = []
    for code_tests, base_outcome, last_outcome in zip(tests, base_outcomes, last_outcomes, strict=True):
        passed_base = None if code_tests.plus is None else base_outcome.passed
        scores.append(_code_score(last_outcome, passed_base))
    return scores


def _code_score(outcome: ProgramOutcome, passed_base: bool | None) -> AnswerScore:
    failure = None if outcome.passed else failure_class(outcome.error or "", outcome.message)
    return AnswerScore(float(outcome.passed), failure, passed_base)


def _program(code: str, tests: CodeTests, source: str) -> Program:
    return Program(_join_lines(tests.before, code), source, tests.timeout_s)


def _join_lines(first: str, second: str) -> str:
    """Join two texts by a line break, unless one of them is empty."""
    return f"{first}\n{second}" if first and second else first + second


def failure_class(error: str, message: str) -> FailureClass:
    """Return the class of a failure of code.

    The paper uses the message alone: an empty message is a failed assertion, and "invalid syntax" is other syntax.

    Args:
        error: The name of the exception.
        message: The message of the exception.

    Returns:
        The class.

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
