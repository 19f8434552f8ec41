"""The Python API: what the command line does, returning objects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysearch.study.score import Score
    from raysearch.study.search import Observer
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
