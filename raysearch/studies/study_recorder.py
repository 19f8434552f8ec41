"""Records a study: its searches, the work that each adds, how their losses compare, and how the study was run."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from raysearch.calibration.calibration import Calibration
from raysearch.core.machine import n_cores
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic, Subject
from raysearch.core.versions import version_of
from raysearch.evaluation.costs import layer_forwards
from raysearch.evaluation.totals import standard_errors
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.table import now
from raysearch.models.devices import processor
from raysearch.searching.result import SearchResult
from raysearch.searching.search_record import SEARCHES
from raysearch.searching.settings import PlaceSettings
from raysearch.studies.draws import draws_of, held_out_losses
from raysearch.studies.model_group import ModelGroup
from raysearch.studies.spec import StudySpec
from raysearch.studies.study_record import STUDIES, AssessedMasks, CellRecord, StudyRecord
from raysearch.text.numbers import count
from raysearch.text.redaction import redact

_PACKAGES = ("raysearch", "torch", "transformers", "ray", "mlflow", "lm-eval")


def record_study(
    study: StudySpec,
    ledger: Ledger,
    search_ids: Sequence[str],
    model_groups: Sequence[ModelGroup],
    parent: str | None,
    assessed: Mapping[str, AssessedMasks],
) -> None:
    """Record the current state of a study.

    Args:
        study: The study.
        ledger: The ledger that records it.
        search_ids: The ids of its searches, in its order.
        model_groups: Its models, with their data.
        parent: The id of its MLflow run; None if there is none.
        assessed: New assessed numbers, by the label of a model; they are added to the earlier ones.
    """
    records = SEARCHES.by_ids(ledger, search_ids)
    results: dict[int, SearchResult] = {}
    for number, search_id in enumerate(search_ids):
        record = records.get(search_id)
        if record is not None and record.result is not None:
            results[number] = record.result
    shared: dict[int, float] = {}
    errors: dict[int, float | None] = {}
    held_out: dict[int, dict[str, float]] = {}
    group_of_cell = {number: model_group for model_group in model_groups for number in model_group.cells}
    for model_group in model_groups:
        sites = model_group.info.sites
        for numbers in model_group.cells_by_calibration:
            group_results = {number: results[number] for number in numbers if number in results}
            first = study.cells[numbers[0]]
            calibrations = model_group.prepared_for(first).calibrations
            weighting = first.search.evaluation.weighting
            references = () if weighting is None else weighting.references(sites)
            costs = shared_layer_forwards(group_results.values(), calibrations, sites, references)
            shared.update(zip(group_results, costs, strict=True))
            if len(calibrations) == 1:
                errors |= _errors_to_best(group_results, calibrations[0], ledger)
        masks = {number: results[number].mask for number in model_group.cells if number in results}
        for draws in draws_of(model_group):
            held_out |= held_out_losses(draws, masks, ledger)
    problems = [cell.search.problem(group_of_cell[number].info) for number, cell in enumerate(study.cells)]
    cells = tuple(
        CellRecord(
            model=cell.model,
            calibration=cell.calibration,
            searcher=cell.searcher,
            remove=problem.n_remove,
            seed=cell.search.seed,
            search_id=search_id,
            layer_forwards_shared=shared.get(number),
            error_to_best=errors.get(number),
            draw=cell.draw,
            uses_objective=cell.search.searcher.uses_objective,
            stochastic=cell.search.searcher.stochastic,
            held_out=fmean(held_out[number].values()) if number in held_out else None,
            held_out_by_draw=held_out.get(number, {}),
            n_free=len(problem.free) * problem.group,
            group=problem.group,
        )
        for number, (cell, search_id, problem) in enumerate(zip(study.cells, search_ids, problems, strict=True))
    )
    facts = _facts(study, model_groups)

    def change(before: StudyRecord | None) -> StudyRecord:
        previous = before or StudyRecord(study.study_id, study.config, cells, facts, {}, "")
        is_tracked = PlaceSettings(study.config).tracker != "none"
        run_id = parent or (previous.mlflow_run_id if is_tracked else None)  # keep the id while MLflow is down
        all_assessed = previous.with_assessed(assessed)
        return StudyRecord(study.study_id, study.config, cells, facts, all_assessed, now(), run_id)

    STUDIES.change(ledger, study.study_id, change)


def shared_layer_forwards(
    results: Iterable[SearchResult],
    calibrations: Sequence[Calibration],
    sites: Sites,
    references: Iterable[Mask] = (),
) -> list[float]:
    """Return the layer-forwards that each search of a calibration adds to those before it, in passes over all samples.

    Searches that run one after another in this order compute exactly these layer-forwards. Searches that run at the
    same time compute the same masks, but may share other prefixes.

    Args:
        results: The results of the searches, in their order.
        calibrations: The calibrations of the searches; several if the loss is weighted.
        sites: The sites of the dense model.
        references: The masks whose losses scale a weighted loss.

    Returns:
        The layer-forwards of each search. If masks were screened, all shards are taken as equally long.
    """
    computed: dict[Subject, float] = {}  # the share of the shards on which each subject was computed
    added = []
    for result in results:
        cost = 0.0
        for requested in _requests(result, references):
            ends = sorted({*requested.values()})
            for begin, end in pairwise([0.0, *ends]):
                subjects = {
                    subject for subject, share in requested.items() if share >= end and computed.get(subject, 0.0) < end
                }
                cost += (end - begin) * layer_forwards(calibrations, subjects, sites)
            for subject, share in requested.items():
                computed[subject] = max(share, computed.get(subject, 0.0))
        added.append(cost)
    return added


def _requests(result: SearchResult, references: Iterable[Mask]) -> Iterator[dict[Subject, float]]:
    """Yield the subjects of each request of a search, with the share of the shards; round 1 has the references too."""
    for name in result.statistics:
        yield {Statistic(name): 1.0}
    rounds: dict[int, dict[Subject, float]] = {1: dict.fromkeys(references, 1.0)}
    for trial in result.trials:
        share = 1.0 if trial.screened is None else trial.screened.share
        rounds.setdefault(max(1, trial.round), {})[trial.mask] = share
    yield from (rounds[number] for number in sorted(rounds))


def _errors_to_best(
    results: Mapping[int, SearchResult], calibration: Calibration, ledger: Ledger
) -> dict[int, float | None]:
    """Return, by search, the standard error of the difference between its loss and the lowest loss of the same size.

    Both losses are on the same samples.
    """
    errors: dict[int, float | None] = {}
    for size in {result.n_removed for result in results.values()}:
        peers = {number: result for number, result in results.items() if result.n_removed == size}
        best = min(peers.values(), key=lambda result: result.loss).mask
        size_errors = standard_errors(calibration, ledger, [result.mask for result in peers.values()], best)
        errors.update(zip(peers, size_errors, strict=True))
    return errors


def _facts(study: StudySpec, model_groups: Sequence[ModelGroup]) -> dict[str, str]:
    """Return how and where a study was run, by subject, in the order in which it is shown."""
    facts = {"command": shlex.join(["raysearch", "study", *study.overrides])}
    for model_group in model_groups:
        info = model_group.info
        label = model_group.label
        size = f"{count(info.sites.n_layers, 'layer')}, {info.parameters / 1e6:,.1f} M parameters"
        facts[f"model {label}"] = f"{model_group.model.path}, {size}, {info.dtype}"
        suffix = f" of {label}" if len(model_groups) > 1 else ""
        facts_by_subject: dict[str, dict[str, None]] = {}  # several facts for several draws, or a weighted calibration
        for cell in model_group.cells.values():
            calibrations = model_group.prepared_for(cell).calibrations
            for spec, calibration in zip(cell.search.evaluation.calibrations, calibrations, strict=True):
                fact = (
                    f"{spec.name}: {count(calibration.n_samples, 'sample')}, {calibration.n_tokens:,} scored tokens, "
                    f"{_as_text(calibration.description)}"
                )
                facts_by_subject.setdefault(f"calibration {cell.calibration}{suffix}", {})[fact] = None
        facts |= {subject: "; ".join(subject_facts) for subject, subject_facts in facts_by_subject.items()}
    versions = [f"{name} {version_of(name)}" for name in _PACKAGES]
    facts["versions"] = ", ".join([*versions, f"Python {platform.python_version()}"])
    facts["machine"] = _machine(model_groups)
    return {subject: redact(fact) for subject, fact in facts.items()}


def _as_text(description: Mapping[str, Any]) -> str:
    left_out = ("shards", "n_tokens", "samples")
    return ", ".join(f"{key} {value}" for key, value in description.items() if key not in left_out)


def _machine(model_groups: Sequence[ModelGroup]) -> str:
    """Return the name of the processor, and of the GPUs if they are used."""
    parts = [f"{n_cores()} cores of {processor()}"]
    if any(model_group.info.model.on_gpu for model_group in model_groups):
        import torch

        gpus = torch.cuda.device_count()  # 0 if the GPUs are in other machines of the cluster
        parts.append(f"{gpus} x {torch.cuda.get_device_name()}" if gpus else "GPUs of a cluster")
    return ", ".join(parts)
