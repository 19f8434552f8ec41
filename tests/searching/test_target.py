"""The target of a search: masks that a runtime would run as another model are not proposed."""

from __future__ import annotations

import copy
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, PreTrainedConfig

from raysearch.checkpoints.config_rules import shrink_config
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.periods import Values
from raysearch.checkpoints.runtimes import RUNTIMES, Runtime, place_limits
from raysearch.configuration import build
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.site import Sites
from raysearch.core.trial import joint_removals, ranked
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.models.description import describe
from raysearch.models.spec import ModelSpec
from raysearch.searching.forecaster import forecast_search
from raysearch.searching.gap import gap_of
from raysearch.searching.observer import Observer, Tracker
from raysearch.searching.result import SearchResult
from raysearch.searching.run import run_search
from raysearch.searching.search_record import SEARCHES
from raysearch.searching.target import limits_of
from tests.cli.conftest import World
from tests.models.conftest import write_llama
from tests.models.families import tiny
from tests.sentences import Sentences

N_LAYERS = 9  # four groups of two layers, and a layer after them


@pytest.fixture(scope="module")
def gpt_oss(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny gpt-oss, of which vLLM takes every other layer to attend to a window only."""
    folder = tmp_path_factory.mktemp("gpt_oss") / "model"
    shutil.copytree(world.model, folder, ignore=shutil.ignore_patterns("*.safetensors", "*config.json"))
    shutil.copy(world.model / "tokenizer_config.json", folder)
    model = tiny(
        "gpt_oss",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=4,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model.save_pretrained(folder)
    return folder


def search(world: World, model: Path, **changes: Any) -> SearchResult:
    """Run a search in the working folder."""
    return run_search(build.search_spec(world.search(model=model, **changes)), Observer(), Tracker())


def has_whole_groups(mask: Mask) -> bool:
    """Whether a mask has whole groups of two layers."""
    return N_LAYERS - 1 not in mask and all(layer ^ 1 in mask for layer in mask)


def test_exhaustive_finds_the_best_of_all_masks_of_groups(world: World, gpt_oss: Path, cwd: Path) -> None:
    options = {"searcher": "exhaustive", "remove": 4, "screening": "off"}
    unlimited = search(world, gpt_oss, **options)
    losses = {trial.mask: trial.loss for trial in unlimited.trials if trial.loss is not None and trial.mask}
    assert len(losses) == 126
    allowed = {mask: loss for mask, loss in losses.items() if has_whole_groups(mask)}
    assert len(allowed) == 6
    limited = search(world, gpt_oss, **options, target="vllm")
    assert limited.mask == min(allowed, key=lambda mask: (allowed[mask], mask))
    assert limited.loss == min(allowed.values())
    assert {trial.mask for trial in limited.trials} == {Mask(), *allowed}
    assert limited.work.evaluations.computed == 0, "the evaluations of the other search are in the ledger"
    with closing(Ledger(cwd / "mlruns" / "ledger.db")) as ledger:
        gap = gap_of(SEARCHES.find(ledger, limited.search_id), ledger)
    assert (gap.n_masks, gap.rank, gap.best) == (6, 1, limited.mask)


@pytest.mark.parametrize("searcher", ["greedy", "beam", "genetic", "cbo", "cbo_gradient", "taylor", "angular_distance"])
def test_every_mask_of_a_search_has_whole_groups(searcher: str, world: World, gpt_oss: Path, cwd: Path) -> None:
    result = search(world, gpt_oss, searcher=searcher, remove=4, target="vllm", protect="[0]")
    assert len(result.removed) == 4
    masks = {trial.mask for trial in result.trials}
    assert all(has_whole_groups(mask) and 0 not in mask for mask in masks)
    if searcher == "greedy":
        assert result.removal_order is not None
        assert {*result.removal_order[:2]} in ({2, 3}, {4, 5}, {6, 7})
        assert [*result.best_by_size] == [2, 4]


def test_groups_are_compared_as_layers_are(world: World, gpt_oss: Path, cwd: Path) -> None:
    result = search(world, gpt_oss, searcher="one_shot", screening="off", remove=4, target="vllm")
    assert result.separation is not None
    assert (result.separation.by_layer, result.separation.n_others) == (True, 2)
    singles = {trial.mask: trial.loss for trial in ranked(result.trials) if len(trial.mask) == 2}
    assert len(singles) == 4
    *_, worst = (mask for mask in singles if {*mask} <= {*result.removed})
    assert result.separation.reference == worst
    assert f"costlier than group {worst}, the costliest of those removed, on these 8 samples" in str(result.separation)
    (joint,) = joint_removals(result.trials, result.space_sites)
    deltas = {trial.mask: trial.delta or 0 for trial in result.trials}
    assert joint.delta == deltas[result.mask]
    assert joint.summed == pytest.approx(sum(deltas[mask] for mask in singles if {*mask} <= {*result.removed}))


def test_a_range_takes_the_multiples_in_it(world: World, gpt_oss: Path, cwd: Path) -> None:
    result = search(world, gpt_oss, remove="1..5", target="vllm")
    assert [*result.best_by_size] == [2, 4]
    budgeted = search(world, gpt_oss, remove="auto", target="vllm", budget__loss=9, speed__enabled="false")
    assert budgeted.recommendation is not None
    assert [size.n_removed for size in budgeted.recommendation.sizes] == [2, 4, 6, 8]
    assert len(budgeted.removed) == 8


def test_a_target_that_forbids_nothing_changes_the_id_alone(world: World, cwd: Path) -> None:
    without = search(world, world.model)
    limited = search(world, world.model, target="[vllm,llama.cpp]")
    assert limited.trials == tuple(replace(trial, cached=True) for trial in without.trials)
    assert limited.search_id != without.search_id
    assert search(world, world.model, target="[llama.cpp,vllm,vllm]").search_id == limited.search_id
    assert search(world, world.model, target="null").search_id == without.search_id
    assert limited.target is not None
    assert str(limited.target) == "target=[vllm,llama.cpp] forbids no mask of this model"
    assert without.target is None


def test_what_a_target_forbids_is_said_before_the_search(world: World, gpt_oss: Path, cwd: Path) -> None:
    spec = build.search_spec(world.search(model=gpt_oss, remove=4, target="vllm", protect="[0]"))
    target = forecast_search(spec, Observer()).target
    assert target is not None
    first, reason = target.lines
    assert first == (
        "target=vllm allows only groups of 2 layers (0-1, 2-3, …) and keeps 1 layer [8]: 3 of 70 masks of 4 layers are "
        "left"
    )
    assert "derives which layers attend to a window only from their places, one in 2" in reason


def test_wrong_targets_and_numbers_are_refused(world: World, gpt_oss: Path, cwd: Path, sentences: Sentences) -> None:
    sentences.hide(str(gpt_oss), "model")
    cases = [
        {"target": "vlm"},
        {"target": "[vllm,llamacpp]"},
        {"target": "3"},
        {"target": "vllm", "remove": 3},
        {"target": "vllm", "remove": "3..3"},
        {"target": "vllm", "remove": 8, "protect": "[4]"},
    ]
    sentences.refused_each(lambda **changes: search(world, gpt_oss, **changes), cases)


#: Families of which some runtimes derive properties of layers from places, with numbers of layers.
FAMILIES = {
    "gpt_oss": 9,
    "gemma3_text": 14,
    "gemma4_text": 7,
    "smollm3": 13,
    "qwen3_next": 14,
    "qwen3_5_text": 12,
    "llama4_text": 13,
    "cohere2": 9,
    "minimax": 6,
    "jamba": 17,
}


def misread(runtime: Runtime, config: PreTrainedConfig, mask: Mask, n_layers: int) -> str | None:
    """Why a runtime would run another model than the export of a mask; None if it would not."""
    kept = KeptBlocks(Sites.of_equal_layers(n_layers).blocks(mask), n_layers)
    pruned = copy.deepcopy(config)
    shrink_config(pruned, kept)
    return runtime.misread(Values.of_config(pruned.to_dict()), kept)


def test_no_legal_mask_is_misread_by_the_target() -> None:
    n_limited = 0
    for family, n_layers in FAMILIES.items():
        settings: dict[str, Any] = {"pad_token_id": None, "num_hidden_layers": n_layers}
        config = AutoConfig.for_model(family, **settings)
        for name, runtime in RUNTIMES.items():
            limits = place_limits(Values.of_config(config.to_dict()), n_layers, [name])
            try:
                problem = Problem.of_model(Sites.of_equal_layers(n_layers), "auto", limits=limits)
            except UserError:
                assert misread(runtime, config, Mask.of(0), n_layers), (family, name)
                continue
            parents = problem.children([problem.dense])
            while parents:
                masks = [*map(problem.sites.mask_of, parents)]
                assert {misread(runtime, config, mask, n_layers) for mask in masks} == {None}, (family, name, masks)
                parents = tuple(filter(problem.is_legal, problem.children(parents[:20])))
            if problem.group > 1:
                n_limited += 1
                assert misread(runtime, config, Mask.of(0), n_layers), (family, name)
    assert n_limited >= 8


def test_llama_cpp_is_not_limited_where_raysearch_writes_a_list(tmp_path: Path) -> None:
    file = write_llama(tmp_path / "gemma2.gguf", 8, architecture="gemma2")
    info = describe(ModelSpec("tiny", str(file)))
    assert limits_of(info, ["llama.cpp"]).group == 1
    with_adapter = limits_of(replace(info, model=replace(info.model, adapter="lora")), ["llama.cpp"])
    assert with_adapter.group == 2, "its converter writes no list"


def test_a_target_without_code_for_the_model_is_refused(tmp_path: Path, sentences: Sentences) -> None:
    tiny("mpt", d_model=16, n_heads=2, n_layers=4).save_pretrained(tmp_path)
    info = describe(ModelSpec("tiny", str(tmp_path)))
    with sentences.refused(UserError):
        limits_of(info, ["vllm", "mlx"])
