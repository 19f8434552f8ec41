"""Searches for masks that are repaired by the scales of their cuts, from the command to the checkpoint."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import raysearch
from raysearch.configuration import build
from raysearch.core.json import from_json, to_json
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.models.source import locate
from raysearch.searching.forecaster import expected_cost
from raysearch.searching.notices import describe_model
from raysearch.searching.observer import Observer, Tracker
from raysearch.searching.result import SearchResult, in_brief
from raysearch.searching.run import run_search
from raysearch.studies.plan import plan_study
from tests.cli.conftest import World
from tests.sentences import Sentences
from tests.tracking.simulated import greedy_search


def search(world: World, **changes: Any) -> SearchResult:
    """Run a search in the working folder."""
    return run_search(build.search_spec(world.search(**changes)), Observer(), Tracker())


def test_a_search_and_a_repetition_have_the_same_scales_and_losses(world: World, cwd: Path) -> None:
    result = search(world, repair="scale")
    scaled = {trial.mask: trial for trial in result.trials}
    assert all(trial.scales for mask, trial in scaled.items() if mask and max(mask.layers) < result.n_layers - 1)
    assert result.scales == scaled[result.mask].scales
    assert from_json(SearchResult, to_json(result)) == result
    assert in_brief(result)["path"][-1]["scales"] == [vars(scale) for scale in result.scales]
    assert "×" in str(result)
    assert "norm_ratio" in result.statistics
    repeated = search(world, repair="scale")
    assert repeated.search_id == result.search_id
    assert repeated.work.layer_forwards.computed == 0
    assert [(trial.mask, trial.loss, trial.scales) for trial in repeated.trials] == [
        (trial.mask, trial.loss, trial.scales) for trial in result.trials
    ]


def test_a_ledger_keeps_the_losses_with_and_without_the_repair_apart(world: World, cwd: Path) -> None:
    masks = "[[0],[1,2],[]]"
    before = raysearch.score(*world.overrides(masks=masks))
    scaled = raysearch.score(*world.overrides(masks=masks, repair="scale"))
    after = raysearch.score(*world.overrides(masks=masks))
    assert [score.loss for score in after] == [score.loss for score in before]
    assert all(score.cached for score in after)
    assert not any(score.cached for score in scaled)
    assert [bool(score.scales) for score in scaled] == [True, True, False]
    assert [score.loss != other.loss for score, other in zip(scaled, before, strict=True)] == [True, True, False]
    with closing(Ledger(cwd / "mlruns" / "ledger.db")) as ledger:
        assert len([*ledger.read("SELECT DISTINCT calibration FROM evaluations")]) == 2


def test_the_exported_checkpoint_has_the_loss_of_the_search(world: World, cwd: Path) -> None:
    scaled_search = raysearch.search(*world.search(repair="scale"))
    for remove in (1, 2):
        trial = scaled_search.result.best_by_size[remove]
        out = cwd / f"pruned-{remove}"
        report = scaled_search.export(out, remove=remove)
        assert bool(report.changed) == bool(trial.scales)
        record = json.loads((out / "raysearch.json").read_text())
        assert record.get("scales", []) == [vars(scale) for scale in trial.scales]
        (score,) = raysearch.score(*world.overrides(model=out, masks="[[]]"))
        assert score.loss == pytest.approx(trial.loss, rel=1e-4)
        model: Any = AutoModelForCausalLM.from_pretrained(out)
        assert model(torch.tensor([[3, 4, 5]])).logits.isfinite().all()


def test_the_forecast_of_a_search_includes_the_statistic(world: World, cwd: Path) -> None:
    costs = {}
    for repair in ("none", "scale"):
        spec = build.search_spec(world.search(repair=repair))
        costs[repair] = expected_cost(spec, describe_model(spec.evaluation.model, Observer())).rounds
    assert costs["none"] is not None
    assert costs["scale"] is not None
    added = [
        scaled.layer_forwards - plain.layer_forwards for scaled, plain in zip(*reversed(costs.values()), strict=True)
    ]
    result = search(world, repair="scale", screening="off")
    assert added == [result.n_layers, 0]
    assert result.work.layer_forwards.computed == sum(cost.layer_forwards for cost in costs["scale"])


def test_a_record_without_scales_is_read() -> None:
    record = json.loads(to_json(greedy_search()))
    for trial in record["trials"]:
        del trial["scales"]
    assert from_json(SearchResult, json.dumps(record)) == greedy_search()


def test_what_is_recorded_of_a_mask_is_without_its_repair(world: World, cwd: Path) -> None:
    one_mask = world.search(remove=1, protect="[0,1,3,4]")
    plain = raysearch.search(*one_mask)
    text = f"data=file data.path={world.text} data.sampling=sequential data.samples=4 data.allow_evaluation_split=true"
    plain.assess("assess=none", f"assess.texts.mine={text}", "assess.seq_len=16")
    scaled = raysearch.search(*one_mask, "repair=scale")
    assert scaled.result.mask == plain.result.mask
    assert plain.assessed()
    assert not scaled.assessed()


def test_quantised_weights_hold_no_scales(world: World, cwd: Path, sentences: Sentences) -> None:
    shutil.copytree(world.model, cwd / "quantised")
    config = json.loads((cwd / "quantised/config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (cwd / "quantised/config.json").write_text(json.dumps(config))
    spec = build.search_spec(world.search(model="quantised", repair="scale"))
    info: Any = SimpleNamespace(model=locate(spec.evaluation.model))
    with sentences.refused(UserError):
        spec.check_model(info)


def test_what_does_not_know_repaired_masks_is_refused(world: World, cwd: Path, sentences: Sentences) -> None:
    scaled_search = raysearch.search(*world.search(repair="scale", remove=1, searcher="one_shot"))
    calls = {
        "assess": lambda: scaled_search.assess("assess=offline"),
        "recover": lambda: scaled_search.recover(cwd / "healed"),
        "gguf": lambda: scaled_search.export_gguf(cwd / "pruned.gguf"),
        "unknown": lambda: search(world, repair="scales"),
        "halves": lambda: search(world, repair="scale", space="halves"),
        "masks": lambda: raysearch.score(*world.overrides(masks="[[1a]]", repair="scale")),
        "refine": lambda: search(world, repair="scale", refine="recover"),
        "study": lambda: plan_study(
            build.study_spec(world.search(repair="scale", study__grid__seed="[0,1]", assess="offline"))
        ),
    }
    sentences.refused_each(lambda name: calls[name](), list(calls))


def test_a_study_compares_repairs_as_searchers(world: World, cwd: Path) -> None:
    study = build.study_spec(
        world.search(study__grid__searcher="[greedy]", study__grid__repair="[none,scale]", remove=2)
    )
    assert [cell.searcher for cell in study.cells] == ["greedy, repair=none", "greedy, repair=scale"]
    assert len({cell.calibration for cell in study.cells}) == 1
    plan = plan_study(study)
    first, second = plan.cells
    assert second.shared > first.shared, "nothing is shared with the other repair, and the statistic is added"
