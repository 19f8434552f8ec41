"""A search with refine=recover: its best masks are trained alike, and the best recovered mask is the result."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from typing_extensions import override

import raysearch
from raysearch.configuration import build
from raysearch.evaluation.session import EvaluationSession, open_session
from raysearch.ledger.ledger import opened
from raysearch.ledger.locks import locked
from raysearch.recovery import planned_recovery, steps, training
from raysearch.recovery.refine import RecoveryRefiner
from raysearch.searching import run as search_run
from raysearch.searching.events import MaskRecovered
from raysearch.searching.observer import Observer
from raysearch.searching.search_record import SEARCHES
from tests.cli.conftest import Run, World
from tests.recovery.conftest import done, search_once
from tests.sentences import Sentences

pytestmark = pytest.mark.slow

WITH = (
    "data=file data.path={} data.part=all data.seq_len=16 data.samples=24 recovery.max_tokens=48 recovery.top_k=8 "
    "recovery.batch_size=4 recovery.micro_batch_size=4 recovery.checkpoint_steps=1 recovery.patience=null"
)


@pytest.fixture(scope="module")
def command(world: World, other_text: Path) -> list[str]:
    """Return the overrides of a greedy search whose three best masks are trained for three steps."""
    refining = ["refine=recover", "refine.steps=3", f"refine.recover_with={WITH.format(other_text)}"]
    return ["search", *world.search(), *refining]


@pytest.fixture(scope="module")
def whole(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store of that search."""
    return search_once(command[1:], tmp_path_factory)[1]


@pytest.fixture
def refined(whole: Path, cwd: Path) -> None:
    """Copy the store of that search to the current folder."""
    shutil.copytree(whole, cwd / "mlruns")


