"""One search from its specification to its result, and its record after each kind of end."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from raysearch.configuration import build
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.replica import Replica
from raysearch.ledger.ledger import Ledger
from raysearch.searching import run as search_run
from raysearch.searching.events import Event, RoundEnded, SearchEnded
from raysearch.searching.observer import Observer, Tracker
from raysearch.searching.result import RoundSummary
from raysearch.searching.run import run_search, search_rounds
from raysearch.searching.search_record import SEARCHES, SearchRecord
from raysearch.searching.spec import SearchSpec
from tests.cli.conftest import World
from tests.sentences import Sentences


@pytest.fixture
def spec(world: World, cwd: Path) -> SearchSpec:
    """A greedy search for two of five layers."""
    return build.search_spec(world.search())


def last_record(spec: SearchSpec) -> SearchRecord:
    """The record of the last search in the ledger."""
    with closing(Ledger(spec.evaluation.ledger)) as ledger:
        return SEARCHES.find(ledger, "latest")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_rounds_are_yielded_one_by_one_and_the_result_is_recorded(spec: SearchSpec) -> None:
    rounds = []
    result = None
    steps = search_rounds(spec, Observer(), Tracker())
    while result is None:
        try:
            rounds.append(next(steps))
        except StopIteration as end:
            result = end.value
    assert [summary.round for summary in rounds] == [1, 2]
    assert all(isinstance(summary, RoundSummary) for summary in rounds)
    assert len(result.removed) == 2
    assert result.loss > 0
    assert result.complete
    record = last_record(spec)
    assert (record.state, record.search_id) == ("finished", result.search_id)
    assert record.fingerprints.keys() == {"calibration", "model", "text"}


def test_a_result_and_its_repetition_have_the_same_separation(spec: SearchSpec, world: World) -> None:
    result = run_search(spec, Observer(), Tracker())
    separation = result.separation
    assert separation is not None
    assert (separation.reference, separation.by_layer) == (result.mask, False)
    assert separation.n_others == 3 >= separation.n_not_worse, "greedy tries four masks of two of five layers"
    assert separation.n_samples == result.samples.n_samples
    assert str(separation) in str(result)
    assert (
        last_record(spec).finished_result.separation == separation == run_search(spec, Observer(), Tracker()).separation
    )
    separate = run_search(build.search_spec(world.search(searcher="one_shot")), Observer(), Tracker()).separation
    assert separate is not None, "of five layers, two are removed"
    assert separate.by_layer, "of five layers, two are removed"
    assert separate.n_others == 3, "of five layers, two are removed"


def test_data_that_are_deleted_during_a_search_do_not_undo_it(world: World, cwd: Path) -> None:
    text = cwd / "text.txt"
    text.write_bytes(Path(world.text).read_bytes())
    spec = build.search_spec(world.search(data__path=text))

    class Deleting(Observer):
        def on_round_ended(self, event: RoundEnded) -> None:
            text.unlink(missing_ok=True)

    result = run_search(spec, Deleting(), Tracker())
    record = last_record(spec)
    assert (record.state, record.finished_result.removed) == ("finished", result.removed)


def test_a_search_that_is_closed_early_is_stopped_with_the_best_mask_so_far(spec: SearchSpec) -> None:
    events: list[Event] = []

    class Listener(Observer):
        def on_event(self, event: Event) -> None:
            events.append(event)

    steps = search_rounds(spec, Listener(), Tracker())
    next(steps)
    steps.close()
    record = last_record(spec)
    assert record.state == "stopped"
    assert record.failure is not None
    assert events[-1] == SearchEnded(None, record.failure, stopped=True)
    assert "budget was spent before a mask of 2 layers was scored" in record.failure
    steps = search_rounds(spec, Observer(), Tracker())
    next(steps), next(steps)
    steps.close()
    record = last_record(spec)
    assert (record.state, record.failure) == ("stopped", None)
    assert record.result is not None


def test_a_failure_and_an_interrupt_are_recorded(spec: SearchSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "evaluate", fails)
        with pytest.raises(EvaluationError, match="out of luck"):
            run_search(spec, Observer(), Tracker())
    assert last_record(spec).state == "failed"
    assert "out of luck" in str(last_record(spec).failure)
    with monkeypatch.context() as patch:
        patch.setattr(Replica, "evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_search(spec, Observer(), Tracker())
    assert (last_record(spec).state, last_record(spec).failure) == ("interrupted", None)
    assert run_search(spec, Observer(), Tracker()).complete
    assert last_record(spec).state == "finished"


def test_the_recorded_failure_is_a_sentence(spec: SearchSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of libraries have many lines, and Ray ends its processes by SIGTERM."""
    for error, ended in (
        (RuntimeError("The actor died.\n\tclass_name: Fleet"), ("failed", "The actor died")),
        (UserError("data=x is wrong", "seed=y is too"), ("failed", "data=x is wrong\nseed=y is too")),
        (SystemExit("The process receives a SIGTERM."), ("interrupted", None)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(search_run, "run_rounds", Mock(side_effect=error))
            with pytest.raises(type(error)):
                run_search(spec, Observer(), Tracker())
        assert (last_record(spec).state, last_record(spec).failure) == ended


def test_another_search_cannot_be_resumed_by_an_id(spec: SearchSpec, sentences: Sentences) -> None:
    first = run_search(spec, Observer(), Tracker())
    with sentences.refused(UserError):
        run_search(replace(spec, seed=1), Observer(), Tracker(), resumes=first.search_id)


def test_numbers_that_do_not_fit_write_nothing(spec: SearchSpec, cwd: Path, sentences: Sentences) -> None:
    with sentences.refused(UserError):
        run_search(replace(spec, remove=5), Observer(), Tracker())
    assert not list(cwd.iterdir())
