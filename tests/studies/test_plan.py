"""What a study is expected to cost, and what names it."""

from __future__ import annotations

from raysearch.cli.study_tables import assessment_lines
from raysearch.configuration import build
from raysearch.studies.plan import plan_study
from tests.cli.conftest import Run, World
from tests.cli.found import found
from tests.cli.studies import study_words


def test_the_plan_is_what_searches_ask_for(world: World, run: Run) -> None:
    plan = plan_study(build.study_spec(study_words(world)))
    asked = {(one.cell.search.searcher_name, one.cell.search.remove): one.evaluations for one in plan.cells}
    for searcher, remove in (("one_shot", 1), ("one_shot", 2), ("greedy", 1), ("greedy", 2)):
        alone = found(run("search", *world.search(searcher=searcher, remove=remove), "--json"))
        assert asked[searcher, remove] == alone["evaluations"]["requested"], (searcher, remove)


def test_the_plan_tells_what_is_assessed_after_the_searches(world: World) -> None:
    spec = build.study_spec([*study_words(world), "assess=offline", "assess.tasks=[piqa]"])
    (line,) = assessment_lines(plan_study(spec))
    assert line.startswith(
        f"Then at most {len(spec.cells) + 1} masks, dense models among them, are assessed by sotu, piqa"
    )
    assert assessment_lines(plan_study(build.study_spec(study_words(world)))) == []


def test_a_study_is_the_same_wherever_it_runs_and_is_recorded(world: World) -> None:
    here, there = study_words(world), study_words(world, tracking="mlflow", cluster="elastic", store="elsewhere")
    assert build.study_spec(here).study_id == build.study_spec(there).study_id
