import dataclasses
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from unittest.mock import Mock

import numpy as np
import pytest

from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation import costs as module
from raysearch.evaluation.evaluator import Evaluator
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.progress import Progress
from raysearch.ledger.ledger import Ledger
from raysearch.models.statistics import measure
from raysearch.searchers.base import Round
from tests.evaluation.oracle import plain_losses
from tests.sentences import Sentences

SITES = Sites.of_equal_layers(4)

MASKS = [Mask.of(2), Mask(), Mask.of(1), Mask.of(1, 2)]


class CountingPool(InlinePool):
    """Remembers the pairs of subject and shard that it computed."""

    def __init__(self, make_replica):
        super().__init__(make_replica)
        self.requested = []

    def run(self, jobs, *options):
        for unit in jobs:
            self.requested += [(mask, unit.shard) for mask in unit.subjects]
        yield from super().run(jobs, *options)


@pytest.fixture
def make_evaluator(tmp_path, calibration, replica, closed_in_the_end):
    def make(make_replica=lambda: replica, **options):
        ledger = Ledger(tmp_path / "ledger.db")
        return closed_in_the_end(Evaluator([calibration], SITES, ledger, lambda: CountingPool(make_replica), **options))

    return make


def test_the_loss_is_the_mean_over_all_scored_tokens(make_evaluator, model, calibration):
    for mask, evaluation in make_evaluator().evaluate(Round(MASKS)).items():
        total = sum(plain_losses(model, mask, shard).sum() for shard in calibration.shards)
        assert evaluation.loss == pytest.approx(total / calibration.n_tokens, rel=1e-5)
        assert not evaluation.cached
        assert evaluation.failure is None


def test_nothing_is_computed_twice(make_evaluator):
    first = make_evaluator()
    before = first.evaluate(Round(MASKS))
    second = make_evaluator(make_replica=lambda: pytest.fail("the ledger contains everything: no model is needed"))
    after = second.evaluate(Round(MASKS))
    assert [evaluation.loss for evaluation in before.values()] == [evaluation.loss for evaluation in after.values()]
    assert all(evaluation.cached for evaluation in after.values())
    assert second.meter.layer_forwards == 0


def test_only_what_is_missing_is_computed(make_evaluator, calibration):
    first = make_evaluator()
    first.evaluate(Round([Mask.of(1)]))
    first.ledger.connection.execute("DELETE FROM evaluations WHERE shard = 1")
    second = make_evaluator()
    answers = second.evaluate(Round([Mask.of(1), Mask.of(2)]))
    missing = [(Mask.of(1), 1), *((Mask.of(2), shard) for shard in range(calibration.n_shards))]
    assert sorted(second._pool.requested) == sorted(missing)
    assert not answers[Mask.of(1)].cached


def test_shared_prefixes_are_counted_once(make_evaluator):
    evaluator = make_evaluator()
    evaluator.evaluate(Round([Mask.of(layer) for layer in range(4)]))
    assert evaluator.meter.layer_forwards == 3 + 3 + 2 + 1  # N = 4: a chain of three, and suffixes of 3, 2, 1
    assert evaluator.meter.head_forwards == 4
    assert 0 < evaluator.pool_stats.busy_share <= 1


def test_large_rounds_are_cut(make_evaluator, monkeypatch):
    whole = make_evaluator().evaluate(Round(MASKS))
    monkeypatch.setattr(module, "MAX_MASKS_PER_UNIT", 2)
    evaluator = make_evaluator()
    evaluator.ledger.connection.execute("DELETE FROM evaluations")
    cut = evaluator.evaluate(Round(MASKS))
    losses, whole_losses = (
        {mask: evaluation.loss for mask, evaluation in evaluations.items()} for evaluations in (cut, whole)
    )
    assert losses == whole_losses


def test_replicas_are_freed_even_if_the_ledger_fails(make_evaluator, monkeypatch, sentences: Sentences):
    evaluator = make_evaluator()
    with monkeypatch.context() as patch:
        patch.setattr(evaluator.pool, "close", close := Mock())
        patch.setattr(evaluator._claims, "close", Mock(side_effect=UserError("the disk is full")))
        with sentences.refused(UserError):
            evaluator.close()
    close.assert_called_once_with()


def test_progress_ends_at_the_planned_forwards(make_evaluator):
    seen: list[Progress] = []
    evaluator = make_evaluator(on_progress=seen.append)
    for work, layers, heads, n_subjects in (
        (lambda: evaluator.evaluate(Round(MASKS)), 4 + 2 + 1 + 1, len(MASKS), len(MASKS)),
        (lambda: evaluator.measure(Statistic.GATE_GRADIENTS), 8, 1, 1),
    ):
        seen.clear()
        work()
        assert (seen[0].layer_forwards, seen[0].masks_done) == (0, 0)
        assert seen[-1].layer_forwards == seen[-1].layer_forwards_planned == layers
        assert seen[-1].head_forwards == seen[-1].head_forwards_planned == heads
        assert seen[-1].masks_done == seen[-1].masks_planned == n_subjects


def test_a_loss_that_is_not_finite_is_a_failure_with_its_cause(make_evaluator, make_replica):
    class Spoiled(PerplexityObjective):
        def losses(self, *arguments):
            return super().losses(*arguments) * np.nan

    def broken():
        replica = make_replica()
        ((name, calibration),) = replica.calibrations.items()
        replica.calibrations[name] = dataclasses.replace(calibration, objective=Spoiled())
        return replica

    evaluation = make_evaluator(make_replica=broken).evaluate(Round([Mask.of(1)]))[Mask.of(1)]
    assert evaluation.loss is None
    assert evaluation.failure == "the loss is nan"


def test_two_searches_at_once_compute_everything_once(tmp_path, calibration, make_replica):
    pools: list[CountingPool] = []

    def make_pool():
        pools.append(CountingPool(make_replica))
        return pools[-1]

    def work(_):
        with (
            closing(Ledger(tmp_path / "shared.db")) as ledger,
            closing(Evaluator([calibration], SITES, ledger, make_pool)) as evaluator,
        ):
            return [evaluation.loss for evaluation in evaluator.evaluate(Round(MASKS)).values()]

    with ThreadPoolExecutor(2) as threads:
        first_losses, second_losses = threads.map(work, range(2))
    assert first_losses == second_losses
    computed = [pair for pool in pools for pair in pool.requested]
    assert len(computed) == len(set(computed)) == len(MASKS) * calibration.n_shards


@pytest.mark.parametrize("statistic", Statistic)
def test_statistics_are_joined_over_shards_and_measured_once(make_evaluator, replica, calibration, statistic):
    first = make_evaluator()
    rows = first.measure(statistic)
    expected = measure(statistic, replica.stack, calibration.shards, calibration.objective)
    assert rows.tobytes() == expected.tobytes()
    assert rows.shape == (calibration.n_samples if statistic.by_sample else 1, *statistic.shape(SITES))
    second = make_evaluator(make_replica=lambda: pytest.fail("the ledger contains it"))
    assert second.measure(statistic).tobytes() == rows.tobytes()
    assert first.meter.layer_forwards == 4 * statistic.passes
    assert second.meter.layer_forwards == 0


def test_a_statistic_that_is_not_finite_is_an_error_with_the_cause(make_evaluator, make_replica, sentences: Sentences):
    def broken():
        replica = make_replica()
        replica.stack.layers[2].mlp.down_proj.weight.data[0] = np.inf
        return replica

    with sentences.refused(EvaluationError):
        make_evaluator(make_replica=broken).measure(Statistic.MAGNITUDE_L1)
