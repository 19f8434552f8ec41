"""lm-eval's tasks on a resident model: the accuracies are those of lm-eval for the model without the layers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysearch.assessment.harness import task_result
from raysearch.assessment.task_files import own_files, ready_tasks, task_manager, write_task_files
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from tests.assessment.conftest import ROWS, Assess, Stopping, assert_recorded, without_layers
from tests.cli.conftest import World
from tests.sentences import Sentences

MASK = Mask.of(0, 2)


def by_lm_eval(world: World, mask: Mask, tasks: list[str], folder: Path, **options: Any) -> dict[str, Any]:
    """Return the results of lm-eval for a model without some layers, without any code of this package."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(world.model)
    output = simple_evaluate(
        model=HFLM(pretrained=without_layers(world.model, mask), tokenizer=tokenizer, batch_size=1),
        tasks=tasks,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
        **options,
    )
    return output["results"]


def rows_of(task: str) -> str:
    """The key in `ROWS` of a task."""
    return next(name for name in ROWS if name.startswith(task.removesuffix("_openai")))


def test_accuracies_are_those_of_lm_eval(assess: Assess, world: World, items: Path, tmp_path: Path) -> None:
    tasks = ["piqa", "boolq", "winogrande", "lambada_openai"]  # one of each kind of prompt and metric
    assessments = assess([MASK], f"assess.tasks=[{','.join(tasks)}]", f"assess.data_dir={items}", "assess.batch_size=3")
    expected = by_lm_eval(world, MASK, tasks, write_task_files(items, tmp_path))
    for task in tasks:
        result = assessments.by_mask[MASK][task]
        of_metrics = {key.partition(",")[0]: value for key, value in expected[task].items() if "," in key}
        for metric in ("acc", "acc_norm"):
            assert result.detail["metrics"].get(metric) == of_metrics.get(metric), (task, metric)
        headline = "acc_norm" if "acc_norm" in of_metrics else "acc"
        assert result.estimate.value == 100 * of_metrics[headline]
        assert (result.metric.unit, result.metric.group) == ("%", "accuracy")
        assert result.detail["n_items"] == len(ROWS[rows_of(task)])
    assert assessments.values[MASK]["piqa"].error is not None, "an accuracy's error has a formula"


def test_what_is_in_percent_already_stays_as_it_is() -> None:
    for task, f1, shown in (("squadv2", 64.2, 64.2), ("squadv2", 0.5, 0.5), ("drop", 0.642, 64.2)):
        output = {"metrics": {"f1": f1, "f1_stderr": f1 / 10}, "higher_is_better": {"f1": True}, "n_items": 9}
        result = task_result(task, output, output)
        assert (result.estimate.value, result.estimate.error) == pytest.approx((shown, shown / 10))
        assert result.metric.unit == "%"


def test_chat_models_are_asked_in_their_template(
    assess: Assess, world: World, items: Path, tmp_path: Path, sentences: Sentences
) -> None:
    overrides = ["assess.tasks=[piqa]", f"assess.data_dir={items}", "assess.batch_size=1"]
    with sentences.refused(UserError):
        assess([], *overrides, "assess.chat=true")
    shutil.copytree(world.model, tmp_path / "model")
    template = (
        "{% if YEAR == '2024' %}the law . {% endif %}"  # which it is every day
        "{% for m in messages %}the people . {{ m.content }} . {% endfor %}"
        "{% if add_generation_prompt %}the great army . {% endif %}"
    )
    world = replace(world, model=tmp_path / "model")
    (folder := tmp_path / "tasks").mkdir()
    files = write_task_files(items, folder)
    by_chat = {}
    for chat in (False, True):
        (world.model / "chat_template.jinja").write_text(template.replace("YEAR", "'2024'"))
        expected = by_lm_eval(world, Mask(), ["piqa"], files, apply_chat_template=chat)["piqa"]
        (world.model / "chat_template.jinja").write_text(template.replace("YEAR", "strftime_now( '%Y' )"))
        by_chat[chat] = assess([], *overrides, f"assess.chat={str(chat).lower()}", folder=world.model)
        assert by_chat[chat].computed == 1
        assert by_chat[chat].values[Mask()]["piqa"].value == 100 * expected["acc_norm,none"]
    items_of = [assessments.by_mask[Mask()]["piqa"].items for assessments in by_chat.values()]
    assert items_of[0] != items_of[1]


