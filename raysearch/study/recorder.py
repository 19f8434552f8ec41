"""Puts a study on record: its searches, what each adds to the work of all, how they compare on the same samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic, Subject
from raysearch.evaluation.costs import layer_forwards
from raysearch.evaluation.totals import standard_errors
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.table import now
from raysearch.search.record import SEARCHES
from raysearch.search.result import SearchResult
from raysearch.study.draws import draws_of, held_out_losses
from raysearch.study.facts import facts_of
from raysearch.study.model_group import ModelGroup
from raysearch.study.record import STUDIES, AssessedMasks, CellRecord, StudyRecord
from raysearch.study.spec import StudySpec


def record_study(
    study: StudySpec,
    ledger: Ledger,
    search_ids: Sequence[str],
    model_groups: Sequence[ModelGroup],
    parent: str | None,
    assessed: Mapping[str, AssessedMasks],
) -> None:
    """Write down where a study stands.

    `parent` is MLflow's id of it; `assessed`, by the label of a model, is added to what was assessed before.
    """
    records = SEARCHES.some(ledger, search_ids)
    results = {search_id: record.result for search_id, record in records.items() if record.result is not None}
    shared: dict[str, float] = {}
    errors: dict[str, float | None] = {}
    held_out: dict[int, dict[str, float]] = {}
    groups = {number: model_group for model_group in model_groups for number in model_group.numbers}
    for model_group in model_groups:
        for numbers in model_group.groups(study):
            ids = [search_ids[number] for number in numbers]
            found = {search_id: results[search_id] for search_id in ids if search_id in results}
            evaluation = study.cells[numbers[0]].search.evaluation
            calibrations, n_layers = model_group.prepared_for(evaluation).calibrations, model_group.info.n_layers
            references = () if evaluation.weighting is None else evaluation.weighting.references(n_layers)
            costs = shared_layer_forwards(found.values(), calibrations, n_layers, references)
            shared.update(zip(found, costs, strict=True))
            if len(calibrations) == 1:
                errors |= _errors_to_best(found, calibrations[0], ledger)
        by_place = {number: results.get(search_ids[number]) for number in model_group.numbers}
        masks = {number: result.mask for number, result in by_place.items() if result is not None}
        for draws in draws_of(study, model_group):
            held_out |= held_out_losses(draws, masks, ledger)
    cells = tuple(
        CellRecord(
            model=cell.model,
            calibration=cell.calibration,
            searcher=cell.searcher,
            remove=cell.search.sizes[-1],
            seed=cell.search.seed,
            search_id=search_id,
            layer_forwards_shared=shared.get(search_id, 0.0),
            error_to_best=errors.get(search_id),
            draw=cell.draw,
            uses_objective=cell.search.searcher.uses_objective,
            stochastic=cell.search.searcher.stochastic,
            held_out=fmean(held_out[number].values()) if number in held_out else None,
            held_out_by_draw=held_out.get(number, {}),
            n_free=len(cell.search.problem(groups[number].info).free),
        )
        for number, (cell, search_id) in enumerate(zip(study.cells, search_ids, strict=True))
    )
    facts = facts_of(study, model_groups)

    def changed(before: StudyRecord | None) -> StudyRecord:
        known = before or StudyRecord(study.study_id, study.config, cells, facts, {}, "")
        is_recorded = study.config["tracking"]["type"] != "none"
        before_id = known.mlflow_run_id if is_recorded else None  # MLflow may be down today
        whole = known.with_assessed(assessed)
        return StudyRecord(study.study_id, study.config, cells, facts, whole, now(), parent or before_id)

    STUDIES.change(ledger, study.study_id, changed)


def shared_layer_forwards(
    results: Iterable[SearchResult],
    calibrations: Sequence[Calibration],
    n_layers: int,
    references: Iterable[Mask] = (),
) -> list[float]:
    """Return what each search computes after all before it, round by round: what they have asked for is known.

    Run one after another in this order, searches compute just this. Run at the same time they compute the same masks,
    but may find others to share prefixes with.

    Args:
        results: What the searches found, with their trials, of one calibration.
        calibrations: What their masks were evaluated on.
        n_layers: N, the layers of the dense model.
        references: Masks by which a weighted loss is scaled.

    Returns:
        For each search, layer-forwards in passes over all samples. The first one's are all that it asks for. Where
        masks were screened, shards count as equally long.
    """
    known: dict[Subject, float] = {}  # the share of the shards
    added = []
    for result in results:
        cost = 0.0
        for asked in _requests(result, references):
            ends = sorted({*asked.values()})
            for begin, end in pairwise([0.0, *ends]):
                subjects = {one for one, share in asked.items() if share >= end and known.get(one, 0.0) < end}
                cost += (end - begin) * layer_forwards(calibrations, subjects, n_layers)
            known |= {one: max(share, known.get(one, 0.0)) for one, share in asked.items()}
        added.append(cost)
    return added


def _requests(result: SearchResult, references: Iterable[Mask]) -> Iterator[dict[Subject, float]]:
    """Yield what a search asked for together, and on what share of the shards.

    The dense model and the references are part of its first round.
    """
    for name in result.statistics:
        yield {Statistic(name): 1.0}
    rounds: dict[int, dict[Subject, float]] = {1: dict.fromkeys(references, 1.0)}
    for trial in result.trials:
        share = 1.0 if trial.screened is None else trial.screened.share
        rounds.setdefault(max(1, trial.round), {})[trial.mask] = share
    yield from (rounds[number] for number in sorted(rounds))


def _errors_to_best(
    results: Mapping[str, SearchResult], calibration: Calibration, ledger: Ledger
) -> dict[str, float | None]:
    """Return the standard error of each loss over the lowest of the same size, on the same samples, by search."""
    errors: dict[str, float | None] = {}
    for size in {len(result.removed) for result in results.values()}:
        peers = {search_id: result for search_id, result in results.items() if len(result.removed) == size}
        best = min(peers.values(), key=lambda result: result.loss).mask
        found = standard_errors(calibration, ledger, [result.mask for result in peers.values()], best)
        errors.update(zip(peers, found, strict=True))
    return errors
