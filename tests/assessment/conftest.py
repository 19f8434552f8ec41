"""A tiny model on disk with a finished search, overrides to assess it, and items for lm-eval's tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from raysearch.assessment.assess import assess_masks, plan_assessment
from raysearch.assessment.context import AssessmentPlan
from raysearch.assessment.results import Assessments
from raysearch.assessment.task_files import own_files
from raysearch.cluster.options import ClusterOptions
from raysearch.configuration.build import assess_spec
from raysearch.configuration.compose import compose
from raysearch.core.mask import Mask
from raysearch.evaluation.pool import Pool
from raysearch.evaluation.replica import Replica
from raysearch.ledger.ledger import Ledger
from raysearch.models.description import describe
from raysearch.models.loading import load_model, quiet
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack
from tests.cli.conftest import World, cwd, prose, run, tables, world

__all__ = ["cwd", "run", "tables", "world"]  # fixtures

WORDS = ["army", "navy", "treaty", "union", "law"]
CHOICES = ["war and peace", "power", "money", "trade"]
#: MMLU's: each has a file of its name next to the file of lm-eval's group.
SUBJECTS = sorted(file.stem.removeprefix("mmlu_") for file in own_files()["mmlu"].parent.glob("mmlu_*.yaml"))
#: A row of each ready task's data, in the layout of the data folder, out of words that the tiny tokenizer knows.
ROWS: dict[str, list[dict[str, Any]]] = {
    "piqa/validation": [
        {"goal": "the people of the state", "sol1": "war and peace", "sol2": "power", "label": place % 2}
        for place in range(4)
    ]
    + [
        {"goal": "the great nation", "sol1": "money", "sol2": "trade with every country", "label": 1},
        {"goal": "the army", "sol1": "citizens shall revenue", "sol2": "treaty", "label": 0},
    ],
    "arc_easy/test": [
        {
            "id": "a",
            "query": f"Question: what {word} has been?\nAnswer:",
            "choices": ["power", "war and peace", "the union"],
            "gold": gold,
        }
        for gold, word in enumerate(["government", "treaty", "navy"])
    ],
    "arc_challenge/test": [
        {"id": "c", "query": "Question: which law?\nAnswer:", "choices": ["of nation", "of peace"], "gold": 1}
    ],
    "openbookqa/test": [
        {"id": "o", "query": "Question: money can\nAnswer:", "choices": ["a", "trade", "c", "d"], "gold": 1}
    ],
    "boolq/validation": [
        {"question": "is the union great", "answer": True, "passage": "The union of every state is great."},
        {"question": "is war peace", "answer": False, "passage": "War is no peace."},
    ],
    "winogrande/validation": [
        {
            "qID": "w",
            "sentence": "The army feared the navy because _ was great.",
            "option1": "army",
            "option2": "navy",
            "answer": "2",
        }
    ],
    "hellaswag/validation": [
        {
            "ind": 1,
            "activity_label": "Trade",
            "ctx_a": "[header] How to trade [title] Know the people.",
            "ctx_b": "the people",
            "ctx": "",
            "endings": ["shall pay [substeps] money.", "make war.", "sail.", "sleep."],
            "source_id": "wikihow~1",
            "split": "val",
            "split_type": "indomain",
            "label": "0",
        }
    ],
    "lambada/test": [
        {"text": "the great army of the united state"},
        {"text": "citizens"},
        {"text": "every citizen shall pay the revenue of the government"},
    ],
    **{
        f"mmlu/{split}": [
            {"subject": subject, "question": f"the {word} of the {place}?", "choices": CHOICES, "answer": place % 4}
            for subject in SUBJECTS
            for place, word in enumerate(WORDS[:n_rows])
        ]
        for split, n_rows in (("test", 2), ("dev", 5))
    },
}

Assess = Callable[..., Assessments]


@pytest.fixture(autouse=True)
def _environment_described_once(environment_described_once: None) -> None:
    """Many of these tests run lm-eval."""


@pytest.fixture(scope="session")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder."""
    folder = tmp_path_factory.mktemp("data")
    for name, rows in ROWS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """An empty ledger."""
    opened = Ledger(tmp_path / "store" / "ledger.db")
    yield opened
    opened.close()


