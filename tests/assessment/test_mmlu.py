"""MMLU from local files: lm-eval's own 57 tasks, and its mean over all their items."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from raysearch.assessment.subjects import rows_of_subject
from raysearch.assessment.task_files import own_files, task_manager, write_task_files
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from tests.assessment.conftest import SUBJECTS, Assess
from tests.assessment.test_harness import MASK, by_lm_eval
from tests.cli.conftest import World
from tests.sentences import Sentences


def test_each_subject_is_asked_as_lm_eval_asks_it(items: Path, tmp_path: Path) -> None:
    folder = write_task_files(items, tmp_path)
    ours = task_manager(str(folder), "mmlu").load(["mmlu"])["tasks"]
    files = {"test": str(items / "mmlu" / "test.jsonl"), "dev": str(items / "mmlu" / "dev.jsonl")}
    assert len(SUBJECTS) == 57
    assert ours.keys() == {f"mmlu::{subject}" for subject in SUBJECTS}
    for subject in SUBJECTS:
        config = load_yaml(own_files()["mmlu"].with_name(f"mmlu_{subject}.yaml"))
        read: Callable[..., Any] = lambda subject=subject, **_: rows_of_subject(subject, **files)  # noqa: E731
        theirs = ConfigurableTask(config={**config, "custom_dataset": read})
        for row, row_of_theirs in zip(ours[f"mmlu::{subject}"].test_docs(), theirs.test_docs(), strict=True):
            assert row == row_of_theirs
            for task in (ours[f"mmlu::{subject}"], theirs):
                task.set_fewshot_seed(0)
            assert ours[f"mmlu::{subject}"].fewshot_context(row, 5) == theirs.fewshot_context(row, 5), subject


def test_the_accuracy_is_lm_evals_and_has_its_items(assess: Assess, world: World, items: Path, tmp_path: Path) -> None:
    overrides = ["assess.tasks=[mmlu]", f"assess.data_dir={items}", "assess.limit=1", "assess.shots=5"]
    result = assess([MASK], *overrides).by_mask[MASK]["mmlu"]
    expected = by_lm_eval(world, MASK, ["mmlu"], write_task_files(items, tmp_path), limit=1, num_fewshot=5)["mmlu"]
    assert result.estimate.value == pytest.approx(100 * expected["acc,none"])
    assert (result.detail["n_items"], result.detail["shots"]) == (57, 5)
    assert len(result.items) == 57, "items of all subjects"


def test_both_files_are_needed(assess: Assess, items: Path, tmp_path: Path, sentences: Sentences) -> None:
    data = tmp_path / "data"
    shutil.copytree(items, data)
    (data / "mmlu" / "dev.jsonl").unlink()
    with sentences.refused(UserError):
        assess([], "assess.tasks=[mmlu]", f"assess.data_dir={data}")
    assert assess([], "assess.tasks=[piqa]", f"assess.data_dir={data}").by_mask[Mask()]
