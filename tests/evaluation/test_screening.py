"""Screening on losses from a table: the masks that it drops, those that it never drops, and its cost."""

from dataclasses import replace
from itertools import combinations
from typing import cast

import numpy as np
import pytest

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.site import Sites
from raysearch.core.space import LAYERS, SPACES
from raysearch.evaluation.evaluator import Evaluator
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.screening import Screener, Screening, shard_order
from raysearch.evaluation.unit import UnitResult
from raysearch.ledger.ledger import Ledger
from raysearch.searchers.base import Dropped, Failed, Loss, Round, Scores
from raysearch.searchers.beam import BeamSearcher
from raysearch.searchers.exhaustive import ExhaustiveSearcher
from raysearch.searchers.fast_block_select import FastBlockSelectSearcher
from raysearch.searchers.genetic import GeneticSearcher
from raysearch.searchers.one_shot import OneShotSearcher
from raysearch.searching.driver import run_searcher
from raysearch.searching.observer import Observer
from raysearch.searching.search_recorder import SearchRecorder
from tests.sentences import Sentences

SCREENING = Screening()
N_LAYERS = 12
N_SAMPLES = 64
SINGLES = [Mask.of(layer) for layer in range(N_LAYERS)]


class Table:
    """The losses of masks on each sample: the effects of layers add up, and each mask has a random interaction.

    Args:
        seed: The seed of the losses.
        noise: Standard deviation of a layer's effect over samples, relative to the layers' mean effects.
        tail: Draws the effects from Student's t with this many degrees of freedom; None for a normal distribution.
    """

    def __init__(self, seed=0, noise=1.0, tail=None, n_samples=N_SAMPLES, n_layers=N_LAYERS):
        rng = np.random.default_rng(seed)
        draw = rng.standard_normal if tail is None else (lambda shape: rng.standard_t(tail, shape))
        self.level = 40 + 5 * rng.standard_normal(n_samples)
        self.layers = rng.exponential(1.0, (n_layers, 1)) + noise * draw((n_layers, n_samples))
        self.seed = seed
        self.noise = noise
        self.losses = {}  # drawing an interaction takes longer than screening a mask

    def __call__(self, mask):
        if mask not in self.losses:
            key = [*mask.layers, *(N_LAYERS + half.position for half in mask.halves)]
            interaction = np.random.default_rng([self.seed, *key]).standard_normal(len(self.level))
            interaction *= 0.2 * self.noise if mask.n_halves > 2 else 0.0
            self.losses[mask] = self.level + self._effects(mask) + interaction
        return self.losses[mask]

    def _effects(self, mask):
        """An attention has the more of its layer's effect, the later the layer; its MLP has the rest."""
        effects = self.layers[[*mask.layers]].sum(axis=0)
        for layer, part in mask.halves:
            share = (1 + layer) / (1 + len(self.layers))
            effects = effects + (share if part == "attention" else 1 - share) * self.layers[layer]
        return effects


class TableReplica:
    """Evaluates units from a table, and remembers what it evaluated."""

    def __init__(self, table, calibrations):
        self.table = table
        self.calibrations = {calibration.fingerprint: calibration for calibration in calibrations}
        sizes = [calibration.n_samples for calibration in calibrations]
        self.begins = dict(zip(self.calibrations, [0, *np.cumsum(sizes)], strict=False))
        self.requested = []

    def evaluate(self, unit):
        shards = self.calibrations[unit.calibration].shards
        begin = self.begins[unit.calibration] + sum(shard.n_samples for shard in shards[: unit.shard])
        rows = slice(begin, begin + shards[unit.shard].n_samples)
        self.requested += [(unit.calibration, mask, unit.shard) for mask in unit.masks]
        return UnitResult({mask: self.table(mask)[rows] for mask in unit.masks}, 1, 1, 1, None, 0.0)


class DisorderlyPool(InlinePool):
    """Does units like three replicas: cut into parts, in any order."""

    def run(self, jobs, calibrations=(), cutter=None):
        parts = [part for unit in jobs for side in cutter(unit, 3) for part in side]
        np.random.default_rng(len(parts)).shuffle(parts)
        return super().run(parts, calibrations)


