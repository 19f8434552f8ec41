"""Searches, and masks that one already has, from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysearch.paths import PathLike

if TYPE_CHECKING:
    from raysearch.studies.observer import Observer
    from raysearch.studies.score import Score
    from raysearch.tracking.base import SearchResult
from raysearch.api.observing import observer_or


def search(
    *overrides: str, config_dir: PathLike | None = None, observer: Observer | None = None, **values: Any
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
    from raysearch.overrides import as_overrides
    from raysearch.studies.observer import SilentObserver
    from raysearch.studies.search import run_search

    spec = build.search_spec(config.compose("search", [*overrides, *as_overrides(values)], config_dir))
    return run_search(spec, observer_or(observer, SilentObserver()))


def score(*overrides: str, config_dir: PathLike | None = None, **values: Any) -> list[Score]:
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
    from raysearch.overrides import as_overrides
    from raysearch.studies.score import score_masks

    spec = build.score_spec(config.compose("score", [*overrides, *as_overrides(values)], config_dir))
    return score_masks(spec, lambda progress: None)
