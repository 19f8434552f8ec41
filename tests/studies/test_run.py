"""Failures of searches and assessments, which are tried again alone, and the state after a study is stopped."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from typing_extensions import override

from raysearch.errors import EvaluationError, UserError
from raysearch.ledger.ledger import Ledger, opened
from raysearch.ledger.locks import locked
from raysearch.searching.events import StudyStopped
from raysearch.searching.observer import Tracker
from raysearch.searching.search_record import SEARCHES, with_current_states, write_search
from raysearch.studies import assess as assessing
from raysearch.studies import run as running
from raysearch.studies.assess import assess_searches
from raysearch.studies.model_group import ModelGroup
from raysearch.studies.replicas import ModelReplicas
from raysearch.studies.run import _StudyWork, run_study
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.cli.studies import small_study
from tests.sentences import Sentences


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray", "blank_report")
def test_a_search_that_fails_stops_no_other_and_is_tried_again_alone(world: World, run: Run) -> None:
    overrides = small_study(
        world, "searcher=[taylor,one_shot]", "remove=[1]", objective="hidden_cosine"
    )  # no gradients
    overrides += ["study.retries=0"]
    for tried in range(2):
        outcome = run("study", *overrides, "--json")
        assert outcome.code == 1
        assert outcome.err.count("this searcher takes gradients") == 2, "when it fails, and at the end"
        assert ("1 search done already" if tried else "2 searches") in outcome.err
        taylor, one_shot = json.loads(outcome.out)["cells"]
        assert (taylor["state"], one_shot["state"]) == ("failed", "finished")
        assert taylor["failure"].startswith("this searcher takes gradients")


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray", "blank_report")
def test_an_assessment_that_fails_stops_no_other_model(world: World, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    models = f"{{one: model={world.model}, other: model={world.model} model.attention=eager}}"
    overrides = small_study(world, "searcher=[one_shot]", "remove=[1]", f"model={models}", model=None)
    overrides += ["assess.speed.enabled=true", "assess.speed.context_tokens=8", "assess.speed.new_tokens=2"]
    assess = assess_searches

    def fails_once(what: Any, *arguments: Any) -> Any:
        if what.info.model.attention != "eager":
            raise EvaluationError("out of luck")
        return assess(what, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(assessing, "assess_searches", fails_once)
        outcome = run("study", *overrides, "--json")
    report = next(Path("mlruns/reports").glob("*/report.html"))
    message = f"failed: out of luck; all else is in {report}, and the same command tries this again"
    assert (outcome.code, outcome.err.splitlines()[-1]) == (1, message), "it still ends with a report"
    assert "the assessment of one failed: out of luck" in outcome.err.replace(message, ""), "when it happens"
    report_so_far = json.loads(run("report", "latest", "--json").out)
    assert [cell["state"] for cell in report_so_far["cells"]] == ["finished"] * 2
    assert all(cell["layer_forwards"]["shared"] > 0 for cell in report_so_far["cells"])
    assert [bool(cell["assessed"]) for cell in report_so_far["cells"]] == [False, True]
    assert all(cell["assessed"] for cell in json_answer(run("study", *overrides, "--json"))["cells"])
    several = [UserError("data=x is wrong"), EvaluationError("out of luck")]
    monkeypatch.setattr(running, "run_study", lambda *args: (run_study(*args)[0], several))
    outcome = run("study", *overrides, "--json")
    assert outcome.code == 2
    assert f"error: data=x is wrong (and 1 failure more); all else is in {report}" in outcome.err


class _OneStage(_StudyWork):
    """The run of a study that starts replicas for the held-out evaluation and fails at each stage."""

    @override
    def _search_remaining(self, *_: Any) -> None: ...

    @override
    def _hold_out(self, model_group: ModelGroup, replicas: ModelReplicas) -> None:
        replicas.get()
        raise EvaluationError("a unit failed for good")

    @override
    def _assess(self, what: Any, *_: Any) -> None:
        raise UserError("the data of piqa cannot be loaded")

    @override
    def _recover(self, *_: Any) -> None: ...


def study_run(kind: type[_StudyWork], ledger: Any, observer: Any, search_ids: Sequence[str] = ()) -> _StudyWork:
    """Return the run of a study of one model with mocked replicas."""
    spec: Any = SimpleNamespace()
    group: Any = Mock(prepared=SimpleNamespace(calibrations=()), label="tiny")
    return kind(spec, [group], search_ids, [], "parent", Mock(), ledger, observer, Mock())


def test_failures_are_reported_when_they_happen_and_the_death_of_ray_ends_the_study() -> None:
    run = study_run(_OneStage, None, observer := Mock())
    assert [str(failure) for failure in run.do()] == ["a unit failed for good", "the data of piqa cannot be loaded"]
    warnings = [call.args[0] for call in observer.warn.call_args_list]
    assert warnings == [
        "the held-out evaluation of tiny failed: a unit failed for good",
        "the assessment of tiny failed: the data of piqa cannot be loaded",
    ]
    cluster: Any = run.cluster
    cluster.start.return_value.close.assert_called_once_with()
    cluster.check = Mock(side_effect=EvaluationError("Ray has died"))
    with pytest.raises(EvaluationError, match="Ray has died"):
        run.do()


def test_a_stopped_study_waits_for_its_ending_searches_but_not_for_those_of_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_StudyWork, "record", Mock())
    monkeypatch.setattr(running, "_ENDING_TIMEOUT_S", 1)
    begun = threading.Event()

    def end() -> None:
        with opened(tmp_path / "ledger.db") as ending_ledger, locked(ending_ledger, "ends", "SEARCH"):
            begun.set()
            time.sleep(0.3)
            write_search(ending_ledger, "ends", {}, "failed", failure="by itself")

    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        for name in ("killed", "ends", "another's"):
            write_search(ledger, name, {}, "running")
        names = ["killed", "ends", "another's", "not begun"]
        run = study_run(_StudyWork, ledger, observer := Mock(), names)
        (ending := threading.Thread(target=end)).start()
        begun.wait()
        with locked(ledger, "another's", "SEARCH"):
            with pytest.raises(KeyboardInterrupt), run.interruptible():
                raise KeyboardInterrupt
            ending.join()
            states = {record.search_id: record.state for record in with_current_states(ledger, SEARCHES.all(ledger))}
    assert states == {"killed": "interrupted", "ends": "failed", "another's": "running"}
    observer.on_event.assert_called_once_with(StudyStopped("parent", ["killed", "ends", "not begun"]))


def test_an_error_during_the_run_ends_the_study_even_if_the_ledger_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Sentences
) -> None:
    def fail() -> None:
        raise UserError("model=x lacks 3 of its weights")

    monkeypatch.setattr(_StudyWork, "record", record := Mock())
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        for name, full in (("a", False), ("b", True)):
            record.side_effect = UserError("the disk is full") if full else None
            run = study_run(_StudyWork, ledger, observer := Mock(), [name])
            with sentences.refused(UserError), run.interruptible():
                fail()
            observer.on_event.assert_called_once_with(StudyStopped("parent", [name]))


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray", "blank_report")
def test_masks_of_one_draw_are_evaluated_on_the_others_and_contrasts_are_answered(
    world: World, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracker, "on_masks_assessed", assessed := Mock())
    overrides = small_study(world, "searcher=[one_shot,greedy]", "remove=[2]", "draw=[0,1]")
    outcome = run("study", *overrides, "study.contrasts=[greedy - one_shot]")
    assert outcome.code == 0, outcome.err
    assert "greedy - one_shot" not in outcome.err
    assert "by held-out calibration loss" in " ".join(outcome.out.split())
    cells = json.loads(run("report", "latest", "--json").out)["cells"]
    assert [(cell["searcher"], cell["draw"]) for cell in cells] == [
        (name, draw) for name in ("one_shot", "greedy") for draw in "01"
    ]
    masks = {(cell["searcher"], cell["draw"]): cell["removed"] for cell in cells}
    for cell in cells:
        other_draw = "1" if cell["draw"] == "0" else "0"
        mask = masks[cell["searcher"], cell["draw"]]
        peers = [peer for peer in cells if peer["draw"] == other_draw and peer["removed"] == mask]
        assert cell["held_out_by_draw"] == {other_draw: cell["held_out"]}
        assert all(cell["held_out"] == pytest.approx(peer["loss"]) for peer in peers)
    assert {cell["calibration"] for cell in cells} == {cells[0]["calibration"]}, "draws belong to the same calibration"
    assessed.assert_called_once()
    tracked = {search.search_id: named for search, named in assessed.call_args.args[0].assessments}
    assert tracked == {cell["search_id"]: {"loss/held_out": cell["held_out"]} for cell in cells}
    with opened(Path("mlruns/ledger.db")) as ledger:
        records = SEARCHES.by_ids(ledger, [cell["search_id"] for cell in cells])
    for cell in cells:  # the searches ran one after another, so each computed its shared cost
        assert (
            records[cell["search_id"]].finished_result.work.layer_forwards.computed == cell["layer_forwards"]["shared"]
        )