def calibration_of(n_samples=N_SAMPLES, per_shard=4, name=0):
    ids = np.ones((n_samples, 3), np.int64)
    scored = np.broadcast_to([False, True, True], ids.shape).copy()
    return Calibration.create(PerplexityObjective(), Batch(ids, scored), per_shard, {"test": name}, {})


class Bench:
    """An evaluator on a table, with a new ledger or that of another bench."""

    def __init__(
        self,
        folder,
        table,
        screening=SCREENING,
        calibrations=None,
        ledger=None,
        weighting=None,
        pool=InlinePool,
        space=LAYERS,
    ):
        self.space = space
        self.calibrations = calibrations or [calibration_of(len(table.level))]
        self.replica = TableReplica(table, self.calibrations)
        self.ledger = ledger or Ledger(folder / f"{id(self)}.db")
        self.evaluator = Evaluator(
            self.calibrations,
            Sites.of_equal_layers(N_LAYERS),
            self.ledger,
            lambda: pool(lambda: cast(Replica, self.replica)),
            weighting=weighting,
            screening=screening,
            removable=space.select(Sites.of_equal_layers(N_LAYERS)),
        )
        self.rounds = []

    def evaluate(self, proposed):
        evaluations = self.evaluator.evaluate(replace(proposed, masks=[Mask(), *proposed.masks]))
        self.rounds.append({mask: evaluations[mask] for mask in proposed.masks})
        return Scores(proposed, {mask: evaluations[mask].outcome for mask in proposed.masks})

    def measure(self, statistic):
        return np.broadcast_to(np.arange(1.0, N_LAYERS + 1), (1, N_LAYERS))

    def note(self, remark):
        """Do nothing."""

    def search(self, searcher, n_remove=3):
        return run_searcher(searcher, Problem.create(N_LAYERS, n_remove, space=self.space), 0, self)

    @property
    def cost(self):
        return len(set(self.replica.requested))


@pytest.fixture
def bench(tmp_path):
    benches = []

    def make(table=None, **options):
        benches.append(Bench(tmp_path, table or Table(), **options))
        return benches[-1]

    yield make
    for bench in benches:
        bench.evaluator.close()
    for ledger in {id(bench.ledger): bench.ledger for bench in benches}.values():
        ledger.close()


SEARCHERS = {
    "greedy": BeamSearcher(width=1),
    "beam": BeamSearcher(width=3),
    "one_shot": OneShotSearcher(),
    "exhaustive": ExhaustiveSearcher(round_size=60),
    "fast_block_select": FastBlockSelectSearcher(rounds=3),
    "genetic": GeneticSearcher(population=8, generations=3),
}


def test_a_screened_search_ends_with_the_unscreened_mask_at_less_cost(bench, subtests):
    for name, searcher in SEARCHERS.items():
        with subtests.test(name):
            screened = bench()
            plain = bench(screening=None)
            assert screened.search(searcher) == plain.search(searcher)
            assert screened.cost < (0.75 if name in ("greedy", "beam", "exhaustive") else 1) * plain.cost


@pytest.mark.parametrize("space", ["pairs", "attention", "halves"])
def test_losses_of_masks_of_halves_are_predicted_by_their_sites(bench, space):
    screened, plain = (bench(screening=screening, space=SPACES[space]) for screening in (SCREENING, None))
    unpredicted = bench(space=SPACES[space])
    unpredicted.evaluator._screener._sites = Sites.of_equal_layers(N_LAYERS)
    searcher = SEARCHERS["greedy"]
    assert screened.search(searcher) == unpredicted.search(searcher) == plain.search(searcher)
    assert screened.cost < unpredicted.cost < plain.cost


def test_losses_are_those_without_screening_and_screened_masks_have_estimates_with_bounds(bench):
    screened = bench()
    plain = bench(screening=None)
    screened.search(SEARCHERS["beam"]), plain.search(SEARCHERS["beam"])
    pairs = []  # evaluations of screened masks, each with the loss without screening
    for screened_round, plain_round in zip(screened.rounds, plain.rounds, strict=True):
        exact = {mask: evaluation.loss for mask, evaluation in screened_round.items() if evaluation.screened is None}
        assert len(exact) >= 3
        assert exact == {mask: plain_round[mask].loss for mask in exact}
        pairs += [
            (evaluation, plain_round[mask].loss)
            for mask, evaluation in screened_round.items()
            if evaluation.screened is not None
        ]
    assert len(pairs) > 10
    for evaluation, _ in pairs:
        assert evaluation.loss is None
        assert evaluation.failure is None
        assert evaluation.parts == ()
        assert 0 < evaluation.screened.share < 1
    inside = [evaluation.screened.low <= loss <= evaluation.screened.high for evaluation, loss in pairs]
    assert np.mean(inside) > 0.9


