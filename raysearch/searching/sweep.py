"""The loss without each single layer, by several objectives side by side: the papers' first look at a model.

The masks are the first round of most searchers, so a search on the same ledger computes none of them again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import computed_field

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.generation_accuracy import GenerationAccuracyObjective
from raysearch.core.estimate import rank_correlation
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.errors import EvaluationError
from raysearch.evaluation.costs import whole_passes
from raysearch.evaluation.session import open_session
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.evaluation.totals import standard_errors
from raysearch.generation.checks import check_of
from raysearch.generation.diagnostics import describe_texts
from raysearch.ledger.ledger import Ledger
from raysearch.searchers.base import Round
from raysearch.searching.observer import Observer, describe_model, tell_of_large_files, warn_of_unknown


@dataclass(frozen=True)
class Profile:
    """The loss without each layer, on one calibration.

    Args:
        calibration: Its name: ``perplexity on c4``.
        losses: Without each layer, [N]; None where that failed.
        standard_errors: Of what each layer adds to the loss, by the choice of samples, [N]; None where there is none.
        texts: What the generated texts show, of the dense model and then without each layer, [N + 1], as
            `raysearch.generation.diagnostics.describe_texts` returns it; empty where nothing is generated.
    """

    calibration: str
    measure: Measure
    dense_loss: float
    losses: tuple[float | None, ...]
    standard_errors: tuple[float | None, ...]
    texts: tuple[Mapping[str, Any], ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ranking(self) -> list[int]:
        """The layers, the one that is missed least first; those that failed last."""
        return sorted(range(len(self.losses)), key=lambda layer: (self.comparable[layer], layer))

    @property
    def ranks(self) -> list[int]:
        """Each layer's place in the ranking, from 1; equals share one."""
        ordered = sorted(self.comparable)
        return [1 + ordered.index(loss) for loss in self.comparable]

    @property
    def comparable(self) -> list[float]:
        """The losses, infinite where that failed."""
        return [math.inf if loss is None else loss for loss in self.losses]


@dataclass(frozen=True)
class Agreement:
    """How far two calibrations agree on the layers.

    Args:
        spearman: Rank correlation of the losses over all layers, -1 … 1; None as of `rank_correlation`.
        shared: How many of the first `n_remove` of both rankings are the same.
    """

    one: str
    other: str
    spearman: float | None
    shared: int
    n_remove: int


@dataclass(frozen=True)
class Sweep:
    """Every layer by every calibration, what each makes of the layers; the model as the user named it.

    `files` are the figure and the tables, if they were written.
    """

    model: str
    calibrations: tuple[Profile, ...]
    files: tuple[Path, ...] = ()

    def agreements(self, n_remove: int) -> list[Agreement]:
        """Return the agreement of every two calibrations."""
        return [
            Agreement(
                one.calibration,
                other.calibration,
                rank_correlation(one.comparable, other.comparable),
                len({*one.ranking[:n_remove]} & {*other.ranking[:n_remove]}),
                n_remove,
            )
            for one, other in itertools.combinations(self.calibrations, 2)
        ]


def run_sweep(spec: EvaluationSpec, observer: Observer) -> Sweep:
    """Remove each layer in turn, and nothing else.

    Raises:
        UserError: The specification does not fit the model, the data or the machine.
        EvaluationError: The dense model cannot be evaluated, or a unit of work failed for good.
    """
    info = describe_model(spec.model, observer)
    tell_of_large_files(spec, observer)
    singles = [Mask.of(layer) for layer in range(info.n_layers)]
    masks = [Mask(), *singles]
    n_passes = whole_passes(spec.objectives, masks, info.n_layers)
    with closing(open_session(spec, info, observer.progress, n_passes=n_passes)) as session:
        warn_of_unknown(session.calibrations, observer)
        evaluations = session.evaluator.evaluate(Round(masks))
        profiles = []
        for place, (one, calibration) in enumerate(zip(spec.calibrations, session.calibrations, strict=True)):
            dense, *losses = (evaluations[mask].parts[place] for mask in masks)
            if dense is None:
                raise EvaluationError(f"the dense model has no finite loss by {one.name}")
            errors = tuple(standard_errors(calibration, session.ledger, singles, Mask()))
            texts = tuple(_described(calibration, session.ledger, masks))
            profiles.append(Profile(one.name, calibration.measure, dense, tuple(losses), errors, texts))
        return Sweep(spec.model.label, tuple(profiles))


def _described(calibration: Calibration, ledger: Ledger, masks: Sequence[Mask]) -> Iterator[Mapping[str, Any]]:
    """Yield what the texts of each mask show, where any are generated."""
    if isinstance(calibration.objective, GenerationAccuracyObjective):
        answers = [answer for shard in calibration.shards for answer in shard.answers or ()]
        code = any(check_of(answer) == "code" for answer in answers)
        for mask in masks:
            yield describe_texts(ledger.texts(calibration.fingerprint, mask), code)
