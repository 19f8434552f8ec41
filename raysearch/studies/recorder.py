"""Puts a study on record: its searches, what each adds to the work of all, how they compare, what to trust it by."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from raysearch.calibration.calibration import Calibration
from raysearch.core.formatting import count
from raysearch.core.machine import n_cores
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic, Subject
from raysearch.core.versions import version_of
from raysearch.errors import redact
from raysearch.evaluation.costs import layer_forwards
from raysearch.evaluation.totals import standard_errors
from raysearch.ledger.ledger import Ledger
from raysearch.ledger.table import now
from raysearch.models.devices import processor
from raysearch.searching.record import SEARCHES
from raysearch.searching.result import SearchResult
from raysearch.studies.draws import draws_of, held_out_losses
from raysearch.studies.model_group import ModelGroup
from raysearch.studies.record import STUDIES, AssessedMasks, CellRecord, StudyRecord
from raysearch.studies.spec import StudySpec

_PACKAGES = ("raysearch", "torch", "transformers", "ray", "mlflow", "lm-eval")


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
    every = {number: records[name].result for number, name in enumerate(search_ids) if name in records}
    results = {number: result for number, result in every.items() if result is not None}
    shared: dict[int, float] = {}
    errors: dict[int, float | None] = {}
    held_out: dict[int, dict[str, float]] = {}
    groups = {number: model_group for model_group in model_groups for number in model_group.cells}
    for model_group in model_groups:
        n_layers = model_group.info.n_layers
        for numbers in model_group.groups:
            found = {number: results[number] for number in numbers if number in results}
            first = study.cells[numbers[0]]
            calibrations, weighting = model_group.prepared_for(first).calibrations, first.search.evaluation.weighting
            references = () if weighting is None else weighting.references(n_layers)
            costs = shared_layer_forwards(found.values(), calibrations, n_layers, references)
            shared.update(zip(found, costs, strict=True))
            if len(calibrations) == 1:
                errors |= _errors_to_best(found, calibrations[0], ledger)
        masks = {number: results[number].mask for number in model_group.cells if number in results}
        for draws in draws_of(model_group):
            held_out |= held_out_losses(draws, masks, ledger)
    cells = tuple(
        CellRecord(
            model=cell.model,
            calibration=cell.calibration,
            searcher=cell.searcher,
            remove=cell.search.sizes[-1],
            seed=cell.search.seed,
            search_id=search_id,
            layer_forwards_shared=shared.get(number),
            error_to_best=errors.get(number),
            draw=cell.draw,
            uses_objective=cell.search.searcher.uses_objective,
            stochastic=cell.search.searcher.stochastic,
            held_out=fmean(held_out[number].values()) if number in held_out else None,
            held_out_by_draw=held_out.get(number, {}),
            n_free=len(cell.search.problem(groups[number].info).free),
        )
        for number, (cell, search_id) in enumerate(zip(study.cells, search_ids, strict=True))
    )
    facts = _facts(study, model_groups)

    def changed(before: StudyRecord | None) -> StudyRecord:
        known = before or StudyRecord(study.study_id, study.config, cells, facts, {}, "")
        is_recorded = study.config["tracking"]["type"] != "none"
        run_id = parent or (known.mlflow_run_id if is_recorded else None)  # MLflow may be down today
        whole = known.with_assessed(assessed)
        return StudyRecord(study.study_id, study.config, cells, facts, whole, now(), run_id)

    STUDIES.change(ledger, study.study_id, changed)


def shared_layer_forwards(
    results: Iterable[SearchResult],
    calibrations: Sequence[Calibration],
    n_layers: int,
    references: Iterable[Mask] = (),
) -> list[float]:
    """Return the layer-forwards that each search of a calibration adds to those before it, in passes over all samples.

    Run one after another in this order, searches compute just this. Run at the same time they compute the same masks,
    but may find others to share prefixes with. The references are the masks by which a weighted loss is scaled. Where
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
    """Yield what a search asked for together, and on what share of the shards; the references ride in round 1."""
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
    """Return the standard error of each loss over the lowest of the same size, on the same samples, by search."""
    errors: dict[int, float | None] = {}
    for size in {len(result.removed) for result in results.values()}:
        peers = {number: result for number, result in results.items() if len(result.removed) == size}
        best = min(peers.values(), key=lambda result: result.loss).mask
        found = standard_errors(calibration, ledger, [result.mask for result in peers.values()], best)
        errors.update(zip(peers, found, strict=True))
    return errors


def _facts(study: StudySpec, model_groups: Sequence[ModelGroup]) -> dict[str, str]:
    """Return what a reader needs to trust a study, by subject, in the order to tell it."""
    facts = {"command": shlex.join(["raysearch", "study", *study.words])}
    for model_group in model_groups:
        info, label = model_group.info, model_group.label
        size = f"{count(info.n_layers, 'layer')}, {info.parameters / 1e6:,.1f} M parameters"
        facts[f"model {label}"] = f"{model_group.model.path}, {size}, {info.dtype}"
        of_model = f" of {label}" if len(model_groups) > 1 else ""
        parts: dict[str, dict[str, None]] = {}  # of each calibration; several draws, or a weighted one's
        for cell in model_group.cells.values():
            drawn_of = model_group.prepared_for(cell).calibrations
            for one, drawn in zip(cell.search.evaluation.calibrations, drawn_of, strict=True):
                fact = (
                    f"{one.name}: {count(drawn.n_samples, 'sample')}, {drawn.n_tokens:,} scored tokens, "
                    f"{_in_words(drawn.description)}"
                )
                parts.setdefault(f"calibration {cell.calibration}{of_model}", {})[fact] = None
        facts |= {subject: "; ".join(of) for subject, of in parts.items()}
    versions = [f"{name} {version_of(name)}" for name in _PACKAGES]
    facts["versions"] = ", ".join([*versions, f"Python {platform.python_version()}"])
    facts["machine"] = _machine(model_groups)
    return {subject: redact(fact) for subject, fact in facts.items()}


def _in_words(description: Mapping[str, Any]) -> str:
    left_out = ("shards", "n_tokens", "samples")
    return ", ".join(f"{key} {value}" for key, value in description.items() if key not in left_out)


def _machine(model_groups: Sequence[ModelGroup]) -> str:
    """The processor, and the GPUs where they are used."""
    parts = [f"{n_cores()} cores of {processor()}"]
    if any(model_group.info.model.on_gpu for model_group in model_groups):
        import torch

        gpus = torch.cuda.device_count()  # else they are elsewhere
        parts.append(f"{gpus} x {torch.cuda.get_device_name()}" if gpus else "GPUs of a cluster")
    return ", ".join(parts)
