"""A model of a study and the calibrations of its searches; the data are read once for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from raysearch.cluster.options import ClusterOptions
from raysearch.errors import UserError
from raysearch.evaluation.prepared_data import PreparedData, joint_fingerprint, prepare_data
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec
from raysearch.models.spec import ModelInfo, ModelSpec
from raysearch.searching.notices import announce_large_files, describe_model
from raysearch.searching.observer import Observer
from raysearch.studies.spec import Cell, StudySpec


@dataclass(frozen=True)
class ModelGroup:
    """A model, and the calibrations of its searches.

    Args:
        model: The specification of the model.
        cluster: Where its replicas run.
        info: Its description.
        specs: The distinct calibrations of its searches.
        prepared: The samples of each calibration, in the same order.
        cells: Its searches, by their places in the study.
    """

    model: ModelSpec
    cluster: ClusterOptions
    info: ModelInfo
    specs: Sequence[CalibrationSpec]
    prepared: PreparedData
    cells: Mapping[int, Cell]

    @property
    def label(self) -> str:
        """The study's label of the model."""
        return self._first_cell.model

    @property
    def evaluation(self) -> EvaluationSpec:
        """The calibrations of all its searches, on the model."""
        return replace(self._first_cell.search.evaluation, calibrations=self.specs, weighting=None)

    @property
    def _first_cell(self) -> Cell:
        return next(iter(self.cells.values()))

    def prepared_for(self, cell: Cell) -> PreparedData:
        """Return the samples of one search."""
        indices = [self.specs.index(spec) for spec in cell.search.evaluation.calibrations]
        return replace(self.prepared, calibrations=[self.prepared.calibrations[index] for index in indices])

    def fingerprint_of(self, cell: Cell) -> str:
        """Return the fingerprint of a search's calibration."""
        fingerprints = [calibration.fingerprint for calibration in self.prepared_for(cell).calibrations]
        return joint_fingerprint(fingerprints, cell.search.evaluation.weighting)

    @property
    def cells_by_calibration(self) -> list[list[int]]:
        """The numbers of the searches on each calibration, in the study's order."""
        numbers: dict[str, list[int]] = {}
        for number, cell in self.cells.items():
            numbers.setdefault(self.fingerprint_of(cell), []).append(number)
        return list(numbers.values())


def prepare(study: StudySpec, observer: Observer) -> list[ModelGroup]:
    """Read the data of each model's searches once, and check that all searches can run.

    Args:
        study: The study.
        observer: It is notified of models and large files.

    Returns:
        The group of each model, with its data.

    Raises:
        UserError: A search does not fit its model, its data or the machine, or its cluster cannot run a study.
    """
    cells_by_model: dict[tuple[ModelSpec, ClusterOptions], dict[int, Cell]] = {}
    for number, cell in enumerate(study.cells):
        evaluation = cell.search.evaluation
        cluster = evaluation.cluster
        assert isinstance(cluster, ClusterOptions), "a study's replicas are those of a cluster"
        if cluster.backend != "ray":
            raise UserError(f"cluster.backend={cluster.backend} cannot run a study; use cluster=local")
        if (cluster.address or "").startswith("ray://"):
            raise UserError(
                f"cluster.address={cluster.address} cannot run a study, since its searches run on the machine of the "
                "ledger; run it on a node of the cluster with cluster.address=auto, for instance by ray job submit"
            )
        cells_by_model.setdefault((evaluation.model, cluster), {})[number] = cell
    model_groups = []
    for (model, cluster), cells in cells_by_model.items():
        info = describe_model(model, observer)
        cluster.check_model(info.model)
        specs: list[CalibrationSpec] = []
        for cell in cells.values():
            cell.search.problem(info)
            specs += [spec for spec in cell.search.evaluation.calibrations if spec not in specs]
        first_cell = next(iter(cells.values()))
        evaluation = replace(first_cell.search.evaluation, calibrations=specs, weighting=None)
        announce_large_files(evaluation, observer)
        model_groups.append(ModelGroup(model, cluster, info, specs, prepare_data(evaluation, info), cells))
    return model_groups


def name_searches(study: StudySpec, model_groups: Sequence[ModelGroup]) -> list[str]:
    """Return the id of each search, in the study's order.

    Args:
        study: The study.
        model_groups: Its models, with their data.

    Returns:
        The ids, which are distinct.

    Raises:
        UserError: Two searches are the same.
    """
    group_of_cell = {number: model_group for model_group in model_groups for number in model_group.cells}
    cells_by_id: dict[str, Cell] = {}
    for number, cell in enumerate(study.cells):
        search_id = cell.search.search_id(group_of_cell[number].fingerprint_of(cell))
        if search_id in cells_by_id:
            raise UserError(f"study.grid has one search twice, as [{cells_by_id[search_id]}] and as [{cell}]; drop one")
        cells_by_id[search_id] = cell
    return list(cells_by_id)
