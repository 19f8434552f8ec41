"""The Python API: what the command line does, returning objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysearch.evaluation.progress import Progress
    from raysearch.evaluation.spec import JudgeSpec
    from raysearch.study.inspection import Inspection
    from raysearch.study.score import Score
    from raysearch.study.search import Observer
    from raysearch.study.sweep import Sweep
    from raysearch.tracking.base import SearchResult


def search(
    *overrides: str, config_dir: Path | None = None, observer: Observer | None = None, **values: Any
) -> SearchResult:
    """Finds which layers to remove; the same call again goes on where it was stopped.

        search(model="smollm2-135m", searcher="beam", remove=5, protect=[0, -1])
        search("data.path=my.txt", data="file", remove=3)

    Args:
        *overrides: ``key=value`` words, as on the command line.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        observer: Watches the search; None for silence.
        **values: The same keys as arguments. A mapping sets the keys inside a group: ``data={"samples": 32}``.

    Returns:
        What was found, with every trial.

    Raises:
        UserError: A key or value is not understood, or does not fit the model, the text or the machine.
        EvaluationError: Something could not be evaluated, and the search cannot go on without it.
    """
    from raysearch import build, config
    from raysearch.study.search import SilentObserver, run_search

    spec = build.search_spec(config.compose("search", [*overrides, *config.as_overrides(values)], config_dir))
    return run_search(spec, observer or SilentObserver())


def score(*overrides: str, config_dir: Path | None = None, **values: Any) -> list[Score]:
    """Gives the exact loss of masks that you already have.

        score(masks=[[3], [3, 5], []], model="smollm2-135m")

    Args:
        *overrides: ``key=value`` words, as on the command line.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        **values: The same keys as arguments.

    Returns:
        A score for each mask, in order.

    Raises:
        UserError: A key or value is not understood, or does not fit the model, the text or the machine.
        EvaluationError: A mask has no finite loss.
    """
    from raysearch import build, config
    from raysearch.study.score import score_masks

    spec = build.score_spec(config.compose("score", [*overrides, *config.as_overrides(values)], config_dir))
    return score_masks(spec, lambda progress: None)


def sweep(
    *overrides: str,
    also: Sequence[str] = (),
    config_dir: Path | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    **values: Any,
) -> Sweep:
    """Removes each layer by itself, and lays side by side what several calibrations make of it.

        sweep(model="smollm2-135m", data="sotu", also=["objective=kl", "objective=hidden_cosine"])

    Args:
        *overrides: ``key=value`` words, as on the command line.
        also: Other calibrations, by the words that are different.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        on_progress: Told how far it is.
        **values: The same keys as arguments.

    Raises:
        UserError: A key or value is not understood, or does not fit the model, the data or the machine.
        EvaluationError: The dense model cannot be evaluated.
    """
    from raysearch.study.sweep import run_sweep

    return run_sweep(_side_by_side(overrides, values, also, config_dir), on_progress)


def inspect(
    *overrides: str,
    also: Sequence[str] = (),
    samples: int = 2,
    loss: bool = True,
    config_dir: Path | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    **values: Any,
) -> list[Inspection]:
    """Shows calibrations as the model will see them.

        inspect(data="commonsense170k", objective="task_margin", loss=False)

    Args:
        *overrides: ``key=value`` words, as on the command line.
        also: Other calibrations, by the words that are different.
        samples: How many samples to show of each.
        loss: Whether the dense model is run on them.
        config_dir: A folder of your own YAML files, laid out like ``conf/``.
        on_progress: Told how far that is.
        **values: The same keys as arguments.

    Raises:
        UserError: A key or value is not understood, or the data cannot be used.
        EvaluationError: The dense model cannot be evaluated.
    """
    from raysearch.study.inspection import inspect_data

    return inspect_data(_side_by_side(overrides, values, also, config_dir), samples, loss, on_progress)


def _side_by_side(
    overrides: Sequence[str], values: Mapping[str, Any], also: Sequence[str], config_dir: Path | None
) -> JudgeSpec:
    """The calibration that words and values name, and others beside it."""
    from raysearch import build, config

    words = [*overrides, *config.as_overrides(values)]
    others = [config.compose_calibration(one, words, config_dir) for one in also]
    return build.judge_spec(config.compose("judge", words, config_dir), others)
