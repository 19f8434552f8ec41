"""A model of a study, with all that its searches judge it on, read once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raysearch.errors import UserError
from raysearch.evaluation.cluster import ClusterOptions
from raysearch.evaluation.judge import Reading, joint_fingerprint, read_data
from raysearch.evaluation.spec import CalibrationSpec, JudgeSpec
from raysearch.models.loading import ModelInfo, ModelSpec, describe
from raysearch.studies.search import problem_of
from raysearch.studies.spec import StudySpec


@dataclass(frozen=True)
class Bench:
    """A model, and what it is judged on.

    Args:
        model: What to load.
        cluster: Who computes.
        info: The model's shape.
        specs: The calibrations of all its searches, each once.
        reading: Their samples, in the same order.
        numbers: Its searches, by their places in the study.
    """

    model: ModelSpec
    cluster: ClusterOptions
    info: ModelInfo
    specs: Sequence[CalibrationSpec]
    reading: Reading
    numbers: Sequence[int]

    def label(self, study: StudySpec) -> str:
        """What the study calls the model."""
        return study.cells[self.numbers[0]].model

    def reading_of(self, judge: JudgeSpec) -> Reading:
        """The samples of one search."""
        wanted = [self.specs.index(spec) for spec in judge.calibrations]
        return replace(self.reading, calibrations=[self.reading.calibrations[index] for index in wanted])

    def fingerprint_of(self, judge: JudgeSpec) -> str:
        """What one search is judged on."""
        return joint_fingerprint(self.reading_of(judge).calibrations, judge.weighting)

    def groups(self, study: StudySpec) -> list[list[int]]:
        """Its searches by what they are judged on, in the study's order."""
        groups: dict[str, list[int]] = {}
        for number in self.numbers:
            groups.setdefault(self.fingerprint_of(study.cells[number].search.judge), []).append(number)
        return list(groups.values())


def prepare(study: StudySpec) -> list[Bench]:
    """Reads the data of each model's searches once, and refuses what does not fit before anything runs.

    Raises:
        UserError: A search does not fit its model, its data or the machine.
    """
    groups: dict[tuple[ModelSpec, ClusterOptions], list[int]] = {}
    for number, cell in enumerate(study.cells):
        judge = cell.search.judge
        if judge.cluster.backend != "ray":
            raise UserError(f"cluster.backend={judge.cluster.backend} runs no study; use cluster=local")
        if (judge.cluster.address or "").startswith("ray://"):
            raise UserError(
                f"cluster.address={judge.cluster.address} runs no study, whose searches stay with their ledger; run it "
                "on a node of the cluster with cluster.address=auto, for instance by ray job submit"
            )
        groups.setdefault((judge.model, judge.cluster), []).append(number)
    benches = []
    for (model, cluster), numbers in groups.items():
        info = describe(model)
        cluster.check(model)
        specs: list[CalibrationSpec] = []
        for number in numbers:
            search = study.cells[number].search
            problem_of(search, info)
            specs += [one for one in search.judge.calibrations if one not in specs]
        judge = replace(study.cells[numbers[0]].search.judge, calibrations=specs, weighting=None)
        benches.append(Bench(model, cluster, info, specs, read_data(judge, info), numbers))
    return benches


def name_runs(study: StudySpec, benches: Sequence[Bench]) -> list[str]:
    """The run id of each search, in the study's order.

    Raises:
        UserError: Two searches of the study are one and the same.
    """
    named: dict[int, str] = {}
    for bench in benches:
        for number in bench.numbers:
            search = study.cells[number].search
            named[number] = search.run_id(bench.fingerprint_of(search.judge))
    first: dict[str, int] = {}
    for number in sorted(named):
        other = first.setdefault(named[number], number)
        if other != number:
            raise UserError(
                f"study.grid has one search twice, as [{study.cells[other]}] and as [{study.cells[number]}]; drop one"
            )
    return [named[number] for number in sorted(named)]
