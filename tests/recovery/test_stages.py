"""A search with heal=recover: layers are removed and the model is recovered in turns, the original model teaches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from transformers import AutoModelForCausalLM, AutoTokenizer

import raysearch
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.recovery import staged_search, steps, training
from raysearch.recovery.recovery_record import Training
from raysearch.recovery.staged_search import joined
from raysearch.searching.events import LossPoint
from raysearch.searching.stages import protected_after, stage_problems
from tests.cli.conftest import N_LAYERS, Run, World
from tests.recovery.conftest import done, search_once
from tests.sentences import Sentences

pytestmark = pytest.mark.slow

TOP_K = 8
WINDOWS, LENGTH = 4, 16  # of the held-out text


@pytest.fixture(scope="module")
def recover_with(world: World, other_text: Path) -> list[str]:
    """Return the overrides of a training on the searched text, and of an assessment on other text."""
    return [
        *("data=file", f"data.path={world.text}", "data.part=all", "data.seq_len=16", "data.samples=32"),
        *("recovery.max_tokens=48", f"recovery.top_k={TOP_K}", "recovery.max_steps=3", "recovery.learning_rate=0.02"),
        *("recovery.batch_size=4", "recovery.micro_batch_size=4", "recovery.checkpoint_steps=1"),
        *("recovery.patience=null", "assess=none", "assess.probe.enabled=false"),
        *(f"assess.seq_len={LENGTH}", f"assess.limit={WINDOWS}"),
        f"assess.texts.mine=data=file data.path={other_text} data.samples=all data.sampling=sequential",
    ]


@pytest.fixture(scope="module")
def command(world: World, recover_with: list[str]) -> list[str]:
    """Return the command of a search that removes a layer, then two more."""
    text = " ".join(f"'{override}'" for override in recover_with)
    return [
        "search",
        *world.search(remove=3),
        "schedule=[1,2]",
        "heal=recover",
        f"heal.recover_with={json.dumps(text)}",
    ]


@pytest.fixture(scope="module")
def whole(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store of that search."""
    return search_once(command[1:], tmp_path_factory)[1]


@pytest.fixture
def staged(whole: Path, cwd: Path) -> Path:
    """Copy the store of that search to the current folder, and return it."""
    return Path(shutil.copytree(whole, cwd / "mlruns"))


def final_folder(store: Path) -> Path:
    """Return the folder of the last stage's model."""
    (folder,) = (store / "recoveries").glob("stages-*/recovered")
    return folder


def weights(store: Path) -> bytes:
    """Return the bytes of the last stage's weights."""
    return (final_folder(store) / "model.safetensors").read_bytes()