def test_nothing_is_computed_twice_and_without_screening_the_rest_is_completed(bench):
    first = bench()
    mask = first.search(SEARCHERS["greedy"])
    assert len(first.replica.requested) == len(set(first.replica.requested))
    unscreened = bench(ledger=first.ledger, screening=None)
    assert unscreened.search(SEARCHERS["greedy"]) == mask
    assert not set(unscreened.replica.requested) & set(first.replica.requested)
    assert not any(evaluation.screened for evaluations in unscreened.rounds for evaluation in evaluations.values())


def test_decisions_do_not_depend_on_the_ledger_and_the_order_of_results(bench):
    """A search that is resumed, or runs after an unscreened one, or on several replicas, drops the same masks."""
    fresh = bench()
    full = bench(screening=None)
    fresh.search(SEARCHERS["beam"]), full.search(SEARCHERS["beam"])
    resumed = bench(ledger=fresh.ledger)
    after = bench(ledger=full.ledger)
    resumed.search(SEARCHERS["beam"]), after.search(SEARCHERS["beam"])
    assert not resumed.replica.requested
    assert not after.replica.requested
    disorderly = bench(pool=DisorderlyPool)
    disorderly.search(SEARCHERS["beam"])
    assert disorderly.replica.requested != fresh.replica.requested
    assert {*disorderly.replica.requested} == {*fresh.replica.requested}

    def decisions(searched):
        return [
            {mask: (evaluation.loss, evaluation.screened) for mask, evaluation in evaluations.items()}
            for evaluations in searched.rounds
        ]

    assert decisions(fresh) == decisions(resumed) == decisions(after) == decisions(disorderly)
    meters = [searched.evaluator.meter for searched in (fresh, resumed, after)]
    assert len({(meter.layer_forwards_alone, meter.head_forwards_alone) for meter in meters}) == 1
    assert meters[0].head_forwards_alone < full.evaluator.meter.head_forwards_alone


def see(screener, table, calibration, masks, stage):
    """Show a screener the losses of masks up to a stage, as an evaluator does."""
    shards = screener.stages[stage][calibration.fingerprint]
    losses = {mask: {shard: table(mask)[4 * shard : 4 * shard + 4] for shard in shards} for mask in masks}
    screener.see(masks, stage, {calibration.fingerprint: losses})


def race(table, screening, keep, exact):
    """Screen a round of single layers without a ledger; return its contest, and the share of evaluated samples."""
    calibration = calibration_of()
    screener = Screener(screening, [calibration], Sites.of_equal_layers(N_LAYERS))
    undecided = {*SINGLES}
    evaluated = 0
    contest = screener.contest(Round(SINGLES, keep, exact=exact))
    assert contest is not None
    before = 0
    for number, stage in enumerate(screener.stages):
        shards = stage[calibration.fingerprint]
        evaluated += len(undecided) * (len(shards) - before)
        before = len(shards)
        see(screener, table, calibration, undecided, number)
        contest.decide()
        undecided -= contest.dropped | contest.accepted
    return contest, evaluated / len(SINGLES) / calibration.n_shards


@pytest.mark.parametrize("tail", [None, 4])
@pytest.mark.parametrize(("keep", "exact"), [(1, True), (5, False)])
def test_masks_are_dropped_and_accepted_by_mistake_less_often_than_the_confidence_allows(tail, keep, exact):
    """Rounds at 80 % confidence: at most 20 % may be wrong about the best, and screening must save work."""
    wrong = accepted = 0
    shares = []
    for seed in range(50):
        table = Table(seed, noise=2.0, tail=tail)
        contest, share = race(table, Screening(confidence=0.8), keep, exact)
        best = set(sorted(SINGLES, key=lambda mask: table(mask).sum())[:keep])
        wrong += bool(contest.accepted - best or contest.dropped & best)
        shares.append(share)
        accepted += len(contest.accepted)
    assert wrong <= 5
    assert np.mean(shares) < 0.7 if exact else accepted > 20


