"""Scores equal those of the libraries, and failures of code have the right class."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from raysearch.configuration.compose import compose
from raysearch.generation.answer import CodeTests
from raysearch.generation.sandbox import Program, run_programs
from raysearch.generation.score import AnswerScore
from raysearch.generation.scoring import (
    _within,
    extract_code,
    failure_class,
    score_codes,
    score_math,
    score_regex,
    score_rouge,
)
from tests.conftest import DATA_FOLDER
from tests.generation.snippets import SNIPPETS


def test_forty_snippets_fail_as_classed() -> None:
    assert len(SNIPPETS) == 40
    outcomes = run_programs([Program(code, tests, timeout_s=1) for code, tests, _ in SNIPPETS])
    wrong = []
    for (code, _, expected), outcome in zip(SNIPPETS, outcomes, strict=True):
        failure = None if outcome.passed else failure_class(outcome.error or "", outcome.message)
        if failure != expected:
            wrong.append(f"{code!r}: {failure}, not {expected} ({outcome.error}: {outcome.message})")
        if outcome.parses == (outcome.error in ("SyntaxError", "IndentationError")):
            wrong.append(f"{code!r}: parses={outcome.parses}")
    assert not wrong, "\n".join(wrong)


def test_mathematics_is_scored_as_math_verify_does() -> None:
    right = [
        r"so it is $\boxed{18}$.",
        r"\boxed{18\text{ eggs}}",
        "#### 18",
        "16 - 3 = 13, and 13 + 5 = 18",
        r"$x = 18$",
        r"\boxed{\frac{36}{2}}",
        "18.0",
    ]
    wrong = ["", "eighteen", "18, or 19", r"\boxed{17}. It is 18", "-18", "1.8", r"\boxed{}"]
    assert [score_math(text, "16 - 3 + 5 = 18.\n#### 18").value for text in right] == [1.0] * len(right)
    assert [score_math(text, "#### 18").value for text in wrong] == [0.0] * len(wrong)
    assert score_math("it costs $1,000", "#### 1,000") == AnswerScore(1.0)


def test_mathematics_is_scored_in_any_thread_and_never_for_long() -> None:
    """math-verify limits its time by signals, which the thread of a Ray actor cannot receive."""

    def forever() -> str:
        while True:
            pass

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(score_math, r"\boxed{\frac{36}{2}}", "#### 18").result() == AnswerScore(1.0)
        assert pool.submit(_within, 0.2, forever, "late").result() == "late"
        assert pool.submit(_within, 60, lambda: "in time", "late").result() == "in time"


@pytest.mark.data
def test_the_right_answers_of_gsm8k_are_right() -> None:
    rows = [json.loads(line) for line in (DATA_FOLDER / "gsm8k" / "test.jsonl").read_text("utf-8").splitlines()[:100]]
    assert not [row["answer"] for row in rows if score_math(row["answer"], row["answer"]).value != 1]


@pytest.mark.data
def test_the_right_answers_of_math500_are_right() -> None:
    rows = [json.loads(line) for line in (DATA_FOLDER / "math500" / "test.jsonl").read_text("utf-8").splitlines()]
    gold = compose("search", ["data=math500"])["data"]["answer"]
    assert len(rows) == 500
    assert not [row["answer"] for row in rows if score_math(f"It is \\boxed{{{row['answer']}}}.", row[gold]).value != 1]


@pytest.mark.data
def test_summaries_are_scored_as_rouge_score_does() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    rows = [json.loads(line) for line in (DATA_FOLDER / "xsum" / "validation.jsonl").read_text("utf-8").splitlines()]
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    for row in rows:
        first = row["document"].split("\n")[0]
        assert score_rouge(first, row["summary"]).value == scorer.score(row["summary"], first)["rougeL"].fmeasure
        assert score_rouge(row["summary"], row["summary"]).value == 1
    assert score_rouge("", "a summary").value == 0


def test_patterns() -> None:
    places = [score_regex(text, ".+", "Paris\n").value for text in (" Paris ", "paris", "Paris.")]
    assert places == [1, 0, 0]
    assert score_regex("the answer is 4, not 5", r"answer is (\d)", "4").value == 1
    assert score_regex("a 4", r"\d", "4").value == 1
    assert score_regex("none", r"(\d)", "4").value == 0
    assert score_regex("b", r"(a)?b", "").value == 1
    assert score_regex("4 or 5", r"\d", "5").value == 1, "the last place counts"


def test_code_is_cut_out_of_an_answer() -> None:
    head = 'def f(x):\n    """Add one."""\n'
    fenced_head = f"Here is the final answer:\n```python\n{head}"
    for text, prompt, code in (
        ("    return x\n```\nIt adds one.", fenced_head, f"{head}    return x\n"),
        ("    return x\n", fenced_head, f"{head}    return x\n"),
        ("def f(x): ...\n```", "Here is a solution:\n```python\n", "def f(x): ...\n"),
        ("Sure:\n```python\ndef f(x): ...\n```\n```\nno\n```", "", "def f(x): ...\n"),
        ("Sure:\n```\ndef f(x): ...\n", "", "def f(x): ...\n"),
        ("def f(x): ...", "", "def f(x): ..."),
        ("    return x\n", head, f"{head}    return x\n"),
        ("```py\ndef f(x): ...\n```", head, f"{head}\ndef f(x): ...\n"),
        ("    return x\n```\nIt is done.\n", head, f"{head}    return x\n"),
        ("", "", ""),
    ):
        assert extract_code(text, prompt) == code


def test_the_results_of_base_and_plus_tests_are_separate() -> None:
    absolute = "def f(x):\n    return abs(x)"
    base_and_plus = CodeTests("assert f(1) == 1", "assert f(-1) == -1", timeout_s=2)
    cases = {
        absolute: (base_and_plus, AnswerScore(0.0, "assertion", base=True)),
        "def f(x): return x": (base_and_plus, AnswerScore(1.0, None, base=True)),
        "def f(x): return 0": (base_and_plus, AnswerScore(0.0, "assertion", base=False)),
        "def f(x): return (x": (base_and_plus, AnswerScore(0.0, "parenthesis", base=False)),
        "def f(x): return max(x, -x)": (CodeTests("assert f(-1) == 1"), AnswerScore(1.0)),
        "f = sqrt": (CodeTests("assert f(4) == 2", before="from math import sqrt"), AnswerScore(1.0)),
    }
    scores = score_codes(list(cases), [tests for tests, _ in cases.values()], workers=2)
    assert scores == [score for _, score in cases.values()]


@pytest.mark.data
@pytest.mark.slow
def test_the_right_programs_of_humaneval_and_mbpp_pass() -> None:
    def rows(name: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in (DATA_FOLDER / name / "test.jsonl").read_text("utf-8").splitlines()]

    codes = [row["prompt"] + row["canonical_solution"] for row in rows("humaneval")]
    tests = [CodeTests(f"{row['test']}\ncheck({row['entry_point']})") for row in rows("humaneval")]
    codes += [row["code"] for row in rows("mbpp")]
    tests += [CodeTests("\n".join(row["test"])) for row in rows("mbpp")]
    assert len(codes) == 364
    assert [score.value for score in score_codes(codes, tests)] == [1.0] * 364


@pytest.mark.data
@pytest.mark.slow
def test_the_right_programs_pass_the_tests_of_evalplus() -> None:
    def rows(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (DATA_FOLDER / name / "test.jsonl").read_text("utf-8").splitlines()]

    # All take minutes. The test of HumanEval/32 passes a float where its own function needs a list.
    humaneval = [row for row in rows("humaneval_plus")[::3] if row["task_id"] != "HumanEval/32"]
    mbpp = rows("mbpp_plus")[::16]
    codes = [row["prompt"] + row["canonical_solution"] for row in humaneval] + [row["code"] for row in mbpp]
    tests = [CodeTests(f"{row['test']}\ncheck({row['entry_point']})") for row in humaneval]
    tests += [CodeTests("\n".join([*row["test_imports"], *row["test_list"]]), row["test"]) for row in mbpp]
    assert (len(humaneval), len(mbpp)) == (55, 24)
    assert [score.value for score in score_codes(codes, tests)] == [1.0] * len(codes)
