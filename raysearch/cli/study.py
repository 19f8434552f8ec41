"""The commands on studies and assessments: study, report, assess."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysearch.api import functions
from raysearch.api.store import open_store
from raysearch.api.study_handle import Study
from raysearch.cli.app import ConfigDir, Json, Overrides, Remove, SearchOrStudyName, StorePath, app
from raysearch.cli.output import RESUMABLE, Output, output
from raysearch.core.json import plain
from raysearch.core.paths import option_for
from raysearch.errors import EvaluationError, UserError

if TYPE_CHECKING:
    from raysearch.studies.result import StudyResult

StudyName = Annotated[
    str, typer.Argument(metavar="STUDY", help="A study's id, the start of one, its MLflow run id, or latest.")
]
Out = Annotated[Path | None, typer.Option(help="The folder of the report; default: reports/<study> in the store.")]

MlflowUrl = Annotated[
    str | None, typer.Option(help="Where readers of the report find MLflow, such as http://host:5000.")
]


@app.command(short_help="Run a grid of searches that share their work, and report it.")
def study(
    overrides: Overrides,
    config_dir: ConfigDir = None,
    out: Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the expected cost and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Run a grid of searches that share replicas and ledger, assess their results, and write a report.

    \b
    raysearch study study=two_calibrations assess=offline
    raysearch study study.grid.searcher=[one_shot,greedy,beam] study.grid.remove=[3,5] --dry-run

    A study that was stopped continues with the same command, which also tries failed searches again.
    """
    with output(as_json) as answers:
        from raysearch.cli.displays import Display, StudyDisplay
        from raysearch.cli.study_tables import assessment_lines, plan_line, plan_table

        if dry_run:
            with Display(answers.err) as live:
                plan = functions.plan(*overrides, config_dir=config_dir, observer=live)
            answers.answer(plan, plan_table(plan), plan_line(plan), *assessment_lines(plan), *plan.notes)
            return
        answers.when_stopped = RESUMABLE
        with StudyDisplay(answers.err) as following:
            done = functions.study(*overrides, config_dir=config_dir, out=out, observer=following)
        _answer(answers, done.result, done.files, following.in_ledger)


@app.command(short_help="Write the report of a study from its current results.")
def report(
    name: StudyName = "latest",
    out: Out = None,
    mlflow_url: MlflowUrl = None,
    store_path: StorePath = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Write the report of a study from its current results: one page that needs no network, tables and figures.

    \b
    raysearch report
    raysearch report two-calibrations-1eb52836 --out report
    raysearch report --mlflow-url http://team-host:5000    links for readers on other machines
    """
    with output(as_json) as answers:
        from raysearch.cli.displays import Display

        study = open_store(store_path).study(name)
        with Display(answers.err) as live:
            written = study.report(out, mlflow_url=mlflow_url, observer=live)
        _answer(answers, written.result, written.files, option_for(store_path))


@app.command(short_help="Measure the pruned and the dense model side by side.")
def assess(
    name: SearchOrStudyName,
    overrides: Overrides,
    remove: Remove = None,
    config_dir: ConfigDir = None,
    out: Out = None,
    store_path: StorePath = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Measure the pruned and the dense model: held-out perplexity, lm-eval's accuracies, speed.

    \b
    raysearch assess latest                             held-out prose and speed, without a network
    raysearch assess latest assess=paper assess.data_dir=data assess.limit=100
    raysearch assess two-calibrations assess=paper      all searches of a study; writes its report again
    """
    with output(as_json) as answers:
        from raysearch.cli.displays import Display
        from raysearch.cli.study_tables import assessment_tables

        answers.when_stopped = RESUMABLE
        assessed = open_store(store_path).search_or_study(name)
        if isinstance(assessed, Study):
            if remove is not None:
                raise UserError(f"--remove={remove} is of one search; leave it out for a study, or name the search")
            with Display(answers.err) as live:
                written = assessed.assess(*overrides, config_dir=config_dir, out=out, observer=live)
            _answer(answers, written.result, written.files, option_for(store_path))
        else:
            if out is not None:
                raise UserError(f"--out={out} is of a study, which has a report; leave it out for one search")
            with Display(answers.err) as live:
                assessment = assessed.assess(*overrides, remove=remove, config_dir=config_dir, observer=live)
            answers.answer(assessment, *assessment_tables(assessment))


def _answer(answers: Output, results: StudyResult, files: Sequence[Path], in_ledger: str) -> None:
    """Print a study's results, its assessed numbers and the path of its report; fail if a search failed."""
    from raysearch.cli.study_tables import assessed_table, study_lines, study_table

    tables = [table for table in (study_table(results), assessed_table(results)) if table is not None]
    value = {**plain(results), "report": str(files[0])}
    answers.answer(value, *tables, *study_lines(results, files, in_ledger))
    failed = [cell for cell in results.cells if cell.state == "failed"]
    if failed:
        raise EvaluationError(
            f"{len(failed)} of {len(results.cells)} searches, the first with: {failed[0].failure}; "
            "the same raysearch study command tries them again"
        )
