"""The arithmetic probe on the real model: equal to that of the model without the layers, and computed only once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raysearch.assessment.probe import ProbeJob, probe_results
from raysearch.core.mask import Mask
from raysearch.generation.arithmetic import draw_problems, encode_probe
from raysearch.recovery.recovery_record import _share
from tests.assessment.conftest import Assess, first_layers, without_layers
from tests.sentences import Sentences

MASK = Mask.of(3, 7)
ITEMS = 5


@pytest.mark.real
def test_the_probe_is_what_the_model_without_the_layers_says(
    assess: Assess, smollm2_folder: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    folder = first_layers(smollm2_folder, 10, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    overrides = ["assess.probe.enabled=true", f"assess.probe.items={ITEMS}", "assess.batch_size=2"]
    first, second = (assess([MASK], *overrides, folder=folder) for _ in range(2))
    assert (first.computed, second.computed) == (2, 0)
    assert first.values == second.values

    expected = {}
    for mask in (Mask(), MASK):
        plain = without_layers(folder, mask)
        log_p = []
        right = []
        for problem in draw_problems(ITEMS, seed=42):
            ids = tokenizer(problem.prompt)["input_ids"]
            tokens = [tokenizer(f"{problem.prompt}{digit}")["input_ids"][-1] for digit in range(10)]
            with torch.no_grad():
                all_log_p = plain(torch.tensor([ids]), use_cache=False).logits[0, -1].log_softmax(-1)
            log_p.append(float(all_log_p[tokens[problem.digit]]))
            right.append(float(all_log_p[tokens].argmax() == problem.digit))
        expected[mask] = {"log_p": log_p, "right": right}
    for mask in (Mask(), MASK):
        results = first.by_mask[mask]
        log_p_mean, top_1 = (sum(expected[mask][name]) / ITEMS for name in ("log_p", "right"))
        assert results["arithmetic_log_p"].estimate.value == pytest.approx(log_p_mean, rel=1e-4)
        assert results["arithmetic_top1"].estimate.value == pytest.approx(100 * top_1)
    change = first.by_mask[MASK]["arithmetic_log_p"].detail["change"]
    differences = torch.tensor(expected[MASK]["log_p"]) - torch.tensor(expected[Mask()]["log_p"])
    assert change == pytest.approx(float(differences.mean()), rel=1e-3)


@pytest.mark.real
def test_smollm2s_digits_are_separate_tokens(smollm2_tokenizer) -> None:
    for problem in draw_problems(20, seed=0):
        probe = encode_probe(problem, smollm2_tokenizer)
        assert smollm2_tokenizer.decode(probe.ids) == problem.prompt
        assert [smollm2_tokenizer.decode([token]) for token in probe.digits] == list("0123456789")


def test_retention_and_change_count_the_items_as_pairs() -> None:
    dense = {"log_p": [-1.0, -2.0, -3.0], "right": [1.0, 1.0, 0.0]}
    pruned = {"log_p": [-2.0, -3.0, -4.0], "right": [1.0, 0.0, 0.0]}
    top_1, log_p = probe_results(pruned, dense).values()
    assert top_1.estimate.value == pytest.approx(100 / 3)
    assert top_1.retention is not None
    assert top_1.retention.value == pytest.approx(0.5)
    assert top_1.retention.error == pytest.approx(50 / 3**0.5 / (200 / 3))
    assert (sum(top_1.items), sum(log_p.items)) == pytest.approx((100 / 3, -3.0))
    share = _share(top_1, probe_results(dense, dense)[top_1.metric.name])  # of a recovered model's number
    assert share is not None
    assert share.error == pytest.approx(top_1.retention.error)
    assert (log_p.estimate.value, log_p.detail) == (-3.0, {"change": -1.0, "change_error": 0.0})
    assert probe_results(dense, {**dense, "right": [0.0] * 3})["arithmetic_top1"].retention is None


def test_a_job_has_a_readable_name() -> None:
    assert str(ProbeJob(Mask.of(9, 20), (), 8)) == "the arithmetic probe of {9,20}"


def test_what_is_refused(assess: Assess, tmp_path: Path, sentences: Sentences) -> None:
    (tmp_path / "text.jsonl").write_text("no json\n")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "other.jsonl").write_text('{"question": "1 + 1"}\n')
    cases = [
        "assess.probe.items=9",
        "assess.probe.items=1",
        "assess.probe.items=7000",
        "assess.probe.seed=-1",
        f"assess.probe.file={tmp_path}/none.jsonl",
        f"assess.probe.file={tmp_path}/text.jsonl",
        f"assess.probe.file={tmp_path}/list.jsonl",
        f"assess.probe.file={tmp_path}/other.jsonl",
    ]
    sentences.refused_each(
        lambda word: assess([MASK], "assess.probe.enabled=true", word),
        cases,
    )