def test_recorded_tasks_load_no_model(assess: Assess, items: Path) -> None:
    overrides = ["assess.tasks=[piqa,boolq]", f"assess.data_dir={items}"]
    assert_recorded(assess, MASK, overrides, computed=4)
    assert assess([MASK, Mask.of(3)], *overrides).computed == 2, "a new mask alone"


@pytest.mark.parametrize("change", ["limit", "shots", "data"])
def test_what_a_result_depends_on_is_computed_again(assess: Assess, items: Path, tmp_path: Path, change: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(items, data)
    shutil.copy(data / "piqa" / "validation.jsonl", data / "piqa" / "train.jsonl")
    overrides = ["assess.tasks=[piqa]", f"assess.data_dir={data}"]
    assert assess([], *overrides).by_mask[Mask()]["piqa"].detail["n_items"] == 6
    if change == "data":
        lines = (data / "piqa" / "validation.jsonl").read_text().splitlines()
        (data / "piqa" / "validation.jsonl").write_text("\n".join(lines[:3]) + "\n")
    second = assess([], *overrides, *([] if change == "data" else [f"assess.{change}=2"]))
    assert second.computed == 1
    detail = second.by_mask[Mask()]["piqa"].detail
    assert (detail["n_items"], detail["shots"]) == {"limit": (2, 0), "shots": (6, 2), "data": (3, 0)}[change]


def test_a_stop_loses_nothing_that_was_done(assess: Assess, world: World, items: Path) -> None:
    overrides = ["assess.tasks=[piqa,boolq]", f"assess.data_dir={items}"]
    done: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        assess([MASK], *overrides, make_pool=lambda: Stopping(world.model, done, after=3))
    assessments = assess([MASK], *overrides, make_pool=lambda: Stopping(world.model, done, after=99))
    assert assessments.computed == 1
    assert len(done) == len({str(job) for job in done}) == 4


TASK = """
task: {name}
tag: of_war
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: a
doc_to_target: right
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def own_tasks(folder: Path, *names: str, question: str = "the army") -> Path:
    """Write files of tasks, and a file with their single row."""
    folder.mkdir(exist_ok=True)
    rows = folder / "rows.jsonl"
    rows.write_text(json.dumps({"q": question, "a": ["war", "peace"], "right": 1}) + "\n")
    for name in names:
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, rows=rows))
    return folder


def test_own_task_files_come_first(assess: Assess, items: Path, tmp_path: Path) -> None:
    folder = own_tasks(tmp_path / "own", "mine")
    overrides = ["assess.tasks=[mine,piqa]", f"assess.task_dir={folder}", f"assess.data_dir={items}"]
    assessments = assess([], *overrides)
    assert [*assessments.values[Mask()]] == ["mine", "piqa"]
    assert assessments.computed == 2
    own_tasks(folder, question="the navy")
    assert assess([], *overrides).computed == 1, "the data next to the file are a part of its name in the ledger"


def test_a_group_has_a_number_where_its_file_says_how(assess: Assess, tmp_path: Path, sentences: Sentences) -> None:
    folder = own_tasks(tmp_path / "own", "first", "second")
    parts = "task: [first, second]\n"
    (folder / "whole.yaml").write_text(f"group: whole\n{parts}aggregate_metric_list: [{{metric: acc}}]\n")
    (folder / "bare.yaml").write_text(f"group: bare\n{parts}")
    results = assess([], "assess.tasks=[first,whole]", f"assess.task_dir={folder}").by_mask[Mask()]
    assert results["whole"].estimate.value == results["first"].estimate.value
    assert results["whole"].extent == "2 items, acc"
    for name in ("bare", "of_war"):
        with sentences.refused(UserError):
            assess([], f"assess.tasks=[{name}]", f"assess.task_dir={folder}")


def _as_on_the_hub(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row of the data folder in the layout that lm-eval's own task reads."""
    if name in ("arc_easy", "arc_challenge", "openbookqa"):
        question = row["query"].removeprefix("Question: ").removesuffix("\nAnswer:")
        labels = [*"ABCDE"][: len(row["choices"])]
        choices = {"text": row["choices"], "label": labels}
        return {"question": question, "question_stem": question, "choices": choices, "answerKey": labels[row["gold"]]}
    return {**row, "label": int(row["answer"])} if name == "boolq" else row


@pytest.mark.parametrize("name", [name for name in ready_tasks() if name != "mmlu"])
def test_ready_tasks_ask_as_lm_eval_does(name: str, items: Path, tmp_path: Path) -> None:
    """The same prompts, choices, right answers and metrics, from rows in the layout that each reads."""
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    ours = load_yaml(write_task_files(items, tmp_path) / f"{name}.yaml")
    assert task_manager(None, name).task_index[name].yaml_path == own_files()[name]
    theirs = load_yaml(own_files()[name])
    assert theirs["task"] == name
    rows = {"ours": ROWS[rows_of(name)], "theirs": [_as_on_the_hub(name, row) for row in ROWS[rows_of(name)]]}

    def task_on(config: dict[str, Any], data_rows: list[dict[str, Any]]) -> ConfigurableTask:
        split = ours.get("validation_split") or ours["test_split"]
        settings = {key: value for key, value in config.items() if "split" not in key and not key.startswith("dataset")}
        data: Callable[..., Any] = lambda **_: {split: Dataset.from_list(data_rows)}  # noqa: E731
        return ConfigurableTask(config={**settings, "test_split": split, "custom_dataset": data})

    our_task = task_on(ours, rows["ours"])
    their_task = task_on(theirs, rows["theirs"])
    for our_row, their_row in zip(our_task.test_docs(), their_task.test_docs(), strict=True):
        assert our_task.doc_to_text(our_row) == their_task.doc_to_text(their_row)
        assert our_task.doc_to_target(our_row) == _plain(their_task.doc_to_target(their_row))
        if ours["output_type"] == "multiple_choice":
            assert our_task.doc_to_choice(our_row) == their_task.doc_to_choice(their_row)
    assert ours["output_type"] == theirs["output_type"]
    assert [metric["metric"] for metric in ours["metric_list"]] == [
        metric["metric"] for metric in theirs["metric_list"]
    ]


def _plain(target: Any) -> Any:
    return int(target) if isinstance(target, str) and target.isdigit() else target


def test_ready_files_are_written_once(items: Path, tmp_path: Path) -> None:
    folder = write_task_files(items, tmp_path)
    assert folder.is_absolute()
    assert sorted(file.stem for file in folder.glob("*.yaml")) == ready_tasks()
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir() if file.suffix == ".yaml"}
    assert write_task_files(items, tmp_path) == folder
    assert before == {file: file.stat().st_mtime_ns for file in before}
    damaged, *_ = before
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:20])
    write_task_files(items, tmp_path)
    assert damaged.read_bytes() == whole, "it was half written by a command that was killed"


CODE = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
unsafe_code: true
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{until: ["\n"], max_gen_toks: 2, do_sample: false}}
metric_list: [{{metric: !function passing.pass_at_1, aggregation: mean, higher_is_better: true}}]
"""


def test_a_task_that_runs_code_needs_permission(assess: Assess, tmp_path: Path, sentences: Sentences) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps({"q": q, "a": "x"}) + "\n" for q in ("the army", "the navy")))
    (folder / "passing.py").write_text(
        "import os\n\n\ndef pass_at_1(references, predictions):\n    return float(os.environ['HF_ALLOW_CODE_EVAL'])\n"
    )
    (folder / "sums.yaml").write_text(CODE.format(rows=folder / "rows.jsonl"))
    overrides = ["assess.tasks=[sums]", f"assess.task_dir={folder}"]
    with sentences.refused(UserError):
        assess([], *overrides)
    result = assess([], *overrides, "assess.answers.run_code=true").by_mask[Mask()]["sums"]
    assert (result.estimate.value, result.metric.unit) == (100, "%"), "a share, in percent"
    half = assess([], *overrides, "assess.answers.run_code=true", "assess.share=0.5").by_mask[Mask()]["sums"]
    assert half.extent.startswith("1 item")