def test_masks_that_tie_and_small_calibrations_are_never_screened(bench):
    table = Table()
    table.layers[:] = 1.0
    few = bench(Table(n_samples=3), calibrations=[calibration_of(3, 1)])
    one_shard = bench(calibrations=[calibration_of(per_shard=64)])
    for unscreened in (bench(table), few, one_shard):
        assert len(unscreened.evaluate(Round(SINGLES, keep=1)).losses) == N_LAYERS


def test_the_dense_model_is_never_dropped_and_drops_no_mask(bench):
    table = Table()
    table.layers += 100  # the dense model is far better than any mask
    scores = bench(table).evaluate(Round([Mask(), *SINGLES], keep=1))
    assert Mask() in scores.losses
    assert len(scores.losses) >= 2


def test_rounds_without_keep_and_beyond_the_budget_are_evaluated_in_full(bench):
    screened_bench = bench()
    pairs = [Mask(pair) for pair in combinations(range(N_LAYERS), 2)]
    assert not screened_bench.evaluate(Round(SINGLES)).dropped
    assert screened_bench.evaluate(Round(pairs, keep=1)).dropped
    triples = [Mask(triple) for triple in combinations(range(N_LAYERS), 3)]
    # The first round has spent the budget, since n_rounds=1.
    assert not screened_bench.evaluate(Round(triples, keep=1)).dropped


def test_with_beat_only_better_masks_need_exact_losses(bench):
    screened_bench = bench()
    centre = min(SINGLES[1:], key=lambda mask: screened_bench.replica.table(mask).sum())
    screened_bench.evaluate(Round([centre]))
    scores = screened_bench.evaluate(Round([mask for mask in SINGLES if mask != centre], beat=centre))
    better = {
        mask
        for mask in SINGLES
        if screened_bench.replica.table(mask).sum() < screened_bench.replica.table(centre).sum()
    }
    assert scores.dropped
    assert better <= scores.losses.keys()


def test_if_a_mask_fails_late_the_masks_that_it_beat_are_evaluated(bench):
    table = Table(noise=0.01)
    good = Mask.of(3)
    table.layers[3] = -50.0
    screened_bench = bench(table)
    last = shard_order(screened_bench.calibrations[0])[-1]
    table.layers[3, 4 * last] = np.inf
    scores = screened_bench.evaluate(Round(SINGLES, keep=1))
    assert scores.failed == {good: "the loss is inf"}
    assert len(scores.losses) == N_LAYERS - 1
    assert not scores.dropped


def test_if_all_remaining_masks_fail_late_the_accepted_masks_are_evaluated(bench):
    table = Table(noise=0.01)
    table.layers[3] = -50.0  # the leader, which is never accepted
    table.layers[5:7] = 50.0  # the two worst masks; either may be dropped
    screened_bench = bench(table)
    table.layers[[3, 5, 6], 4 * shard_order(screened_bench.calibrations[0])[-1]] = np.inf
    scores = screened_bench.evaluate(Round(SINGLES, keep=N_LAYERS - 1, exact=False))
    assert scores.failed.keys() == {Mask.of(layer) for layer in (3, 5, 6)}
    assert len(scores.losses) == N_LAYERS - 3
    assert not scores.accepted


def test_a_mask_that_fails_early_is_a_failure_and_drops_no_mask(bench):
    table = Table()
    table.layers[3] = np.nan
    scores = bench(table).evaluate(Round(SINGLES, keep=1))
    assert scores.failed == {Mask.of(3): "the loss is nan"}
    assert scores.dropped
    assert scores.best(1) == [min(SINGLES[:3] + SINGLES[4:], key=lambda mask: table(mask).sum())]


def test_weighted_objectives_are_screened_by_their_weighted_difference(bench):
    parts = [calibration_of(name=1), calibration_of(32, name=2)]
    weighting = WeightedObjective((2.0, 1.0), normalise="dense")
    table = Table(n_samples=96)
    screened = bench(table, calibrations=parts, weighting=weighting)
    plain = bench(table, calibrations=parts, weighting=weighting, screening=None)
    assert screened.search(SEARCHERS["greedy"]) == plain.search(SEARCHERS["greedy"])
    assert screened.cost < 0.9 * plain.cost


