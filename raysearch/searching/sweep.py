"""Evaluates the model without each single layer, pair or half, on several calibrations.

The masks are the first round of most searchers, so a search with the same ledger computes none of them again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import computed_field

from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.generation_accuracy import GenerationAccuracyObjective
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.space import LAYERS, Space
from raysearch.errors import EvaluationError
from raysearch.evaluation.costs import whole_passes
from raysearch.evaluation.session import open_session
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.evaluation.totals import standard_errors
from raysearch.generation.checks import check_of
from raysearch.generation.diagnostics import describe_texts
from raysearch.ledger.ledger import Ledger
from raysearch.searchers.base import Round
from raysearch.searching.notices import announce_large_files, describe_model, warn_of_unknown_tokens
from raysearch.searching.observer import Observer
from raysearch.stats.rank import rank_correlation


@dataclass(frozen=True)
class Profile:
    """The losses without each site, such as a layer, on one calibration.

    Args:
        calibration: The name of the calibration: ``perplexity on c4``.
        measure: The unit of the losses.
        dense_loss: The loss of the dense model.
        losses: The loss without each site, [N]; None for a failure.
        standard_errors: The standard error, from the choice of samples, of each loss minus the dense loss, [N]; None if
            there is none.
        texts: Diagnostics of the generated texts, of the dense model and then without each site, [N + 1]
            (`raysearch.generation.diagnostics.describe_texts`); empty if nothing is generated.
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
        """The indices of the sites, lowest loss without the site first; failures last."""
        return sorted(range(len(self.losses)), key=lambda index: (self.comparable[index], index))

    @property
    def ranks(self) -> list[int]:
        """The rank of each site, from 1; sites with equal losses have equal ranks."""
        ordered = sorted(self.comparable)
        return [1 + ordered.index(loss) for loss in self.comparable]

    @property
    def comparable(self) -> list[float]:
        """The losses; infinite for a failure."""
        return [math.inf if loss is None else loss for loss in self.losses]


@dataclass(frozen=True)
class Agreement:
    """The agreement of two calibrations on the sites.

    Args:
        one: The name of the first calibration.
        other: The name of the second calibration.
        spearman: The rank correlation of the losses over all sites, -1 … 1; None if it is undefined (see
            `raysearch.stats.rank.rank_correlation`).
        shared: How many sites are among the first `n_remove` of both rankings.
        n_remove: How many sites of each ranking are compared.
    """

    one: str
    other: str
    spearman: float | None
    shared: int
    n_remove: int


@dataclass(frozen=True)
class Sweep:
    """The losses without each site, on every calibration.

    Args:
        model: The model as the user named it.
        calibrations: The losses on each calibration.
        labels: The name of each site: ``17``, or ``16m,17a``.
        space: The space of the sites.
        files: The figure and the tables, if they were written.
    """

    model: str
    calibrations: tuple[Profile, ...]
    labels: tuple[str, ...]
    space: Space = LAYERS
    files: tuple[Path, ...] = ()

    def agreements(self, n_remove: int) -> list[Agreement]:
        """Return the agreement of each pair of calibrations on the first `n_remove` sites."""
        return [
            Agreement(
                first.calibration,
                second.calibration,
                rank_correlation(first.comparable, second.comparable),
                len({*first.ranking[:n_remove]} & {*second.ranking[:n_remove]}),
                n_remove,
            )
            for first, second in itertools.combinations(self.calibrations, 2)
        ]


def run_sweep(spec: EvaluationSpec, observer: Observer, space: Space = LAYERS) -> Sweep:
    """Evaluate the model without each site of a space, such as each layer.

    Args:
        spec: The model and the calibrations.
        observer: Gets progress and warnings.
        space: The space.

    Returns:
        The loss of each mask of one site by each calibration, with standard errors.

    Raises:
        UserError: The specification does not fit the model, the data or the machine.
        EvaluationError: The dense model cannot be evaluated, or a unit of work failed for good.
    """
    if space.needs_halves:
        spec = replace(spec, model=replace(spec.model, halves=True))
    info = describe_model(spec.model, observer)
    announce_large_files(spec, observer)
    sites = space.select(info.sites)
    singles = [*map(sites.mask_of, sites.singles)]
    masks = [Mask(), *singles]
    n_passes = whole_passes(spec.objectives, masks, info.sites)
    with closing(open_session(spec, info, observer.progress, n_passes=n_passes)) as session:
        warn_of_unknown_tokens(session.calibrations, observer)
        evaluations = session.evaluator.evaluate(Round(masks))
        profiles = []
        for index, (calibration_spec, calibration) in enumerate(
            zip(spec.calibrations, session.calibrations, strict=True)
        ):
            name = calibration_spec.name
            dense, *losses = (evaluations[mask].parts[index] for mask in masks)
            if dense is None:
                raise EvaluationError(f"the dense model has no finite loss by {name}")
            errors = tuple(standard_errors(calibration, session.ledger, singles, Mask()))
            texts = tuple(_text_diagnostics(calibration, session.ledger, masks))
            profiles.append(Profile(name, calibration.measure, dense, tuple(losses), errors, texts))
        return Sweep(spec.model.label, tuple(profiles), tuple(site.label for site in sites), space)


def _text_diagnostics(calibration: Calibration, ledger: Ledger, masks: Sequence[Mask]) -> Iterator[Mapping[str, Any]]:
    """Yield the diagnostics of the texts of each mask; nothing if no texts are generated."""
    if isinstance(calibration.objective, GenerationAccuracyObjective):
        answers = [answer for shard in calibration.shards for answer in shard.answers or ()]
        code = any(check_of(answer) == "code" for answer in answers)
        for mask in masks:
            yield describe_texts(ledger.texts(calibration.fingerprint, mask), code)
