"""What searches that share a ledger add to it, told from their records: whoever computed what, and whenever."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic, Subject
from raysearch.evaluation.costs import layer_forwards


def shared_layer_forwards(
    results: Iterable[Mapping[str, Any]],
    calibrations: Sequence[Calibration],
    n_layers: int,
    references: Iterable[Mask] = (),
) -> list[float]:
    """What each search computes after all before it, round by round: what they have asked for is known.

    Run one after another in this order, searches compute just this. Run at the same time they compute the same masks,
    but may find others to share prefixes with.

    Args:
        results: The searches' records, with their trials, of one calibration.
        calibrations: What they were judged on.
        n_layers: N, the layers of the dense model.
        references: Masks by which a weighted loss is scaled.

    Returns:
        For each search, layer-forwards in passes over all samples. The first one's are all that it asks for.
    """
    known: set[Subject] = set()
    added = []
    for result in results:
        cost = 0.0
        for subjects in _requests(result, references):
            cost += layer_forwards(calibrations, subjects - known, n_layers)
            known |= subjects
        added.append(cost)
    return added


def _requests(result: Mapping[str, Any], references: Iterable[Mask]) -> Iterator[set[Subject]]:
    """What a search asked for together; the dense model, and what losses are scaled by, ride in its first round."""
    for name in result["statistics"]:
        yield {Statistic(name)}
    rounds: dict[int, set[Subject]] = {1: set(references)}
    for trial in result["trials"]:
        rounds.setdefault(max(1, trial["round"]), set()).add(Mask(tuple(trial["mask"])))
    yield from (rounds[number] for number in sorted(rounds))
