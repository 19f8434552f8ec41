"""A searcher as Ray Tune's search algorithm, without a Tuner: its proposals, its answers and what it saves."""

import math
import pickle

import pytest
import yaml
from ray.tune.search import ConcurrencyLimiter

from raysearch.bridges.ray_tune import TuneSearcher
from raysearch.configuration.parts import build_searcher, conf_dir
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError, UserError
from raysearch.searchers.base import Remark, Round, Searcher
from raysearch.searchers.beam import BeamSearcher
from raysearch.searchers.one_shot import OneShotSearcher
from raysearch.searching.driver import ContractError, run_searcher
from raysearch.testing.searcher_suite import ToyOracle, additive_loss, rugged_loss
from tests.sentences import Sentences

PROBLEM = Problem.create(6, 2)
LOSS = rugged_loss(PROBLEM, seed=3)
FINISHED = TuneSearcher.FINISHED


def answer_all(searcher, loss=LOSS, at_once=3, most=1000):
    """Act as the Tuner: run some trials at once, finish the youngest first, and return the masks of all trials."""
    running: dict[str, Mask] = {}
    masks: list[Mask] = []
    while running or len(masks) < most:
        trial = f"{id(searcher)}_{len(masks)}"
        config = searcher.suggest(trial) if len(running) < at_once and len(masks) < most else None
        if config == FINISHED:
            assert not running
            break
        if config is None:
            trial, mask = running.popitem()
            searcher.on_trial_complete(trial, {"loss": loss(mask)})
        else:
            running[trial] = Mask.of(*config["removed"])
            masks.append(running[trial])
    return masks


class AsksForStatistics(Searcher):
    """Removes the layers of least influence, and remarks their influence."""

    def search(self, problem, rng):
        influence = yield Statistic.BLOCK_INFLUENCE
        yield Remark("influence", influence.mean(axis=0).tolist())
        mask = Mask.of(*influence.mean(axis=0).argsort()[: problem.n_remove].tolist())
        yield Round([mask])
        return mask


@pytest.mark.parametrize("name", ["one_shot", "beam", "genetic", "random", "cbo", "exhaustive"])
def test_a_tuner_finds_what_a_search_finds(name):
    searcher = build_searcher(yaml.safe_load((conf_dir() / "searcher" / f"{name}.yaml").read_text()))
    oracle = ToyOracle(PROBLEM, LOSS)
    mask = run_searcher(searcher, PROBLEM, 5, oracle)
    tuned = TuneSearcher(searcher, PROBLEM, seed=5)
    masks = answer_all(tuned)
    assert tuned.mask == mask
    assert len(set(masks)) == len(masks), "a known mask is not evaluated again"
    assert set(masks) == {mask for proposed in oracle.rounds for mask in proposed.masks}
    assert tuned.losses == {mask: LOSS(mask) for mask in masks}


def test_none_is_wait_and_finished_is_the_end():
    searcher = TuneSearcher(OneShotSearcher(), Problem.create(3, 1))
    assert [searcher.suggest(str(layer)) for layer in range(3)] == [{"removed": [layer]} for layer in range(3)]
    assert searcher.suggest("early") is None
    for layer in range(3):
        assert searcher.mask is None
        searcher.on_trial_complete(str(layer), {"loss": 4.0 - layer})
    assert searcher.suggest("late") == searcher.suggest("later") == FINISHED  # the mask of the last round is known
    assert searcher.mask == Mask.of(2)


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (None, True),
        ({"loss": 1.0}, True),
        ({"accuracy": 1.0}, False),
        ({"loss": math.nan}, False),
        ({"loss": math.inf}, False),
    ],
)
def test_a_report_without_a_loss_is_a_failure(result, error, sentences: Sentences):
    searcher = TuneSearcher(BeamSearcher(1), Problem.create(3, 1))
    for layer in range(2):
        searcher.suggest(str(layer))
        searcher.on_trial_complete(str(layer), result, error)
    searcher.suggest("2")
    if error:
        searcher.on_trial_complete("2", {"loss": 1.0})
        assert searcher.suggest("3") == FINISHED
        assert searcher.mask == Mask.of(2)
    else:
        searcher.on_trial_complete("2", result)
        for _ in range(2):  # a second call raises again
            with sentences.refused(EvaluationError):
                searcher.suggest("3")


