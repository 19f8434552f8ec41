"""The expected cost of a study, and its id."""

from __future__ import annotations

from raysearch.cli.study_tables import assessment_lines
from raysearch.configuration import build
from raysearch.studies.plan import plan_study
from tests.cli.answers import json_answer
from tests.cli.conftest import Run, World
from tests.cli.studies import study_overrides


def test_the_plan_predicts_the_evaluations_of_searches(world: World, run: Run) -> None:
    plan = plan_study(build.study_spec(study_overrides(world)))
    evaluations = {
        (cell_plan.cell.search.searcher_name, cell_plan.cell.search.remove): cell_plan.evaluations
        for cell_plan in plan.cells
    }
    for searcher, remove in (("one_shot", 1), ("one_shot", 2), ("greedy", 1), ("greedy", 2)):
        result = json_answer(run("search", *world.search(searcher=searcher, remove=remove), "--json"))
        assert evaluations[searcher, remove] == result["evaluations"]["requested"], (searcher, remove)


def test_the_plan_shows_the_assessment_after_the_searches(world: World) -> None:
    spec = build.study_spec([*study_overrides(world), "assess=offline", "assess.tasks=[piqa]"])
    (line,) = assessment_lines(plan_study(spec))
    assert line.startswith(
        f"Then at most {len(spec.cells) + 1} masks, including dense models, are assessed by sotu, piqa"
    )
    assert assessment_lines(plan_study(build.study_spec(study_overrides(world)))) == []


def test_a_study_is_the_same_wherever_it_runs_and_is_recorded(world: World) -> None:
    local = study_overrides(world)
    elsewhere = study_overrides(world, tracking="mlflow", cluster="elastic", store="elsewhere")
    assert build.study_spec(local).study_id == build.study_spec(elsewhere).study_id
