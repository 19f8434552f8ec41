"""What `raysearch assess` says of real masks is what lm-eval's own command and a plain script say of the checkpoint."""

from __future__ import annotations

import json
import math
import sys
import warnings
from contextlib import closing
from typing import Any

import pytest
import torch
from torch.nn import functional

from raysearch.assessment.assess import assess_masks, plan_assessment
from raysearch.assessment.task_files import write_task_files
from raysearch.cluster.options import ClusterOptions
from raysearch.configuration.build import assess_spec
from raysearch.configuration.compose import compose
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger
from raysearch.models.export import export_checkpoint
from raysearch.models.spec import ModelSpec
from tests.assessment.conftest import first_layers
from tests.checkpoints.test_card import EVIDENCE

pytestmark = [
    pytest.mark.real,
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.usefixtures("environment_described_once"),
]

MASK = Mask.of(3, 7)
TASKS = ("hellaswag", "winogrande", "piqa")
ITEMS = 2
SEQ_LEN = 96


@pytest.fixture(scope="module")
def dense(tmp_path_factory, smollm2_folder):
    """The demo model's first layers: a third of its work."""
    folder = first_layers(smollm2_folder, 10, tmp_path_factory.mktemp("assess") / "dense")
    return ModelSpec("demo", str(folder), "float32")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, dense):
    """The model without the layers, as users get it."""
    out = tmp_path_factory.mktemp("assess") / "pruned"
    export_checkpoint(dense, MASK, out, overwrite=False, evidence=EVIDENCE)
    return out


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def assessments(store, data_folder, dense):
    """Everything but speed, of the resident model."""
    overrides = [f"assess.data_dir={data_folder}", f"assess.tasks=[{','.join(TASKS)}]", "assess.speed.enabled=false"]
    overrides += [f"assess.seq_len={SEQ_LEN}", f"assess.limit={ITEMS}"]
    spec = assess_spec(compose("assess", ["assess=paper", *overrides]))
    with closing(Ledger(store / "ledger.db")) as ledger:
        return assess_masks(plan_assessment(spec, dense, ClusterOptions("inline"), ledger.path), ledger, [MASK])


def test_accuracies_are_those_of_lm_evals_own_command(assessments, checkpoint, store, data_folder, monkeypatch):
    """The command runs in this process, which has imported already what takes it ten seconds."""
    from lm_eval import __main__ as lm_eval_command
    from lm_eval.tasks._index import TaskIndex

    folder, out = write_task_files(data_folder, store), store / "lm-eval"
    model_args = f"pretrained={checkpoint},dtype=float32"
    arguments = ["--model", "hf", "--model_args", model_args, "--device", "cpu", "--include_path", str(folder)]
    arguments += ["--tasks", ",".join(TASKS), "--limit", str(ITEMS), "--output_path", str(out)]
    monkeypatch.setattr(sys, "argv", ["lm_eval", *arguments])
    files = TaskIndex._iter_yaml_files  # of its own thousands, before ours, it reads those of these tasks alone
    tasks = {folder.name, *TASKS}
    only_these = staticmethod(lambda root: (file for file in files(root) if file.parent.name in tasks))
    monkeypatch.setattr(TaskIndex, "_iter_yaml_files", only_these)
    monkeypatch.setattr(lm_eval_command, "setup_logging", lambda: None)  # other tests have their own
    with warnings.catch_warnings(action="ignore"):
        lm_eval_command.cli_evaluate()
    (file,) = out.rglob("results_*.json")
    expected: dict[str, dict[str, Any]] = json.loads(file.read_text())["results"]
    for task in TASKS:
        theirs = {key.partition(",")[0]: value for key, value in expected[task].items() if key.endswith(",none")}
        assert assessments.by_mask[MASK][task].detail["metrics"] == theirs


def test_perplexities_are_those_of_a_plain_script(assessments, checkpoint, data_folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    for name, file in {"wikitext2": "test", "c4": "evaluation", "lambada": "test"}.items():
        lines = (data_folder / name / f"{file}.jsonl").read_text().splitlines()
        texts = [json.loads(line)["text"] for line in lines]
        if name == "lambada":
            rows = [tokenizer(text)["input_ids"] for text in texts[:ITEMS]]
        else:
            ids = tokenizer("\n\n".join(texts[:200]), verbose=False)["input_ids"]
            rows = [ids[start : start + SEQ_LEN] for start in range(0, ITEMS * SEQ_LEN, SEQ_LEN)]
        nats = n_tokens = 0.0
        for row in rows:
            with torch.inference_mode():
                logits = model(torch.tensor([row]), use_cache=False).logits[0, :-1]
            nats += float(functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum"))
            n_tokens += len(row) - 1
        assert assessments.values[MASK][name].value == pytest.approx(math.exp(nats / n_tokens), rel=1e-5), name
