"""A session reads data and fingerprints before weights; its evaluator starts replicas when they are needed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysearch.configuration import build
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.prepared_data import prepare_data
from raysearch.evaluation.session import EvaluationSession, open_session
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.models.description import describe
from raysearch.models.spec import ModelInfo
from raysearch.searchers.base import Round
from tests.cli.conftest import World
from tests.sentences import Sentences


def spec_of(world: World, **changes: object) -> EvaluationSpec:
    """The evaluation of a quick search."""
    return build.search_spec(world.search(**changes)).evaluation


def opened(spec: EvaluationSpec) -> EvaluationSession:
    return open_session(spec, describe(spec.model), lambda _: None)


@pytest.fixture
def info(world: World, cwd: Path) -> ModelInfo:
    """The tiny model's shape."""
    return describe(spec_of(world).model)


def test_no_weights_are_loaded_before_something_is_computed(
    world: World, info: ModelInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(world)
    monkeypatch.setattr("raysearch.evaluation.replica.load_model", lambda *_: pytest.fail("weights are loaded"))
    with closing(opened(spec)) as session:
        assert (session.n_tokens, session.n_samples) == (120, 8)
        assert session.measure.readout == "perplexity"
        assert session.info == info
        assert session.fingerprint == session.fingerprints["calibration"]


def test_fingerprints_differ_if_losses_may_differ(world: World, cwd: Path) -> None:
    def fingerprints(**changes: Any) -> dict[str, str]:
        with closing(opened(spec_of(world, **changes))) as session:
            return session.fingerprints

    usual = fingerprints()
    assert usual == fingerprints(remove=1, searcher="beam", seed=3, data__seed=0), "these options change no loss"
    changes: dict[str, dict[str, Any]] = {
        "objective": {"objective": "kl"},
        "draw": {"data.seed": 1},
        "attention": {"model.attention": "eager"},
        "threads": {"cluster.cpus_per_replica": 2},
    }
    changed = {name: fingerprints(**change) for name, change in changes.items()}
    assert not [name for name, prints in changed.items() if prints["calibration"] == usual["calibration"]]
    assert [name for name, prints in changed.items() if prints["text"] != usual["text"]] == ["draw"]
    assert {prints["model"] for prints in changed.values()} == {usual["model"]}


def test_prepared_data_are_not_read_again(world: World, info: ModelInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(world)
    prepared = prepare_data(spec, info)
    for name in ("fingerprint", "load_tokenizer"):
        monkeypatch.setattr(f"raysearch.evaluation.prepared_data.{name}", lambda _: pytest.fail("it is read again"))
    second = prepare_data(spec, info, prepared.files)
    names, second_names = (
        [calibration.fingerprint for calibration in data.calibrations] for data in (prepared, second)
    )
    assert names == second_names
    with closing(open_session(spec, info, lambda _: None, prepared)) as session:
        assert session.calibrations is prepared.calibrations


def test_the_error_of_a_difference_is_none_for_a_weighted_sum(world: World, cwd: Path) -> None:
    mask = Mask.of(1)
    with closing(opened(spec_of(world))) as session:
        losses = session.evaluator.evaluate(Round([Mask(), mask]))
        (error,) = session.delta_errors([mask])
        assert error is not None
        assert 0 < error < (losses[Mask()].loss or 0)
    parts = '[{weight: 1, of: "objective=perplexity"}, {weight: 2, of: "objective=kl data.samples=4"}]'
    weighted = spec_of(world, objective="weighted", **{"objective.parts": parts})
    with closing(opened(weighted)) as session:
        assert session.delta_errors([mask]) == [None]
        assert session.n_samples == 8 + 4


def test_a_tokenizer_of_another_model_is_refused(world: World, info: ModelInfo, sentences: Sentences) -> None:
    with sentences.refused(UserError):
        prepare_data(spec_of(world), replace(info, vocab_size=10))


def test_the_error_names_the_calibration_with_too_few_samples(
    world: World, info: ModelInfo, sentences: Sentences
) -> None:
    spec = spec_of(world)
    (enough,) = spec.calibrations
    short = replace(enough, name="the other", data=replace(enough.data, draw=replace(enough.data.draw, samples=10**6)))
    with sentences.refused(UserError):
        prepare_data(replace(spec, calibrations=[enough, short]), info)
