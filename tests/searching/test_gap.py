"""The rank of a search's mask, computed by hand on ledgers without a model."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.core.json import plain
from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY, Measure
from raysearch.errors import UserError
from raysearch.searching.gap import gap_of
from raysearch.searching.result import SampleCounts
from raysearch.searching.search_record import SearchRecord
from tests.sentences import Sentences
from tests.tracking.simulated import greedy_search

N_TOKENS = N_SAMPLES = 4
PAIRS = [Mask.of(*pair) for pair in combinations((0, 1, 2, 4), 2)]  # of five layers, 3 is protected


def nats(mask):
    """Three of the six pairs of free layers have the second lowest loss; {0,1} has the lowest loss, {2,4} has none."""
    return {Mask.of(0, 1): 2.0, Mask.of(0, 2): 8.0, Mask.of(2, 4): float("nan")}.get(mask, 4.0)


def record(ledger, masks, calibration="here"):
    """Record two shards of two samples, which add up to the nats of a mask; shard 0 is zero."""
    for mask in masks:
        ledger.record(calibration, 0, {mask: np.zeros(2)})
        ledger.record(calibration, 1, {mask: np.array([nats(mask) / 2] * 2)})


def search_of(*removed, measure=PERPLEXITY):
    """A finished search with the mask `removed`."""
    loss = nats(Mask(removed)) / measure.divisor(N_TOKENS, N_SAMPLES)
    search = replace(
        greedy_search(5, 1), samples=SampleCounts(N_TOKENS, N_SAMPLES), fingerprints={"calibration": "here"}
    )
    result = replace(search, measure=measure, removed=removed, loss=loss)
    config = {"remove": len(removed), "protect": [3]}
    return SearchRecord("greedy-m2-00", config, "finished", None, result, "now")


@pytest.mark.parametrize(
    ("removed", "rank", "percentile", "gap"),
    [((0, 1), 1, 100, 0.0), ((0, 4), 2, 100 * 5 / 6, 0.5), ((0, 2), 5, 100 * 2 / 6, 1.5)],
    ids=["best", "tied", "worst but for a failure"],
)
def test_a_mask_is_ranked_among_all_of_its_size(ledger, removed, rank, percentile, gap):
    # The last three masks are dense, protected or larger, and so no rivals.
    record(ledger, [*PAIRS, Mask(), Mask.of(0, 3), Mask.of(0, 1, 2)])
    record(ledger, [Mask.of(1, 2)], calibration="elsewhere")
    ranked = gap_of(search_of(*removed), ledger)
    assert (ranked.rank, ranked.gap) == (rank, gap)
    assert ranked.percentile == pytest.approx(percentile)
    assert (ranked.n_masks, ranked.best) == (6, Mask.of(0, 1))
    assert plain(ranked) | {"percentile": None} == {
        **{"n_removed": 2, "removed": list(removed), "loss": 0.5 + gap, "n_masks": 6},
        **{"rank": rank, "percentile": None, "best": [0, 1], "best_loss": 0.5, "gap": gap},
    }


@pytest.mark.parametrize(("per", "best_loss"), [("token", 0.5), ("sample", 1.0), ("set", 2.0)])
def test_losses_are_divided_as_in_the_search(ledger, monkeypatch, per, best_loss):
    monkeypatch.setattr(f"{__name__}.N_SAMPLES", 2)
    record(ledger, PAIRS)
    ranked = gap_of(search_of(0, 4, measure=Measure("errors per item", per, "accuracy")), ledger)
    assert (ranked.best_loss, ranked.gap, ranked.rank) == (best_loss, best_loss, 2)


def test_a_weighted_search_is_refused(ledger, sentences: Sentences):
    record(ledger, PAIRS)
    with sentences.refused(UserError):
        gap_of(search_of(0, 1, measure=WeightedObjective.measure), ledger)


def test_missing_masks_are_counted_and_the_error_has_the_command(ledger):
    record(ledger, PAIRS[:4])
    ledger.record("here", 0, {PAIRS[4]: np.zeros(2)})  # one shard of two: incomplete
    with pytest.raises(UserError) as refused:
        gap_of(search_of(0, 1), ledger)
    assert str(refused.value) == (
        "SEARCH=greedy-m2-00 cannot be ranked: 4 of the 6 masks of 2 layers are known; get the others with raysearch "
        "search searcher=exhaustive remove=2 screening=off and the same model, data, objective, protect and seed"
    )


def test_the_command_raises_the_limit_if_needed(ledger, monkeypatch, sentences: Sentences):
    monkeypatch.setattr("raysearch.searchers.exhaustive.ExhaustiveSearcher.limit", 5)
    with sentences.refused(UserError):
        gap_of(search_of(0, 1), ledger)


def test_a_search_without_a_result_has_no_rank(ledger, sentences: Sentences):
    with sentences.refused(UserError):
        gap_of(SearchRecord("x", {}, "interrupted", None, None, "now"), ledger)
