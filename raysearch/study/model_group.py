"""A model of a study, with all that its searches evaluate it on, read once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raysearch.cluster.options import ClusterOptions
from raysearch.errors import UserError
from raysearch.evaluation.session import PreparedData, joint_fingerprint, prepare_data
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec
from raysearch.models.loading import describe
from raysearch.models.spec import ModelInfo, ModelSpec
from raysearch.study.spec import Cell, StudySpec


@dataclass(frozen=True)
class ModelGroup:
    """A model, and the calibrations of its searches.

    Args:
        model: What to load.
        cluster: Who computes.
        info: The model's shape.
        specs: The calibrations of all its searches, each once.
        prepared: Their samples, in the same order.
        numbers: Its searches, by their places in the study.
    """

    model: ModelSpec
    cluster: ClusterOptions
    info: ModelInfo
    specs: Sequence[CalibrationSpec]
    prepared: PreparedData
    numbers: Sequence[int]

    def label(self, study: StudySpec) -> str:
        """The study's label of the model."""
        return study.cells[self.numbers[0]].model

    def prepared_for(self, evaluation: EvaluationSpec) -> PreparedData:
        """The samples of one search."""
        wanted = [self.specs.index(spec) for spec in evaluation.calibrations]
        return replace(self.prepared, calibrations=[self.prepared.calibrations[index] for index in wanted])

    def fingerprint_of(self, evaluation: EvaluationSpec) -> str:
        """The fingerprint of a search's calibration."""
        return joint_fingerprint(self.prepared_for(evaluation).calibrations, evaluation.weighting)

    def groups(self, study: StudySpec) -> list[list[int]]:
        """Its searches by calibration, in the study's order."""
        groups: dict[str, list[int]] = {}
        for number in self.numbers:
            groups.setdefault(self.fingerprint_of(study.cells[number].search.evaluation), []).append(number)
        return list(groups.values())


def prepare(study: StudySpec) -> list[ModelGroup]:
    """Reads the data of each model's searches once, and refuses what does not fit before anything runs.

    Raises:
        UserError: A search does not fit its model, its data or the machine.
    """
    groups: dict[tuple[ModelSpec, ClusterOptions], list[int]] = {}
    for number, cell in enumerate(study.cells):
        evaluation = cell.search.evaluation
        cluster = evaluation.cluster
        assert isinstance(cluster, ClusterOptions), "a study's replicas are those of a cluster"
        if cluster.backend != "ray":
            raise UserError(f"cluster.backend={cluster.backend} runs no study; use cluster=local")
        if (cluster.address or "").startswith("ray://"):
            raise UserError(
                f"cluster.address={cluster.address} runs no study, whose searches stay with their ledger; run it on a "
                "node of the cluster with cluster.address=auto, for instance by ray job submit"
            )
        groups.setdefault((evaluation.model, cluster), []).append(number)
    model_groups = []
    for (model, cluster), numbers in groups.items():
        info = describe(model)
        cluster.check_model(info.model)
        specs: list[CalibrationSpec] = []
        for number in numbers:
            search = study.cells[number].search
            search.problem(info)
            specs += [one for one in search.evaluation.calibrations if one not in specs]
        evaluation = replace(study.cells[numbers[0]].search.evaluation, calibrations=specs, weighting=None)
        model_groups.append(ModelGroup(model, cluster, info, specs, prepare_data(evaluation, info), numbers))
    return model_groups


def name_searches(study: StudySpec, model_groups: Sequence[ModelGroup]) -> list[str]:
    """The id of each search, in the study's order.

    Raises:
        UserError: Two searches of the study are one and the same.
    """
    groups = {number: model_group for model_group in model_groups for number in model_group.numbers}
    named: dict[str, Cell] = {}
    for number, cell in enumerate(study.cells):
        fingerprint = groups[number].fingerprint_of(cell.search.evaluation)
        other = named.setdefault(cell.search.search_id(fingerprint), cell)
        if other is not cell:
            raise UserError(f"study.grid has one search twice, as [{other}] and as [{cell}]; drop one")
    return list(named)