def without_times(staged_result: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a staged result without times and the work of each process."""
    stages = [{key: stage[key] for key in stage if key not in ("seconds", "work")} for stage in staged_result["stages"]]
    return {**staged_result, "stages": stages}


def test_stages_may_repair_in_closed_form_instead_of_training(
    run: Run, world: World, other_text: Path, cwd: Path
) -> None:
    data = f"data=file data.path={world.text} data.part=all data.seq_len=16 data.samples=64 recovery.max_tokens=48"
    text = f"'assess.texts.mine=data=file data.path={other_text} data.sampling=sequential'"
    assess = f"assess=none {text} assess.limit=2 assess.seq_len=16"
    recover_with = f"recovery=closed_form recovery.held_out=0.5 {data} {assess}"
    overrides = [
        *world.search(remove=3),
        "schedule=[1,2]",
        "heal=recover",
        f"heal.recover_with={json.dumps(recover_with)}",
    ]
    result = done(run, "search", *overrides)
    (recovery,) = raysearch.open().search().recoveries()
    assert len(recovery.training.cuts) >= 2
    assert all("of the model of stage" in cut.cut for cut in recovery.training.cuts)
    model = final_folder(cwd / "mlruns")
    card = (model / "README.md").read_text()
    assert "the rest was recovered in turns, in 2 stages" in card
    assert "teacher" not in card
    (scored,) = done(run, "score", *world.overrides(model=model, store="other"), "masks=[[]]")
    assert result["staged"]["stages"][-1]["recovered_loss"] == pytest.approx(scored["loss"], rel=1e-6)


def test_each_stage_searches_and_recovers_the_model_of_the_stage_before(
    run: Run, command: list[str], staged: Path, world: World, recover_with: list[str], cwd: Path
) -> None:
    """The oracle: the first stage by the two commands that a user would type, then the second search by hand."""
    result = done(run, *command)
    first, second = result["staged"]["stages"]
    by_hand = done(run, "search", *world.search(remove=1, store="by_hand"))
    assert first["removed"] == first["searched_mask"] == by_hand["removed"]
    assert first["loss"] == by_hand["loss"]
    assert result["dense_loss"] == by_hand["dense_loss"]
    done(run, "recover", by_hand["search_id"], *recover_with, "--out", "first", "--store", "by_hand")
    next_search = done(run, "search", *world.search(model=cwd / "first", remove=2, store="by_hand"))
    assert first["recovered_loss"] == pytest.approx(next_search["dense_loss"], rel=1e-6)
    assert second["searched_mask"] == next_search["removed"]
    assert second["loss"] == pytest.approx(next_search["loss"], rel=1e-6)
    mask = Mask.of(*first["removed"]).then(Mask.of(*next_search["removed"]))
    assert result["removed"] == second["mask"] == mask.parts
    assert second["removed"] == mask.without(Mask.of(*first["mask"])).parts
    (scored,) = done(run, "score", *world.overrides(store="by_hand"), f"masks=[{mask.parts}]")
    assert result["loss"] == scored["loss"], "the original model without the layers, before any training"
    assert second["recovered_loss"] != result["loss"]
    assert result["staged"]["left_out"]["overlapping"] > 0, "of the text that is searched, not the searched windows"


def test_the_original_model_is_the_teacher_of_the_last_stage(
    run: Run, command: list[str], world: World, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle: the likeliest tokens by a plain forward of the original model."""
    setups: list[Any] = []

    def spied(setup: Any, *arguments: Any, **options: Any) -> Training:
        setups.append(setup)
        return training.train(setup, *arguments, **options)

    monkeypatch.setattr(steps, "train", spied)
    done(run, *command)
    assert len(setups) == 2
    model = AutoModelForCausalLM.from_pretrained(world.model, dtype=torch.float32).eval()
    data = setups[-1].data
    for row, start, top_logits in zip(data.rows, data.starts, data.top_logits, strict=True):
        with torch.no_grad():
            log_p = model(torch.tensor([row.ids])).logits[0, start - 1 : -1].log_softmax(-1)
        expected = log_p.topk(TOP_K).values.numpy()
        assert np.abs(top_logits.log_p.astype(np.float32) - expected).max() < 0.01
    pruned = {Path(setup.model.path) for setup in setups}
    assert len(pruned) == 2
    assert not any(path.exists() for path in pruned), "they are deleted when they are no longer needed"


def test_the_final_checkpoint_has_the_recorded_held_out_number(
    run: Run, command: list[str], staged: Path, other_text: Path, world: World, cwd: Path
) -> None:
    """The oracle: plain transformers on the exported checkpoint."""
    exported = run("export", "latest", "--out", "healed")
    assert exported.code == 0, exported.err
    tokenizer = AutoTokenizer.from_pretrained(cwd / "healed")
    ids = tokenizer(other_text.read_text(), add_special_tokens=False).input_ids[: WINDOWS * LENGTH]
    windows = torch.tensor(ids).reshape(WINDOWS, LENGTH)

    def perplexity(model: Any) -> float:
        with torch.no_grad():
            log_p = model(windows).logits[:, :-1].log_softmax(-1)
        return float(torch.exp(-log_p.gather(-1, windows[:, 1:, None]).mean()))

    healed = AutoModelForCausalLM.from_pretrained(cwd / "healed", dtype=torch.float32).eval()
    assert healed.config.num_hidden_layers == N_LAYERS - 3
    original = AutoModelForCausalLM.from_pretrained(world.model, dtype=torch.float32).eval()
    search = raysearch.open().search()
    (recovery,) = search.recoveries()
    (numbers,) = recovery.numbers
    assert numbers.recovered.value == pytest.approx(perplexity(healed), rel=1e-4)
    assert numbers.dense.value == pytest.approx(perplexity(original), rel=1e-4)
    assert recovery.mask == search.mask
    assert recovery.training.steps == 6
    card = (cwd / "healed/README.md").read_text()
    assert f"`{search.mask}`" in card
    assert "in 2 stages" in card
    assert f"| {numbers.metric.title} ({numbers.metric.unit}) |" in card
    assert search.result.staged is not None
    record = json.loads((cwd / "healed/raysearch.json").read_text())
    assert record["mask"] == search.mask.parts
    assert [stage["removed"] for stage in record["evidence"]["stages"]] == [
        stage.removed.parts for stage in search.result.staged.stages
    ]
    for option in (["--prompt", "the"], ["--without-adapter"]):
        assert f"{option[0]} is not offered" in run("export", "latest", "--out", "x", *option).err


def test_a_stopped_search_resumes_with_the_same_bytes_and_trains_no_stage_twice(
    run: Run, command: list[str], whole: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = done(run, *command, f"store={whole}")["staged"]
    trained: list[str] = []
    fit = training._fit

    def counted(pruned: Any, *arguments: Any, **options: Any) -> Any:
        trained.append(str(pruned))
        return fit(pruned, *arguments, **options)

    monkeypatch.setattr(training, "_fit", counted)

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    def stopped_at(module: Any, name: str, number: int = 1) -> None:
        """Run the command until the n-th call of a function."""
        called: list[int] = []
        function: Callable[..., Any] = getattr(module, name)

        def interrupted(*arguments: Any, **options: Any) -> Any:
            called.append(1)
            return stop() if len(called) == number else function(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted)
            assert run(*command).code == 130

    stopped_at(staged_search, "recovered_losses")  # the model of stage 1 is written, the stage is not recorded
    stopped_at(staged_search, "search_stage")
    stopped_at(staged_search, "write_stage")
    stopped_at(steps, "write_checkpoint")
    shutil.rmtree(next((cwd / "mlruns/recoveries").glob("recover-*/recovered")))  # it is written again, not trained
    stopped_at(staged_search, "write_card")
    assert without_times(done(run, *command)["staged"]) == without_times(expected)
    assert len(trained) == 2
    assert weights(cwd / "mlruns") == weights(whole)


def test_a_finished_search_computes_nothing_again(
    run: Run, command: list[str], staged: Path, cwd: Path, store_with_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = weights(staged)
    kept = {entry.name for entry in (staged / "recoveries").glob("recover-*/*") if entry.is_dir()}
    assert kept == {"trained"}, "of the stages before the last one their adapters are kept"
    with monkeypatch.context() as patch:
        for module, name in ((staged_search, "search_stage"), (steps, "train"), (steps, "write_checkpoint")):
            patch.setattr(module, name, pytest.fail)
        repeated = done(run, *command)
    resumed = done(run, "resume", repeated["search_id"])
    assert resumed["staged"]["stages"] == repeated["staged"]["stages"]
    assert repeated["evaluations"]["requested"] > len(repeated["staged"]["stages"])
    shutil.rmtree(final_folder(staged))
    refused = run("export", "latest", "--out", "healed")
    assert "no longer in" in refused.err
    monkeypatch.setattr(training, "_fit", pytest.fail)
    done(run, *command)
    assert weights(staged) == before, "written again from the adapters"
    shown = run("show", "latest").out
    assert "removed so far" in shown
    assert "recovered" in shown
    shutil.copy(store_with_tables, cwd / "mlruns")
    synced = done(run, "sync", "latest", "tracking=mlflow")
    client = MlflowClient(f"sqlite:///{cwd / 'mlruns/mlflow.db'}")
    parent = client.get_run(synced["mlflow_run_id"])
    query = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    runs = client.search_runs([parent.info.experiment_id], query)
    kinds = [mlflow_run.data.tags["raysearch.kind"] for mlflow_run in runs]
    assert kinds.count("search") == 2
    assert kinds.count("recovery") == 3, "that of each stage, and the numbers of the whole"
    stages = [mlflow_run for mlflow_run in runs if mlflow_run.data.tags["raysearch.kind"] == "search"]
    assert {mlflow_run.info.run_name for mlflow_run in stages} == {"stage 1, M=1", "stage 2, M=2"}
    assert {mlflow_run.info.status for mlflow_run in runs} == {"FINISHED"}
    assert parent.data.metrics["loss/recovered"] == repeated["staged"]["stages"][-1]["recovered_loss"]


def test_a_dry_run_shows_the_rounds_and_trainings_of_all_stages(run: Run, command: list[str], cwd: Path) -> None:
    outcome = run(*command, "--dry-run")
    assert outcome.code == 0, outcome.err
    n_masks = N_LAYERS + (N_LAYERS - 1) + (N_LAYERS - 2) + 2  # greedy: one round, then two, then the original model
    assert f"{n_masks} masks in 4 rounds" in outcome.out
    assert "in 2 stages, each with a training of at most 3 steps after its search" in outcome.out
    assert not list(cwd.iterdir())


def test_mistakes_are_refused_in_one_sentence(
    run: Run, command: list[str], world: World, cwd: Path, sentences: Sentences
) -> None:
    cases = [
        ["heal=none"],
        ["schedule=[]"],
        ["schedule=[1,1]"],
        ["schedule=[0,3]"],
        ["remove=9", "schedule=[3,3,3]"],
        ["remove=1..3"],
        ["remove=auto", "budget.loss=1"],
        ["space=pairs"],
        ["target=vllm"],
        ["objective=kl"],
        [
            "objective=weighted",
            "objective.parts=[{weight:1,of:'objective=perplexity'},{weight:1,of:'objective=perplexity seed=1'}]",
        ],
        ["refine=recover"],
        ["heal.recover_with=3"],
        ["heal.recover_with=recovery.rate=1"],
        ["heal.recover_with=cluster=local"],
        ["heal.recover_with=recovery.teacher=smollm2-135m"],
        ["heal.recover_with=recovery=hidden"],
        ["heal.recover_with='data=file data.path=nothing.txt'"],
        ["heal.recover_with='data.seq_len=65 recovery.max_tokens=64'"],
        ["heal.recover_with='data.seq_len=16 recovery.max_tokens=64 recovery.targets=nowhere'"],
    ]
    for more in cases:
        sentences.refused_command(run(*command, *more), " ".join(more))
    without_text = [word for word in command if not word.startswith("heal")]
    sentences.refused_command(run(*without_text), "schedule without heal")
    few = f"data=file data.path={world.text} data.part=all data.samples=1 data.seq_len=16 recovery.max_tokens=48"
    sentences.refused_command(
        run(*command, f"heal.recover_with='{few} assess=none assess.probe.enabled=false'"), "too few rows"
    )
    grid = [word for word in command[1:] if not word.startswith("remove")]
    study = ["study", *grid, "study.grid.remove=[3]", "study.grid.searcher=[greedy]", "cluster=local"]
    sentences.refused_command(run(*study), "study")
    assert not list(cwd.glob("mlruns/recoveries/*"))


def test_protected_layers_keep_their_place_in_smaller_models() -> None:
    assert protected_after({0, 4, 9}, Mask.of(1, 2, 6)) == [0, 2, 6]
    first, second = stage_problems(Problem.create(6, 3, [0, -1]), [1, 2])
    assert (len(first.sites), first.n_remove, first.protected) == (6, 1, frozenset({0, 5}))
    assert (len(second.sites), second.n_remove, second.protected) == (5, 2, frozenset({0, 4}))


def test_trainings_that_follow_each_other_add_up() -> None:
    first = Training((LossPoint(1, 10, 3.0, None), LossPoint(2, 20, 2.0, 2.5)), 2, 2, 20, 7, 1.0, 4)
    second = Training((LossPoint(1, 10, 2.0, 2.2), LossPoint(2, 20, 1.5, 2.4)), 2, 1, 20, 6, 2.0, 2)
    whole = joined([first, second])
    assert (whole.steps, whole.best_step, whole.tokens, whole.parameters, whole.seconds) == (4, 3, 40, 6, 3.0)
    assert [(point.step, point.tokens) for point in whole.points] == [(1, 10), (2, 20), (3, 30), (4, 40)]