class Listening(Observer):
    """Records the names of recoveries."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @override
    def on_mask_recovered(self, event: MaskRecovered) -> None:
        self.names.append(event.header.recovery_id)


def test_the_best_mask_after_a_short_recovery_is_the_result(
    run: Run, command: list[str], refined: None, cwd: Path, store_with_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = done(run, *(word for word in command if not word.startswith("refine")), "store=plain")
    result = done(run, *command)
    assert result["search_id"] != plain["search_id"]
    masks = result["refinement"]["masks"]
    assert masks[0]["mask"] == plain["removed"], "the best mask before is that of the plain search"
    assert len(masks) == 3, "the best mask before is that of the plain search"
    assert [mask["loss"] for mask in masks] == sorted(mask["loss"] for mask in masks)
    best = min(masks, key=lambda mask: mask["recovered_loss"])
    assert result["removed"] == best["mask"]
    assert result["loss"] == best["loss"] != best["recovered_loss"]
    assert all(mask["steps"] == 3 and mask["tokens"] == masks[0]["tokens"] > 0 for mask in masks)
    assert -1 <= result["refinement"]["rank_correlation"] <= 1
    shown = run("show", result["search_id"]).out
    assert "best after" in shown
    assert "rank correlation" in shown
    assert result["refinement"]["refinement_id"] in shown
    assert raysearch.open().search(result["search_id"]).result.to_frame().loc[0, "mask"] == "{}"
    (folder,) = (cwd / "mlruns/recoveries").glob("refine-*")
    assert not (folder / "teacher").exists(), "the rows are shared"
    assert (folder / "rows.jsonl").is_file(), "the rows are shared"
    folders = {entry.name for entry in (cwd / "mlruns/recoveries").glob("recover-*/*") if entry.is_dir()}
    assert folders == {"trained"}, "of a recovered model its adapter is kept"
    (folder / "teacher").mkdir()
    with monkeypatch.context() as patch:
        for name in ("heal", "train"):
            patch.setattr(steps, name, pytest.fail)
        with opened(cwd / "mlruns/ledger.db") as ledger, locked(ledger, folder.name, "REFINEMENT"):
            repeated = done(run, *command)
        assert (folder / "teacher").exists(), "another search trains by it"
        raysearch.search(*command[1:], observer=(listening := Listening()))
    assert not (folder / "teacher").exists(), "left by one that was killed"
    assert len({*listening.names}) == 3, "trackers are told of each training, also by a search that trains nothing"
    assert repeated["refinement"] == result["refinement"]
    assert repeated["removed"] == result["removed"]
    assert done(run, "resume", result["search_id"])["refinement"] == result["refinement"]
    shutil.copy(store_with_tables, cwd / "mlruns")
    synced = done(run, "sync", result["search_id"], "tracking=mlflow")
    client = MlflowClient(f"sqlite:///{cwd / 'mlruns/mlflow.db'}")
    query = f"tags.`mlflow.parentRunId` = '{synced['mlflow_run_id']}' and tags.`raysearch.kind` = 'recovery'"
    trainings = client.search_runs([client.get_run(synced["mlflow_run_id"]).info.experiment_id], query)
    assert {mlflow_run.info.run_name for mlflow_run in trainings} == {*listening.names}
    assert {mlflow_run.data.params["recovery.loss"] for mlflow_run in trainings} == {"distill"}


def test_the_refined_loss_is_that_of_the_recovered_checkpoint(
    run: Run, command: list[str], refined: None, other_text: Path, assessed_by: list[str], world: World, cwd: Path
) -> None:
    """The checkpoint is written by the same training, started by hand."""
    result = done(run, *command)
    by_hand = [*WITH.format(other_text).split(), "recovery.max_steps=3", "recovery.epochs=3.0", *assessed_by]
    done(run, "recover", result["search_id"], *by_hand, "--out", "healed")
    score = [word for word in world.overrides(model=cwd / "healed") if not word.startswith("remove")]
    (scored,) = done(run, "score", *score, "masks=[[]]")
    best = min(result["refinement"]["masks"], key=lambda mask: mask["recovered_loss"])
    assert scored["loss"] == pytest.approx(best["recovered_loss"], rel=1e-6)


def test_what_screening_dropped_is_known_before_the_best_are_chosen(run: Run, command: list[str]) -> None:
    many = [*command, "data.samples=64", "data.shard_samples=1", "refine.steps=1"]
    exact = done(run, *many, "screening=off")
    screened = done(run, *many, "screening=confident", "screening.confidence=0.6")
    assert screened["evaluations"]["screened"] > 0
    masks = [[mask["mask"] for mask in each["refinement"]["masks"]] for each in (exact, screened)]
    assert masks[0] == masks[1]


def test_a_stopped_refinement_resumes(
    run: Run, command: list[str], whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = done(run, *command, f"store={whole}")
    fit = training._fit
    trained = list[Any]()

    def once(pruned: Any, *args: Any, **options: Any) -> Any:
        if len(trained) == 1:
            raise KeyboardInterrupt
        trained.append(pruned)
        return fit(pruned, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_fit", once)
        assert run(*command).code == 130
        trained.append(trained[0])
        patch.setattr(planned_recovery, "draw_prompts", pytest.fail)
        resumed = done(run, *command)
    assert len({*trained}) == 3 == len(trained) - 1, "each mask is trained once"
    same = [[{**mask, "seconds": 0} for mask in each["refinement"]["masks"]] for each in (undisturbed, resumed)]
    assert same[0] == same[1]


def test_a_recovery_has_the_same_name_whether_or_not_the_parts_of_a_weighted_search_are_recorded(
    run: Run, command: list[str], refined: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older searches have no parts; the calibration's fingerprint covers them."""
    parts = {"parts": "one two"}
    whole = done(run, *command)["refinement"]
    with opened(Path("mlruns/ledger.db")) as ledger:
        before = SEARCHES.find(ledger, "latest")
        after = replace(before, fingerprints={**before.fingerprints, **parts})
        search = build.recorded_search(before.config, goes_on=True)
        assert isinstance(search.refiner, RecoveryRefiner)
        assess = search.refiner.spec.assess
        spec = replace(
            search.refiner.spec, assess=replace(assess, speed=replace(assess.speed, context_tokens=8, new_tokens=2))
        )
        recoveries = [planned_recovery.prepare(record, ledger, search, spec, None) for record in (before, after)]
        assert len({recovery.name for recovery in recoveries}) == 1

    def with_parts(*args: Any, **options: Any) -> EvaluationSession:
        session = open_session(*args, **options)
        return replace(session, fingerprints={**session.fingerprints, **parts})

    monkeypatch.setattr(search_run, "open_session", with_parts)
    monkeypatch.setattr(steps, "heal", pytest.fail)
    assert done(run, *command)["refinement"] == whole


def test_rows_that_do_not_fit_the_model_are_refused_before_the_search(
    run: Run, command: list[str], cwd: Path, sentences: Sentences
) -> None:
    for word in ("recovery.max_tokens=65", "data.seq_len=49"):
        sentences.refused_command(run(*command[:-1], f"{command[-1]} {word}"), word)
    assert not list(cwd.iterdir())


def test_mistakes_are_refused_in_one_sentence(run: Run, command: list[str], sentences: Sentences) -> None:
    cases = [
        ["refine.masks=1"],
        ["refine.steps=0"],
        ["refine.recover_with='data=file data.path=nothing.txt'"],
        ["refine.recover_with=recovery.rate=1"],
        ["refine.recover_with=recovery.max_steps=9"],
        ["refine.recover_with=assess=none"],
        ["refine.recover_with=3"],
        ["objective=kl"],
        ["remove=auto", "budget.loss=1"],
        ["searcher=one_shot"],
        ["space=pairs", "refine.recover_with=recovery=hidden"],
    ]
    for more in cases:
        sentences.refused_command(run(*command, *more), " ".join(more))
    grid = [word for word in command[1:] if not word.startswith("remove")]
    study = ["study", *grid, "study.grid.remove=[2]", "study.grid.searcher=[greedy]", "cluster=local"]
    sentences.refused_command(run(*study), "study")
