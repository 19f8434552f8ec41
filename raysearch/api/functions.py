"""The functions that start from a configuration: search, score, study, and what shows their cost and their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from raysearch.api.arguments import all_overrides, observer_or_default
from raysearch.api.location import StoreLocation
from raysearch.api.run import run_tracked_search, speed_meter_for
from raysearch.api.search_handle import Search
from raysearch.api.study_handle import Study, write_study_report
from raysearch.api.tracked import tracker_for
from raysearch.core.paths import PathLike, as_folder
from raysearch.core.space import LAYERS, SPACES
from raysearch.errors import EvaluationError, UserError
from raysearch.searching.observer import Observer
from raysearch.text.numbers import count
from raysearch.text.sentences import did_you_mean

if TYPE_CHECKING:
    from raysearch.configuration.origins import ConfiguredValue
    from raysearch.evaluation.spec import EvaluationSpec
    from raysearch.searching.forecast import SearchForecast
    from raysearch.searching.inspection import Inspection
    from raysearch.searching.score import Score
    from raysearch.searching.sweep import Sweep
    from raysearch.studies.plan import StudyPlan

#: The commands that have a configuration.
Command = Literal["search", "score", "study", "assess", "recover"]


def search(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> Search:
    """Find which layers to remove. The same call again resumes a search that was stopped.

        search(model="smollm2-135m", searcher="beam", remove=5, protect=[0, -1])
        search("data.path=my.txt", data="file", remove=3)
        search(remove="auto", budget={"loss": 0.1})
        search(remove=9, schedule=[3, 3, 3], heal="recover")
        search(searcher=Annealing(steps=20), remove=3)    an object of your own class, see docs/searchers.md

    Args:
        *overrides: ``key=value`` texts, as on the command line.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        observer: Receives the progress. By default, a notebook shows a progress bar, and a script prints a line per
            round on a terminal or logs it elsewhere (``logging.getLogger("raysearch")``). Warnings become Python
            warnings.
        **values: The same keys as keyword arguments; a mapping sets keys of a group: ``data={"samples": 32}``.

    Returns:
        A handle on the search; its `result` has the mask that was found, and every trial.

    Raises:
        UserError: A key or a value is not understood, or does not fit the model, the data or the machine.
        EvaluationError: An evaluation failed.
    """
    from raysearch.configuration import build

    observer = observer_or_default(observer)
    spec, tracking = build.tracked_search(all_overrides(overrides, values), config_dir)
    result = run_tracked_search(spec, tracking, observer)
    location = StoreLocation.of_folder_and_ledger(tracking.folder, spec.evaluation.ledger)
    return Search(location, result.search_id, result)


def config(
    *overrides: str, command: Command = "search", config_dir: PathLike | None = None, **values: Any
) -> list[ConfiguredValue]:
    """Return the resolved configuration of a command, each value with its origin.

        config("searcher=beam", remove=3)

    Args:
        *overrides: As for the command.
        command: The command: ``search``, ``score``, ``study``, ``assess`` or ``recover``.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        **values: The same keys as keyword arguments.

    Returns:
        Each value of the configuration with its dotted key, and the file or override that set it.

    Raises:
        UserError: A key or a value is not understood, or the command has no configuration.
    """
    from raysearch.configuration.origins import settings_of

    commands = get_args(Command)
    if command not in commands:
        raise UserError(f"command={command} has no configuration; use {', '.join(commands[:-1])} or {commands[-1]}")
    return settings_of(command, all_overrides(overrides, values), config_dir)


def forecast(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> SearchForecast:
    """Return the expected cost of a search on an empty ledger, or refuse it as `search` would. Nothing is recorded.

    The data are read. The model's weights are not: the speed is measured on a few layers with random weights.

    Args:
        *overrides: As for `search`.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.

    Returns:
        The expected masks, evaluations, layer-forwards, seconds and memory of the search.

    Raises:
        UserError: A key or a value is not understood, or does not fit the model, the data or the machine.
    """
    from raysearch.configuration import build
    from raysearch.searching.forecaster import forecast_search

    observer = observer_or_default(observer)
    spec = build.search_spec(all_overrides(overrides, values), config_dir)
    speed_meter_for(spec, observer)  # refuses options that cannot be measured
    return forecast_search(spec, observer)


def score(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> list[Score]:
    """Return the exact loss of masks that you already have.

        score(masks=[[3], [3, 5], []], model="smollm2-135m")

    Args:
        *overrides: ``key=value`` texts; ``masks`` is required.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.

    Returns:
        A score for each mask, in the order of ``masks``.

    Raises:
        UserError: A key or a value is not understood, or does not fit the model, the data or the machine.
        EvaluationError: An evaluation failed.
    """
    from raysearch.configuration import build
    from raysearch.searching.score import score_masks

    observer = observer_or_default(observer)
    evaluation, masks = build.score_spec(all_overrides(overrides, values), config_dir)
    return score_masks(evaluation, masks, observer)


def sweep(
    *overrides: str,
    also: Sequence[str] = (),
    out: PathLike | None = None,
    remove: int = 5,
    space: str = LAYERS.name,
    config_dir: PathLike | None = None,
    observer: Observer | None = None,
    **values: Any,
) -> Sweep:
    """Remove each single layer, pair or half, and compare the losses by several calibrations.

        sweep(model="smollm2-135m", data="sotu", also=["objective=kl", "objective=hidden_cosine"])

    Args:
        *overrides: ``key=value`` texts of the first calibration, and of the model.
        also: Other calibrations: for each, the overrides that differ from the first.
        out: The folder to write a figure and tables to; None to write none.
        remove: The number of layers, pairs or halves to mark in the figure.
        space: What is removed, as in a search: ``layers``, ``pairs``, ``attention``, ``mlp`` or ``halves``.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.

    Returns:
        The losses without each layer, pair or half by each calibration, and the files that were written.

    Raises:
        UserError: A key or a value is not understood, or does not fit the model, the data or the machine.
        EvaluationError: An evaluation failed.
    """
    from raysearch.searching.sweep import run_sweep

    observer = observer_or_default(observer)
    folder = None if out is None else as_folder("--out", out)  # refused now, not after hours
    if space not in SPACES:
        raise UserError(f"--space={space} is unknown; {did_you_mean(space, SPACES)}")
    result = run_sweep(_several_calibrations(overrides, values, also, config_dir), observer, SPACES[space])
    if folder is None:
        return result
    from raysearch.reporting.sweep import write_sweep

    return replace(result, files=tuple(write_sweep(result, remove, folder)))


def inspect(
    *overrides: str,
    also: Sequence[str] = (),
    samples: int = 2,
    loss: bool = True,
    config_dir: PathLike | None = None,
    observer: Observer | None = None,
    **values: Any,
) -> list[Inspection]:
    """Show calibrations as the model sees them.

        inspect(data="commonsense170k", objective="task_margin", loss=False)

    Args:
        *overrides: ``key=value`` texts of the first calibration, and of the model.
        also: Other calibrations: for each, the overrides that differ from the first.
        samples: The number of samples to show of each calibration.
        loss: Compute the loss of the dense model.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.

    Returns:
        An inspection of each calibration.

    Raises:
        UserError: A key or a value is not understood, or does not fit the model, the data or the machine.
        EvaluationError: The loss of the dense model could not be computed.
    """
    from raysearch.searching.inspection import inspect_data

    if samples < 0:
        raise UserError(f"--samples={samples} is negative; use 0 or more")
    observer = observer_or_default(observer)
    return inspect_data(_several_calibrations(overrides, values, also, config_dir), samples, loss, observer)


def study(
    *overrides: str,
    config_dir: PathLike | None = None,
    out: PathLike | None = None,
    observer: Observer | None = None,
    **values: Any,
) -> Study:
    """Run a grid of searches and write its report. The same call again resumes a study that was stopped.

        study(study="two_calibrations", assess="offline")
        study("study.grid.searcher=[one_shot,greedy]", "study.grid.remove=[3,5]", data={"samples": 8})

    Args:
        *overrides: ``key=value`` texts, as on the command line.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        out: The folder of the report; None for ``reports/<study>`` in the store.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.

    Returns:
        A handle on the study; its `result` has the results of the searches, and its `files` are those of the report,
        the page first. A search that fails does not stop the others: the results hold its cause.

    Raises:
        UserError: A key or a value is not understood, or does not fit; or a step after the searches failed: held-out
            data, assessment or recovery. The message then names the report of everything else.
        EvaluationError: A step after the searches failed, or Ray has died.
    """
    from raysearch.configuration import build
    from raysearch.studies.run import run_study
    from raysearch.tracking.mlflow.tracker import open_tracker
    from raysearch.tracking.sync import complete_killed_searches

    observer = observer_or_default(observer)
    spec, tracking = build.tracked_study(all_overrides(overrides, values), config_dir)
    folder = None if out is None else as_folder("--out", out)  # refused now, not after hours
    open_search_tracker = partial(open_tracker, tracking.with_absolute_paths())
    record, failures = run_study(spec, observer, tracker_for(tracking, observer), open_search_tracker)
    location = StoreLocation.of_folder_and_ledger(spec.store, spec.ledger)
    with location.opened_ledger() as ledger:
        complete_killed_searches(record, ledger, tracking, observer.warn)
        report = write_study_report(location, record, ledger, folder, observer)
    if failures:
        first_failure = failures[0]
        n_more = len(failures) - 1
        more = f" (and {count(n_more, 'failure')} more)" if n_more else ""
        kind = UserError if isinstance(first_failure, UserError) else EvaluationError
        raise kind(
            f"{first_failure}{more}; all else is in {report.page}, and the same command tries this again"
        ) from first_failure
    return Study(location, record.study_id, report)


def plan(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
) -> StudyPlan:
    """Return the expected cost of a study in time and memory, or refuse it as `study` would.

    Args:
        *overrides: As for `study`.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        observer: Receives the progress.
        **values: The same keys as keyword arguments.

    Returns:
        The forecast of each search of the study, and the costs of the whole study.

    Raises:
        UserError: A key or a value is not understood, or does not fit the models, the data or the machine.
    """
    from raysearch.configuration import build
    from raysearch.studies.plan import plan_study

    observer = observer_or_default(observer)
    return plan_study(build.study_spec(all_overrides(overrides, values), config_dir), observer, with_time=True)


def _several_calibrations(
    overrides: Sequence[str], values: Mapping[str, Any], also: Sequence[str], config_dir: PathLike | None
) -> EvaluationSpec:
    """Return an evaluation on the calibration of the overrides, and on those of `also`."""
    from raysearch.configuration import build

    calibrations = [also] if isinstance(also, str) else also
    return build.evaluation_spec(all_overrides(overrides, values), calibrations, config_dir)
