"""The losses of masks on the samples of other draws, from the ledger alone."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger
from raysearch.studies.draws import Draws, held_out_losses, notes_on

MASK = Mask.of(1)
LENGTHS = {"a": 3, "b": 2, "c": 4, "d": 5, "e": 3}  # of documents
LOSSES = {"a": 4.0, "b": 3.0, "c": 6.0, "d": 20.0, "e": 1.0}  # of the mask, the sum over their scored tokens


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        yield ledger


def evaluated(documents: str, ledger: Ledger, n_shards: int | None = None) -> Calibration:
    """A draw of some documents; the ledger has the mask's losses on its first shards, or on all of them."""
    rows = [[ord(name)] * LENGTHS[name] for name in documents]
    all_rows = Batch.of(rows, [[False, *[True] * (len(row) - 1)] for row in rows])
    calibration = Calibration.create(PerplexityObjective(), all_rows, 1, {}, {})
    for shard, batch in enumerate(calibration.shards[:n_shards]):
        ledger.record(calibration.fingerprint, shard, {MASK: np.array([LOSSES[chr(batch.input_ids[0, 0])]])})
    return calibration


def held_out(samples: Sequence[Calibration], ledger: Ledger) -> dict[int, dict[str, float]]:
    return held_out_losses(draws(samples), {0: MASK}, ledger)


def draws(samples: Sequence[Calibration]) -> Draws:
    by_label = {str(number): calibration for number, calibration in enumerate(samples)}
    return Draws("prose", by_label, {number: str(number) for number in range(len(samples))})


def test_samples_of_a_search_are_not_held_out_from_it(ledger: Ledger) -> None:
    first, overlapping, disjoint = (evaluated(documents, ledger) for documents in ("ab", "bc", "de"))
    assert held_out([first, overlapping, disjoint], ledger) == {0: {"1": 6.0 / 3, "2": 21.0 / 6}}


def test_without_a_new_sample_there_is_no_loss(ledger: Ledger) -> None:
    assert held_out([evaluated("abc", ledger), evaluated("ba", ledger)], ledger) == {}


def test_without_some_of_its_shards_there_is_no_loss(ledger: Ledger) -> None:
    assert held_out([evaluated("a", ledger), evaluated("bc", ledger, n_shards=1)], ledger) == {}


def test_a_warning_names_draws_that_have_samples_in_common(ledger: Ledger) -> None:
    (note,) = notes_on(draws([evaluated(documents, ledger) for documents in ("ab", "bc", "de")]))
    share = (1 / 2 + 0 + 1 / 2 + 0 + 0 + 0) / 6
    assert note.startswith(
        f"draws of prose have {share:.0%} of their samples in common, so tests over draws are too confident"
    )
    assert not [*notes_on(draws([evaluated(documents, ledger) for documents in ("ab", "c")]))]
