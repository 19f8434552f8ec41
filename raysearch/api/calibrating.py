"""Calibrations as the model sees them, from Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysearch.construct import checked
from raysearch.errors import UserError
from raysearch.paths import PathLike

if TYPE_CHECKING:
    from raysearch.evaluation.progress import Progress
    from raysearch.evaluation.spec import JudgeSpec
    from raysearch.studies.inspection import Inspection
    from raysearch.studies.sweep import Sweep


def sweep(
    *overrides: str,
    also: Sequence[str] = (),
    config_dir: PathLike | None = None,
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
    from raysearch.studies.sweep import run_sweep

    return run_sweep(_side_by_side(overrides, values, also, config_dir), on_progress)


def inspect(
    *overrides: str,
    also: Sequence[str] = (),
    samples: int = 2,
    loss: bool = True,
    config_dir: PathLike | None = None,
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
    from raysearch.studies.inspection import inspect_data

    if checked(int, "--samples", samples) < 0:
        raise UserError(f"--samples={samples} is negative; use 0 or more")
    samples, loss = min(samples, sys.maxsize), checked(bool, "--loss", loss)
    return inspect_data(_side_by_side(overrides, values, also, config_dir), samples, loss, on_progress)


def _side_by_side(
    overrides: Sequence[str], values: Mapping[str, Any], also: Sequence[str], config_dir: PathLike | None
) -> JudgeSpec:
    """The calibration that words and values name, and others beside it."""
    from raysearch import build, config
    from raysearch.overrides import as_overrides

    words = [*overrides, *as_overrides(values)]
    also = checked(list[str], "--also", list(also) if isinstance(also, tuple) else also)
    others = [config.compose_calibration(one, words, config_dir) for one in also]
    return build.judge_spec(config.compose("judge", words, config_dir), others)