@pytest.mark.parametrize("screening", [SCREENING, None], ids=["screened", "in full"])
def test_masks_that_scale_the_losses_are_cached_from_the_second_round_on(bench, screening):
    """They are computed before the masks of the first round; in this test they are the same masks."""
    weighting = WeightedObjective((1.0,), normalise="spread")
    screened_bench = bench(Table(), screening=screening, weighting=weighting)
    first, second = (screened_bench.evaluator.evaluate(Round(SINGLES, keep=1)) for _ in range(2))
    assert not any(evaluation.cached for evaluation in first.values())
    assert all(evaluation.cached for evaluation in second.values())


def test_right_and_wrong_answers_are_compared_by_counting(bench):
    table = Table()
    table.level[:] = 0.0
    table.layers[:] = (np.random.default_rng(0).random((N_LAYERS, N_SAMPLES)) < 0.9).astype(float)
    table.layers[5] = 0.0  # all answers right
    scores = bench(table).evaluate(Round(SINGLES, keep=1))
    assert scores.best(1) == [Mask.of(5)]
    assert scores.dropped
    assert all(estimate > scores[Mask.of(5)] for estimate in scores.dropped.values())


def test_the_difference_of_two_fully_evaluated_masks_is_exact(bench):
    screened_bench = bench()
    screened_bench.evaluate(Round(SINGLES))
    screener = screened_bench.evaluator._screener
    table = screened_bench.replica.table
    calibration = screened_bench.calibrations[0]
    exact = (table(SINGLES[0]) - table(SINGLES[1])).sum() / calibration.divisor
    difference = screener.differences([SINGLES[0]], SINGLES[1])[SINGLES[0]]
    assert difference.mean == pytest.approx(exact)
    assert difference.error == 0


def test_the_error_of_a_difference_follows_cochran(bench):
    """Without a prediction s sqrt(1/n - 1/N); with a prediction, the same formula for the residuals."""
    screened_bench = bench(screening=Screening(stages=[0.25]))
    screener = screened_bench.evaluator._screener
    table = screened_bench.replica.table
    calibration = screened_bench.calibrations[0]
    order = np.concatenate([np.arange(4 * shard, 4 * shard + 4) for shard in shard_order(calibration)])[:16]

    def error(losses):
        return losses[order].std(ddof=1) * np.sqrt(1 / 16 - 1 / N_SAMPLES) * N_SAMPLES / calibration.divisor

    first = Mask.of(0, 7)
    second = Mask.of(1, 7)
    see(screener, table, calibration, [first, second], 0)
    plain = screener.differences([first], second)[first]
    assert plain.error == pytest.approx(error(table(first) - table(second)))
    assert plain.mean == pytest.approx((table(first) - table(second))[order].mean() * N_SAMPLES / calibration.divisor)
    see(screener, table, calibration, [Mask(), SINGLES[0], SINGLES[1], SINGLES[7]], 1)
    assert screener.contest(Round([first, second], keep=1))
    predicted = table(SINGLES[0]) - table(SINGLES[1])
    better = screener.differences([first], second)[first]
    assert better.error == pytest.approx(error(table(first) - table(second) - predicted))
    assert better.error < 0.5 * plain.error
    mean = (table(first) - table(second) - predicted)[order].mean() + predicted.mean()
    assert better.mean == pytest.approx(mean * N_SAMPLES / calibration.divisor)


def test_masks_of_different_parents_are_predicted_by_smaller_masks(bench):
    """{0,1,2} by {0,1} + {0,2} - {0}, and {3,4,5} by {3,4} + {3,5} - {3}: they share no layer."""
    screened_bench = bench(screening=Screening(stages=[0.25]))
    first = Mask.of(0, 1, 2)
    second = Mask.of(3, 4, 5)
    parts = [first - [layer] for layer in (1, 2)] + [second - [layer] for layer in (4, 5)] + [SINGLES[0], SINGLES[3]]
    screened_bench.evaluator.evaluate(Round([Mask(), *parts]))
    screener = screened_bench.evaluator._screener
    table = screened_bench.replica.table
    calibration = screened_bench.calibrations[0]
    assert screener.contest(Round([first, second], keep=1))
    predicted = table(parts[2]) + table(parts[3]) - table(SINGLES[3])
    assert screener.promise(second) == pytest.approx((predicted - table(Mask())).sum() / calibration.divisor)
    assert predicted.mean() == pytest.approx(table(second).mean(), rel=0.05)


