"""The recorder of a search: times, remarks, trials and the best masks."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.core.trial import best_by_size
from raysearch.errors import UserError
from raysearch.evaluation.evaluator import Evaluation
from raysearch.evaluation.pool import PoolStats
from raysearch.evaluation.progress import Meter
from raysearch.searchers.base import Failed, Loss, Remark, Round, Searcher
from raysearch.searching.driver import run_searcher
from raysearch.searching.observer import Observer
from raysearch.searching.run import _part_names
from raysearch.searching.search_recorder import SearchRecorder
from tests.sentences import Sentences

THINKING_S = 0.02
ANSWERING_S = 0.2


class Slow(Searcher):
    """Thinks before each of its four requests."""

    def search(self, problem, rng):
        time.sleep(THINKING_S)
        yield Statistic.BLOCK_INFLUENCE
        time.sleep(THINKING_S)
        yield Remark("gap", 0.5)
        yield Remark("gap", 0.25)
        time.sleep(THINKING_S)
        scores = yield Round(problem.singles)
        time.sleep(THINKING_S)
        yield Round([Mask.of(0, 1), Mask.of(1, 2), Mask.of(0, 1, 2)])
        return scores.best(1)[0]


def slow_recorder(answering_s=0.0):
    def measure(statistic):
        time.sleep(answering_s)
        return np.zeros((1, 4))

    def evaluate(proposed):
        time.sleep(answering_s)
        return {mask: Evaluation(Loss(abs(3 - sum(mask)) + 0.5), cached=False) for mask in proposed.masks}

    evaluator: Any = SimpleNamespace(
        evaluate=evaluate, measure=measure, meter=Meter(), pool_stats=PoolStats(), repairs=False
    )
    return SearchRecorder(Problem.create(4, 1), evaluator, Observer(), time.perf_counter())


@pytest.fixture
def recorder():
    return slow_recorder()


def test_the_time_of_the_searcher_excludes_the_time_of_answers():
    recorder = slow_recorder(ANSWERING_S)
    run_searcher(Slow(), recorder.problem, 0, recorder)
    assert 4 * THINKING_S <= recorder.searcher_s < 4 * THINKING_S + ANSWERING_S
    assert recorder.seconds >= 3 * ANSWERING_S + 4 * THINKING_S


def test_it_keeps_the_last_remark_of_a_name_and_the_best_of_each_size(recorder):
    run_searcher(Slow(), recorder.problem, 0, recorder)
    assert recorder.remarks == {"gap": 0.25}
    assert [trial.mask for trial in best_by_size(recorder.trials, 2)] == [Mask.of(3), Mask.of(1, 2)]
    assert [trial.loss for trial in best_by_size(recorder.trials, 3)] == [0.5, 0.5, 0.5]


def test_trials_have_the_loss_of_each_part_if_there_are_several(recorder):
    evaluations = {
        Mask(): Evaluation(Loss(3.0), False, (1.0, 2.0)),
        Mask.of(0): Evaluation(Loss(4.0), False, (1.5, 2.5)),
        Mask.of(1): Evaluation(Failed("the loss is nan"), False, (None, 3.5)),
    }
    recorder.evaluator.evaluate = lambda proposed: {mask: evaluations[mask] for mask in proposed.masks}
    several = replace(recorder, part_names=["kl on c4", "perplexity on sotu"], rounds=[], trials=[], losses={})
    several.evaluate(Round([Mask.of(0), Mask.of(1)]))
    assert [trial.parts for trial in several.trials] == [
        {"kl on c4": 1.0, "perplexity on sotu": 2.0},
        {"kl on c4": 1.5, "perplexity on sotu": 2.5},
        {"perplexity on sotu": 3.5},
    ]
    recorder.evaluate(Round([Mask.of(0)]))
    assert [trial.parts for trial in recorder.trials] == [{}, {}]


def test_parts_of_the_same_name_are_numbered():
    def spec(*names):
        calibrations = [SimpleNamespace(name=name) for name in names]
        return SimpleNamespace(evaluation=SimpleNamespace(calibrations=calibrations))

    assert _part_names(spec("kl on c4")) == []
    assert _part_names(spec("kl on c4", "kl on file", "kl on c4")) == ["kl on c4 1", "kl on file", "kl on c4 3"]


def test_a_dense_model_without_a_finite_loss_is_refused(recorder, sentences: Sentences):
    failed = Evaluation(Failed("the loss is nan"), cached=False)
    recorder.evaluator.evaluate = lambda proposed: dict.fromkeys(proposed.masks, failed)
    with sentences.refused(UserError):
        recorder.evaluate(Round([Mask.of(0)]))


def test_the_best_is_the_first_in_mask_order_of_the_lowest(recorder):
    run_searcher(Slow(), recorder.problem, 0, recorder)
    recorder.evaluate(Round([Mask.of(2), Mask.of(3)]))
    assert recorder.best == recorder.solutions[0] == Mask.of(3)
    assert recorder.summaries[-1].best_loss == 0.5
    recorder.evaluate(Round([Mask(), Mask.of(0)]))
    assert recorder.summaries[-1].best_of_round == "{0} 3.5000", "the dense model is not a choice"
