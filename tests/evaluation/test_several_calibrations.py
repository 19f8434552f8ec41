"""Several calibrations in one pool: their separate losses, and one weighted loss."""

import itertools
import statistics

import numpy as np
import pytest

from raysearch.calibration.batch import Batch, Choices
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.hidden_cosine import HiddenCosineObjective
from raysearch.calibration.objectives.kl import KLObjective
from raysearch.calibration.objectives.task_margin import TaskMarginObjective
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.evaluator import Evaluator
from raysearch.evaluation.inline_pool import InlinePool
from raysearch.evaluation.unit import MaskUnit
from raysearch.ledger.ledger import Ledger
from raysearch.searchers.base import Round
from tests.sentences import Sentences

SITES = Sites.of_equal_layers(4)

MASKS = [Mask.of(2), Mask.of(1, 2)]
SINGLES = [Mask.of(layer) for layer in range(4)]


@pytest.fixture(scope="module")
def items():
    rng = np.random.default_rng(1)
    rows = []
    scored = []
    item = []
    for sample in range(4):
        prompt = rng.integers(100, size=6 + sample).tolist()
        for _ in range(3):
            answer = rng.integers(100, size=rng.integers(1, 4)).tolist()
            rows.append([*prompt, *answer])
            scored.append([False] * len(prompt) + [True] * len(answer))
            item.append(sample)
    batch = Batch.of(rows, scored, Choices(np.array(item), np.arange(len(rows)) % 3 == 1, np.ones(len(rows), np.int64)))
    return Calibration.create(TaskMarginObjective(), batch, 2, {"test": 2}, {})


@pytest.fixture
def open_evaluator(tmp_path, replica, closed_in_the_end):
    number = itertools.count()

    def make(*calibrations, **options):
        ledger = Ledger(tmp_path / f"{next(number)}.db")
        return closed_in_the_end(Evaluator(calibrations, SITES, ledger, lambda: InlinePool(lambda: replica), **options))

    return make


def test_the_loss_on_each_calibration_is_that_without_the_other(open_evaluator, calibration, items):
    evaluations = open_evaluator(calibration, items).evaluate(Round(MASKS))
    for place, part in enumerate((calibration, items)):
        for mask, evaluation in open_evaluator(part).evaluate(Round(MASKS)).items():
            assert evaluations[mask].parts[place] == evaluation.loss
            assert evaluations[mask].loss == evaluations[mask].parts[0]


@pytest.mark.parametrize("normalise", ["none", "dense", "spread"])
def test_a_weighted_sum(open_evaluator, calibration, items, normalise):
    weighting = WeightedObjective((1.0, 3.0), normalise)
    weighted = open_evaluator(calibration, items, weighting=weighting).evaluate(Round(MASKS))
    masks = [Mask(), *SINGLES, *MASKS[1:]]
    separate = [open_evaluator(part).evaluate(Round(masks)) for part in (calibration, items)]
    scales = {
        "none": [1, 1],
        "dense": [abs(evaluations[Mask()].loss) for evaluations in separate],
        "spread": [statistics.pstdev(evaluations[single].loss for single in SINGLES) for evaluations in separate],
    }[normalise]
    for mask in MASKS:
        expected = separate[0][mask].loss / scales[0] + 3 * separate[1][mask].loss / scales[1]
        assert weighted[mask].loss == pytest.approx(expected, rel=1e-12)


def test_a_weighted_sum_uses_the_cached_losses_of_its_parts(open_evaluator, calibration, items):
    first = open_evaluator(calibration, items)
    first.evaluate(Round([Mask(), *SINGLES, *MASKS]))
    second = Evaluator(
        [items, calibration], SITES, first.ledger, lambda: pytest.fail("all is cached"), WeightedObjective((1.0, 1.0))
    )
    assert all(evaluation.cached for evaluation in second.evaluate(Round(MASKS)).values())
    second.close()