def test_the_order_of_shards_is_a_spread_permutation_of_the_calibration(subtests):
    for n_shards in (1, 2, 3, 8, 13, 64):
        with subtests.test(n_shards):
            order = shard_order(calibration_of(n_shards, 1))
            assert sorted(order) == [*range(n_shards)]
    orders = {shard_order(calibration_of(name=name)) for name in range(20)}
    assert len(orders) > 10  # the order differs between calibrations
    first = sorted(shard_order(calibration_of(64, 1))[:8])
    assert max(np.diff([*first, first[0] + 64])) <= 16


def test_stages_are_whole_shards_and_the_last_stage_has_all():
    calibration = calibration_of(24, 8)
    stages = Screener(Screening(), [calibration], Sites.of_equal_layers(N_LAYERS)).stages
    assert [len(stage[calibration.fingerprint]) for stage in stages] == [1, 2, 3]


def test_if_losses_are_not_needed_the_best_masks_are_accepted_early(bench, sentences: Sentences):
    for seed in range(5):
        table = Table(seed, noise=0.5)
        keep = 5
        best = set(sorted(SINGLES, key=lambda mask: table(mask).sum())[:keep])
        exact = bench(table).evaluate(Round(SINGLES, keep=keep))
        screened_bench = bench(table)
        scores = screened_bench.evaluate(Round(SINGLES, keep=keep, exact=False))
        assert set() < scores.accepted.keys() < best == set(scores.best(keep)) == set(exact.best(keep))
        assert scores.losses.items() <= exact.losses.items()
        assert not exact.accepted
        estimates = [screened_bench.rounds[0][mask].screened for mask in scores.accepted]
        assert all(estimate.accepted and estimate.share < 1 for estimate in estimates)
        assert not any(screened_bench.rounds[0][mask].screened.accepted for mask in scores.dropped)
        assert min(scores.losses.values()) <= min(estimate.loss for estimate in estimates), (
            "the mask that seems the best has an exact loss"
        )
        assert scores.best(1) == [min(scores.losses, key=scores.losses.__getitem__)]
        with sentences.refused(ValueError):
            scores.best(2)


def test_a_search_whose_masks_are_accepted_early_is_recorded(bench):
    table = Table(noise=0.5)
    problem = Problem.create(N_LAYERS, 5)
    recorder = SearchRecorder(problem, bench(table).evaluator, Observer(), 0.0)
    best = run_searcher(OneShotSearcher(), problem, 0, recorder)
    assert best == bench(table, screening=None).search(OneShotSearcher(), 5)
    screened = {trial.mask: trial.screened for trial in recorder.trials if trial.screened is not None}
    accepted = {mask: estimate.loss for mask, estimate in screened.items() if estimate.accepted}
    assert accepted
    assert all(set(mask) < set(best) for mask in accepted)
    assert not accepted.keys() & recorder.losses
    single = recorder.summaries[0].round_best
    assert single is not None
    assert recorder.losses[single] < min(accepted.values())
    assert recorder.removal_order(best) is None, "the order of accepted masks is not known"


def test_scores_refuse_more_masks_than_keep(sentences: Sentences):
    losses = {Mask.of(1): Loss(1.0), Mask.of(2): Loss(2.0)}
    proposed = Round([*SINGLES[1:4]], keep=1)
    scores = Scores(proposed, {**losses, Mask.of(3): Dropped(3.0)})
    assert scores.best(1) == [Mask.of(1)]
    with sentences.refused(ValueError):
        scores.best(2)
    assert Scores(proposed, {**losses, Mask.of(3): Failed("broke")}).best(2) == [Mask.of(1), Mask.of(2)]


def test_bad_options_are_refused(sentences: Sentences):
    sentences.refused_each(
        Screening,
        [
            {"confidence": 1.0},
            {"stages": [0.5, 0.25]},
            {"stages": [0.0]},
        ],
    )