INLINE = ClusterOptions("inline")


def read(overrides: Iterable[str], folder: Path, ledger: Path, cluster: ClusterOptions = INLINE) -> AssessmentPlan:
    """Return the plan of an assessment from overrides under ``assess``."""
    spec = assess_spec(compose("assess", ["assess=none", *overrides]))
    return plan_assessment(spec, ModelSpec("tiny", str(folder)), cluster, ledger)


def without_layers(folder: Path, mask: Mask) -> PreTrainedModel:
    """Return a model of plain transformers without some layers."""
    model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    remaining = [layer for number, layer in enumerate(model.model.layers) if number not in mask]
    model.model.layers = type(model.model.layers)(remaining)
    for number, layer in enumerate(remaining):
        layer.self_attn.layer_idx = number
    model.config.num_hidden_layers = len(remaining)
    return model


def first_layers(folder: Path, n: int, out: Path) -> Path:
    """Write the first layers of a model, with its embedding and head: part of its work, at its real sizes."""
    with quiet():  # of the layers that are left out
        AutoModelForCausalLM.from_pretrained(folder, num_hidden_layers=n).save_pretrained(out)
    AutoTokenizer.from_pretrained(folder).save_pretrained(out)
    return out


def of_text(name: str, file: Path, sampling: str = "sequential", samples: object = "all") -> str:
    """Return the override that adds a text to an assessment."""
    return f"assess.texts.{name}=data=file data.path={file} data.samples={samples} data.sampling={sampling}"


def no_pool() -> Pool:
    """Return no pool, where all results are recorded."""
    raise AssertionError("everything is recorded")


def assert_recorded(assess: Assess, mask: Mask, overrides: list[str], computed: int) -> None:
    """Assert that so many numbers are computed, and that a second call reads them from the ledger."""
    first = assess([mask], *overrides)
    assert first.computed == computed
    second = assess([mask], *overrides, make_pool=no_pool)
    assert second.values == first.values
    assert second.computed == 0


class Stopping:
    """A pool that is interrupted before one of its jobs, and records the jobs that it has run."""

    n_replicas = 1

    def __init__(self, folder: Path, done: list[Any], after: int) -> None:
        self.inside = INLINE.join().open(describe(ModelSpec("tiny", str(folder))), 1)
        self.stats = self.inside.stats
        self.done = done
        self.after = after

    def run(self, jobs: Any, *args: Any) -> Any:
        for number, job in enumerate(jobs):
            if number == self.after:
                raise KeyboardInterrupt
            self.done.append(job)
            yield from self.inside.run([job], *args)

    def close(self) -> None:
        """Nothing to free."""


@pytest.fixture
def assess(world: World, ledger: Ledger) -> Assess:
    """A function that assesses masks of the tiny model by overrides under ``assess``, inline by default."""

    def call(masks: list[Mask], *overrides: str, folder: Path = world.model, **options: Any) -> Assessments:
        return assess_masks(read(overrides, folder, ledger.path), ledger, masks, **options)

    return call


@pytest.fixture(scope="module")
def replica(world: World) -> Replica:
    """A replica of the tiny model, without calibrations."""
    return Replica(LayerStack(load_model(locate(ModelSpec("tiny", str(world.model))))))


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of different lengths, a row each, one of them empty."""
    file = tmp_path_factory.mktemp("text") / "rows.jsonl"
    documents = [prose(length) for length in (60, 12, 36, 144, 24)]
    rows = [*documents[:2], "", *documents[2:], "the"]
    file.write_text("".join(f"{json.dumps({'text': row})}\n" for row in rows))
    return file