def test_a_part_with_equal_losses_cannot_scale(sentences: Sentences):
    weighting = WeightedObjective((1.0,), "spread")
    with sentences.refused(EvaluationError):
        weighting.combine([1.0], {single: [2.0] for single in SINGLES})
    with sentences.refused(EvaluationError):
        WeightedObjective((1.0, 1.0), "dense").combine([1.0, 1.0], {Mask(): [2.0, 0.0]})


@pytest.mark.parametrize("weights", [(), (1.0, 0.0), (-1.0,), (float("nan"),)])
def test_weights_that_are_not_positive_are_refused(weights, sentences: Sentences):
    with sentences.refused(UserError):
        WeightedObjective(weights)


def test_normalised_by_accuracy_the_mean_retained_accuracy_ranks(sentences: Sentences):
    """The mask of the lowest weighted loss is that of the highest mean of pruned / dense accuracy."""
    objective = WeightedObjective((1.0, 1.0, 1.0), "accuracy")
    (dense,) = objective.references(SITES)
    assert dense == Mask()
    errors = np.random.default_rng(0).uniform(size=(20, 3))
    references = {dense: [0.2, 0.9, 0.5]}
    losses = [objective.combine(row.tolist(), references) for row in errors]
    retained = ((1 - errors) / (1 - np.array(references[dense]))).mean(axis=1)
    assert np.argsort(losses).tolist() == np.argsort(-retained).tolist()
    with sentences.refused(EvaluationError):
        objective.combine([0.5, 1.0, 0.5], {dense: [0.2, 1.0, 0.5]})


def test_statistics_are_of_all_samples(open_evaluator, calibration, items):
    rows = open_evaluator(calibration, items).measure(Statistic.BLOCK_INFLUENCE)
    parts = [open_evaluator(part).measure(Statistic.BLOCK_INFLUENCE) for part in (calibration, items)]
    np.testing.assert_array_equal(rows, np.concatenate(parts))
    assert rows.shape == (5 + 4, 4)
    assert open_evaluator(calibration, items).measure(Statistic.MAGNITUDE_L1).shape == (1, 4)


def test_gradients_need_a_single_objective_that_has_them(open_evaluator, calibration, items, sentences: Sentences):
    with sentences.refused(UserError):
        open_evaluator(calibration, items).measure(Statistic.TAYLOR)
    compared = Calibration.create(KLObjective(), calibration.shards[0], 2, {}, {})
    with sentences.refused(UserError):
        open_evaluator(compared).measure(Statistic.GATE_GRADIENTS)
    assert open_evaluator(items).measure(Statistic.GATE_GRADIENTS).shape == (4, 4)


@pytest.mark.parametrize("objective", [KLObjective(), HiddenCosineObjective()])
def test_an_objective_that_compares_with_the_dense_model_runs_it_once(replica, calibration, objective):
    compared = Calibration.create(objective, calibration.shards[0], None, {}, {})
    replica.calibrations[compared.fingerprint] = compared
    separate = {mask: replica.evaluate(MaskUnit(compared.fingerprint, 0, (mask,))) for mask in MASKS}
    together = replica.evaluate(MaskUnit(compared.fingerprint, 0, (*MASKS, Mask())))
    for mask in MASKS:
        assert separate[mask].values[mask].tobytes() == together.values[mask].tobytes()
        assert list(separate[mask].values) == [mask]
    np.testing.assert_allclose(together.values[Mask()], 0, atol=1e-6)
    assert separate[Mask.of(2)].layer_forwards == 4 + 1  # the dense model's four layers, and layer 3 without layer 2


def test_choices_are_packed_if_that_is_exact_and_their_tokens_are_counted(replica, items, monkeypatch):
    replica.calibrations[items.fingerprint] = items
    unit = MaskUnit(items.fingerprint, 1, tuple(MASKS))
    packed = replica.evaluate(unit)
    monkeypatch.setattr(replica, "_packs", lambda name: False)
    plain = replica.evaluate(unit)
    assert packed.packed
    assert plain.packed is False
    for mask in MASKS:
        np.testing.assert_allclose(packed.values[mask], plain.values[mask], rtol=1e-5, atol=1e-6)
    assert packed.layer_forwards == plain.layer_forwards
    assert packed.layer_tokens < 0.75 * plain.layer_tokens
