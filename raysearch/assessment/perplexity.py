"""Perplexity on held-out text, by the evaluations of a search: in shards, with shared prefixes, in the ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from raysearch.assessment.context import AssessContext, Assessed
from raysearch.assessment.own_data import OWN
from raysearch.assessment.results import Result
from raysearch.assessment.spec import AssessSpec
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.data import Data
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.calibration.rows import Rows
from raysearch.calibration.windows import WindowOptions
from raysearch.core.estimate import Estimate, Metric
from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY
from raysearch.errors import EvaluationError, UserError
from raysearch.evaluation.spec import CalibrationSpec
from raysearch.evaluation.totals import sample_losses
from raysearch.stats.ratio import contributions, standard_error
from raysearch.text.numbers import count

_TITLES = {
    "wikitext2": "WikiText-2",
    "c4": "C4",
    "lambada": "LAMBADA",
    "sotu": "State of the Union",
    OWN: "the search's own data",
}
_FILES = ("test", "evaluation", "validation")  # the files of a text in a data folder, of which the first is used


def text_specs(spec: AssessSpec, name: str, max_positions: int | None) -> list[CalibrationSpec]:
    """Return the texts of an assessment, as calibrations.

    Args:
        spec: The texts, and the length of windows.
        name: The name of the model, for errors.
        max_positions: The most tokens that the model accepts; None for any number.

    Returns:
        A calibration with perplexity for each text, in the order of the configuration.

    Raises:
        UserError: The windows are longer than the model accepts, or a text is not read in order.
    """
    if spec.texts and max_positions is not None and spec.seq_len > max_positions:
        raise UserError(
            f"assess.seq_len={spec.seq_len} is longer than the {max_positions} positions of {name}; "
            f"use {max_positions} or less"
        )
    return [
        CalibrationSpec(f"assess.texts.{text}", PerplexityObjective(), _as_assessed(text, data, spec))
        for text, data in spec.texts.items()
    ]


def measure_perplexities(context: AssessContext) -> Assessed:
    """Return the perplexity of every mask on every text.

    Raises:
        EvaluationError: The dense model's loss on a text is not finite, or a job failed for good.
    """
    plan = context.plan
    masks = context.masks
    ledger = context.ledger
    evaluations, computed = context.evaluate(plan.texts, "perplexity")
    results: dict[Mask, dict[str, Result]] = {mask: {} for mask in masks}
    for index, (name, text) in enumerate(zip(plan.spec.texts, plan.texts, strict=True)):
        dense_loss = evaluations[Mask()].parts[index]
        if dense_loss is None:
            raise EvaluationError(f"the dense model's loss on assess.texts.{name} is not finite; use another text")
        samples, weights = sample_losses(text, ledger, masks)
        for mask in masks:
            loss = evaluations[mask].parts[index]
            losses = samples[mask]
            error = None
            over_dense = None
            items: tuple[float, ...] = ()
            if loss is not None and text.n_samples > 1:
                error = standard_error(losses, weights)
                over_dense = standard_error(losses - samples[Mask()], weights)
                items = tuple(contributions(losses, weights).tolist())
            retention = _exponential(None if loss is None else loss - dense_loss, over_dense)
            results[mask][name] = _result(name, text, loss, error, retention, items)
    return results, computed


def local_rows(key: str, name: str, rows: Rows, data_dir: Path | None) -> Rows:
    """Return the rows of a text or task from the data folder, if there is one and the rows are not local already.

    Args:
        key: The key of the text or task in the configuration: ``texts`` or ``generation``.
        name: Its name.
        rows: Its rows without a data folder.
        data_dir: The data folder; None for none.

    Returns:
        The rows of the file in the data folder; or the given rows.

    Raises:
        UserError: The folder has no file of the text or task.
    """
    if data_dir is None or rows.is_local:
        return rows
    folder = data_dir / name
    files = [folder / f"{stem}.jsonl" for stem in _FILES]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        kind = "text" if key == "texts" else "task"
        raise UserError(
            f"assess.data_dir={data_dir} holds no {name}/{_FILES[0]}.jsonl for assess.{key}.{name}; put it there, name "
            f"the file with data.path=… in assess.{key}.{name}, or leave the {kind} out with assess.{key}.{name}=null"
        )
    return replace(rows, path=str(file), allow_evaluation_split=True)


def _result(
    name: str, text: Calibration, loss: float | None, error: float | None, retention: Estimate, items: tuple[float, ...]
) -> Result:
    """Return the perplexity, exp(loss), and its standard error: that of the loss times the perplexity."""
    description = text.description
    unit = "document" if description["sampling"] == "whole" else "window"
    if "rows_read" in description:
        unit = "item"
    extent = f"{count(text.n_samples, unit)}, {text.n_tokens:,} scored tokens"
    metric = Metric(name, _TITLES.get(name, name), "perplexity", "perplexity", higher_is_better=False)
    return Result(
        metric,
        _exponential(loss, error),
        retention,
        extent,
        {
            "loss_nats_per_token": loss,
            "loss_error_nats": error,
            "n_tokens": text.n_tokens,
            "n_samples": text.n_samples,
            "data": {key: value for key, value in description.items() if key not in ("shards", "n_tokens")},
            "fingerprint": text.fingerprint,
        },
        items,
    )


def _exponential(loss: float | None, error: float | None) -> Estimate:
    """Return exp(loss), with its error by the delta method."""
    value = math.inf if loss is None else PERPLEXITY.read(loss)
    return Estimate(value, None if error is None or math.isinf(value) else value * error)


def _as_assessed(name: str, data: Data, spec: AssessSpec) -> Data:
    """Return the data of a text for an assessment: in order, up to the limit, from the data folder if there is one."""
    draw = data.draw
    if data.used is not None:  # a search's own data, which are ready
        return data
    if not isinstance(draw, WindowOptions) or draw.sampling not in ("sequential", "whole"):
        raise UserError(
            f"assess.texts.{name} is not taken in order; add data.sampling=sequential for windows of one stream, or "
            "data.sampling=whole for each document by itself"
        )
    limits = [draw.at_most if draw.samples == "all" else draw.samples, spec.limit]
    at_most = min((limit for limit in limits if limit is not None), default=None)
    draw = replace(draw, samples="all", at_most=at_most, seq_len=spec.seq_len)
    return replace(data, rows=local_rows("texts", name, data.rows, spec.data_dir), draw=draw)
