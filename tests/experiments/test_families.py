"""Some families go through the same code as the sweep over all of them, whose page lists what was seen."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import replace
from typing import Any

import pytest

from experiments.families import check, sweep
from experiments.families.page import page
from experiments.families.results import FamilyResult, MaskResult
from tests.cases import assert_each

#: Families that change little: with windows, experts, recurrent layers, kinds by layer, towers for images.
FAMILIES = (
    *("llama", "gpt2", "gpt_oss", "qwen3_moe", "deepseek_v3", "falcon_h1", "lfm2"),
    *("gemma3", "gemma4", "mistral3", "qwen2_5_vl", "qwen3_5"),
)
RESULT = FamilyResult("llama", "5.0.0", "0123", "2026-01-02")


def test_families_are_scored_and_exported_right() -> None:
    def check_one_family(family: str) -> None:
        outcome = check.check_family(family, masks=((), (1, 4)))
        result = replace(RESULT, **outcome)
        dense, pruned = result.masks
        assert not result.wrong
        assert dense.loss_gap <= 1e-5
        assert pruned.is_exported, pruned.refused
        assert pruned.generates is True
        assert pruned.equal_tensors > 20

    assert_each(FAMILIES, check_one_family)


def test_what_is_wrong_is_named() -> None:
    right = MaskResult((1,), loss_gap=1e-9, logit_gap=0.0, generates=True, gguf=True)
    assert not right.wrong
    assert replace(right, loss_gap=1e-3).wrong == ["loss differs by 1e-03"]
    assert replace(right, loss_gap=float("nan")).wrong == ["loss differs by nan"]
    assert replace(right, logit_gap=1e-3).wrong == ["logits differ by 1e-03"]
    assert replace(right, generates=False).wrong == ["other tokens are generated"]
    assert replace(right, wrong_tensors=["a"], wrong_files=["b"]).wrong == ["a differs", "b differs"]
    assert replace(right, wrong_gguf=["c"]).wrong == ["c of the GGUF file differs"]
    assert replace(RESULT, masks=[replace(right, wrong_files=["b"])]).wrong == ["without [1]: b differs"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_family_that_fails_does_not_end_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_family(family: str) -> dict[str, Any]:
        if family == "raises":
            raise ValueError("a bug")
        if family == "ends":
            os._exit(3)
        if family == "hangs":
            time.sleep(60)
        return {"parameters": 7}

    monkeypatch.setattr(check, "check_family", check_family)
    context = multiprocessing.get_context("fork")
    assert dict(sweep.checked(context, ["hangs"], workers=2, limit_s=0.2)) == {
        "hangs": {"failed": "it took more than 0.2 s"}
    }
    assert dict(sweep.checked(context, ["raises", "ends", "works"], workers=2, limit_s=60)) == {
        "raises": {"failed": "ValueError: a bug"},
        "ends": {"failed": "its process ended with code 3"},
        "works": {"parameters": 7},
    }


def test_the_page_has_a_row_for_each_family_with_what_was_seen() -> None:
    dense = MaskResult((), loss_gap=0.0)
    right = MaskResult((1,), loss_gap=1e-9, logit_gap=0.0, generates=True, gguf=True)
    refused = "llama cannot be exported without {1}: its layers depend on their places; choose another mask"
    results = [
        replace(RESULT, causal=True, masks=(dense, right)),
        replace(RESULT, family="llava", multimodal=True, masks=(dense, replace(right, wrong_files=["a.json"]))),
        replace(RESULT, family="mixed", masks=(dense, MaskResult((1,), loss_gap=0.0, refused=refused))),
        replace(RESULT, family="t5", refused="model=t5 is an encoder-decoder; use a decoder"),
        replace(RESULT, family="unknown", unbuilt="its config has no sizes"),
    ]
    lines = page(results).splitlines()
    assert "| llama | text | ✓ | ✓ | ✓ |  |" in lines
    assert "| llava | more than text | ✓ | ✓ | ✓ | without [1]: a.json differs |" in lines
    reason = "llama cannot be exported without some layers: its layers depend on their places"
    assert f"| mixed | text | 0 of 1 | – | – | {reason} |" in lines
    assert "| t5 | text | model=t5 is an encoder-decoder; use a decoder |" in lines
    assert "| unknown | text | its config has no sizes |" in lines
    assert "| wrong | 0 | 0 | 1 | 1 |" in lines
