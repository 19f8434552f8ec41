"""Checks of a study's searches, recoveries and assessment, before any search runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from raysearch.core.paths import as_folder
from raysearch.ledger.ledger import opened
from raysearch.recovery.prompts import check_rows
from raysearch.studies.model_group import ModelGroup, name_searches
from raysearch.studies.spec import StudySpec

if TYPE_CHECKING:  # it imports torch, which is not needed if the ledger has all results
    from raysearch.assessment.context import AssessmentPlan


@dataclass(frozen=True)
class CheckedStudy:
    """The ids and the assessments of a study that passed the checks.

    Args:
        search_ids: The id of each search, in the study's order.
        assessments: The assessment of each model; empty if the study has no assessment.
    """

    search_ids: Sequence[str]
    assessments: Sequence[AssessmentPlan]


def check_study(study: StudySpec, model_groups: Sequence[ModelGroup], store: Path) -> CheckedStudy:
    """Check a study, name its searches and read the data of its assessment.

    Args:
        study: The study.
        model_groups: Its models, with their data.
        store: The folder to which the task files of an assessment are written.

    Returns:
        The ids of the searches, and the plans of the assessments.

    Raises:
        UserError: The study's store cannot be a folder, two searches are the same, or rows of a recovery or an
            assessment are missing or do not fit a model.
    """
    as_folder("store", study.store)
    search_ids = name_searches(study, model_groups)
    for model_group, recovery in product(model_groups, study.recoveries.values()):
        check_rows(recovery.data, recovery.options, model_group.info.max_positions)
    return CheckedStudy(search_ids, _plan_assessments(study, model_groups, store))


def _plan_assessments(study: StudySpec, model_groups: Sequence[ModelGroup], store: Path) -> list[AssessmentPlan]:
    if study.assess is None:
        return []
    from raysearch.assessment.assess import check_tasks, plan_assessment

    ledger_file = store / study.ledger.name
    plans = [
        plan_assessment(study.assess, group.model, group.cluster, ledger_file, group.prepared.files, group.evaluation)
        for group in model_groups
    ]
    with opened(study.ledger) if study.ledger.exists() else nullcontext() as ledger:
        for plan in plans:
            check_tasks(plan, ledger)
    return plans