def test_another_metric():
    searcher = TuneSearcher(BeamSearcher(1), Problem.create(2, 1), metric="nats")
    assert (searcher.metric, searcher.mode) == ("nats", "min")
    for layer in range(2):
        searcher.suggest(str(layer))
        searcher.on_trial_complete(str(layer), {"nats": -float(layer), "loss": 7})
    assert searcher.suggest("2") == FINISHED
    assert searcher.mask == Mask.of(1)


def test_statistics_are_measured_once_and_remarks_are_recorded():
    oracle = ToyOracle(PROBLEM, LOSS)
    measured = []

    def measure(statistic):
        measured.append(statistic)
        return oracle.measure(statistic)

    searcher = TuneSearcher(AsksForStatistics(), PROBLEM, measure=measure)
    answer_all(searcher)
    assert measured == [Statistic.BLOCK_INFLUENCE]
    assert list(searcher.remarks) == ["influence"]
    assert searcher.mask == run_searcher(AsksForStatistics(), PROBLEM, 0, oracle)


def test_a_statistic_needs_a_function_that_measures_it(sentences: Sentences):
    with sentences.refused(UserError):
        TuneSearcher(AsksForStatistics(), PROBLEM).suggest("0")


def test_illegal_masks_are_the_searchers_fault(sentences: Sentences):
    class Rogue(Searcher):
        def search(self, problem, rng):
            yield Round([Mask.of(9)])

    with sentences.refused(ContractError):
        TuneSearcher(Rogue(), PROBLEM).suggest("0")


@pytest.mark.parametrize("most", range(0, 12, 3))
@pytest.mark.parametrize("pickled", [False, True])
def test_a_restored_search_proposes_only_the_remaining_masks(tmp_path, most, pickled):
    whole = answer_all(TuneSearcher(BeamSearcher(1), PROBLEM), at_once=1)
    first = TuneSearcher(BeamSearcher(1), PROBLEM)
    before = answer_all(first, at_once=1, most=most)
    first.suggest("never heard of again")
    if pickled:
        second = pickle.loads(pickle.dumps(first))
    else:
        first.save(str(tmp_path / "state"))
        second = TuneSearcher(BeamSearcher(1), PROBLEM)
        second.restore(str(tmp_path / "state"))
    assert second.losses == first.losses
    assert [*before, *answer_all(second, at_once=1)] == whole
    assert second.mask == run_searcher(BeamSearcher(1), PROBLEM, 0, ToyOracle(PROBLEM, LOSS))


def test_answers_remarks_and_the_best_mask_are_restored(tmp_path):
    problem = Problem.create(3, 1)
    first = TuneSearcher(AsksForStatistics(), problem, measure=ToyOracle(problem, additive_loss(problem, 0)).measure)
    first.suggest("a")
    first.save(str(tmp_path / "early"))
    first.on_trial_complete("a", {"loss": 0.1})
    assert first.suggest("b") == FINISHED
    first.save(str(tmp_path / "late"))

    early = pickle.loads(
        pickle.dumps(TuneSearcher(AsksForStatistics(), problem, measure=ToyOracle(problem, LOSS).measure))
    )
    early.restore(str(tmp_path / "early"))  # the statistic was saved, so it is not measured again
    assert early.mask is None
    # The trial continues under its old name, which the restored searcher does not know.
    early.on_trial_complete("a", {"loss": 0.1, "config/removed": next(iter(first.losses)).layers})
    early.on_trial_complete("unheard of", error=True)
    assert early.suggest("b") == FINISHED

    late = TuneSearcher(AsksForStatistics(), problem)
    late.restore(str(tmp_path / "late"))
    assert (late.mask, late.losses, late.remarks) == (first.mask, first.losses, first.remarks)
    assert (early.mask, early.losses, early.remarks) == (first.mask, first.losses, first.remarks)


def test_a_concurrency_limiter_works():
    searcher = TuneSearcher(BeamSearcher(1), PROBLEM)
    limited = ConcurrencyLimiter(searcher, max_concurrent=2)
    assert limited.suggest("0")
    assert limited.suggest("1")
    assert limited.suggest("2") is None
    limited.on_trial_complete("0", {"loss": 1.0})
    assert limited.suggest("2") == {"removed": [2]}
