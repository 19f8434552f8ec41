"""The figures of a study's quality: perplexity against accuracy, loss against cost, rankings, variance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from raysearch.figures.correlations import CorrelationPoint, correlation_picture
from raysearch.figures.costs import CostPanel, CostPoint, cost_picture
from raysearch.figures.palette import Palette
from raysearch.figures.picture import Picture, pictures
from raysearch.figures.tradeoff import TradeoffLabels, TradeoffPanel, TradeoffPoint, tradeoff_picture
from raysearch.figures.variance import VarianceBar, variance_picture
from raysearch.reporting.analysis.analyse import Analysis
from raysearch.reporting.analysis.comparison import Comparison
from raysearch.reporting.analysis.correlation import Correlation
from raysearch.reporting.analysis.frame import Quantity, by_column, searcher_means
from raysearch.reporting.analysis.variance import Split


def tradeoff_pictures(analysis: Analysis, palette: Palette) -> list[Picture]:
    """Return for each model the average perplexity against the average accuracy, a panel per M.

    None without both averages.

    Args:
        analysis: The study and its statistics.
        palette: The looks of its searchers.

    Returns:
        The pictures, one for each model; empty if an average is missing.
    """
    quantities = [average for average in analysis.averages if average.group in ("perplexity", "accuracy")]
    if len(quantities) < 2:
        return []
    perplexity, accuracy = quantities
    labels = TradeoffLabels(perplexity.title, f"{accuracy.title} ({accuracy.unit})")
    panels = _tradeoff_panels(analysis, perplexity, accuracy)
    return pictures("tradeoff", panels, partial(tradeoff_picture, labels, palette))


def _tradeoff_panels(
    analysis: Analysis, perplexity: Quantity, accuracy: Quantity
) -> Iterator[tuple[str, TradeoffPanel]]:
    columns = {perplexity.key: "perplexity", accuracy.key: "accuracy", accuracy.error: "error"}
    means = searcher_means(analysis.frame, perplexity)[[*columns]].rename(columns=columns)
    searchers = means.dropna(subset=["perplexity", "accuracy"]).reset_index()
    for (model, remove), members in searchers.groupby(["model", "remove"], observed=True):
        points = [
            TradeoffPoint(
                searcher.searcher,
                searcher.calibration,
                searcher.perplexity,
                searcher.accuracy,
                searcher.error if searcher.error >= 0 else None,
            )
            for searcher in members.itertuples()
        ]
        estimates = by_column(analysis.results.dense.get(model, {}), analysis.results)
        dense = None
        if perplexity.key in estimates and accuracy.key in estimates:
            dense = estimates[perplexity.key].value, estimates[accuracy.key].value
        yield model, TradeoffPanel(remove, points, dense)


def cost_pictures(comparisons: Sequence[Comparison], palette: Palette) -> list[Picture]:
    """Return for each model the loss against the cost of a search, a panel per setting; hollow if significantly worse.

    Args:
        comparisons: The comparisons by calibration loss.
        palette: The looks of the searchers.

    Returns:
        The pictures, one for each model.
    """
    priced = [comparison for comparison in comparisons if any(rival.cost > 0 for rival in comparison.rivals)]
    panels = ((comparison.setting.model, _cost_panel(comparison)) for comparison in priced)
    return pictures("cost", panels, partial(cost_picture, palette))


def _cost_panel(comparison: Comparison) -> CostPanel:
    points = [
        CostPoint(rival.searcher, rival.cost, rival.mean, rival.noise, is_hollow=not rival.tied)
        for rival in comparison.rivals
    ]
    return CostPanel(comparison.setting.calibration, comparison.setting.remove, points)


def correlation_pictures(correlations: Sequence[Correlation]) -> list[Picture]:
    """Return the figure of rank correlations with their intervals: a panel per pair of quantities, a line per setting.

    None without a correlation.
    """
    points = []
    for correlation in correlations:
        if correlation.rho is None:
            continue
        interval = None
        if correlation.low is not None and correlation.high is not None:
            interval = (correlation.low, correlation.high)
        points.append(
            CorrelationPoint(
                first=correlation.first.title,
                second=correlation.second.title,
                model=correlation.setting.model,
                calibration=correlation.setting.calibration,
                remove=correlation.setting.remove,
                rho=correlation.rho,
                interval=interval,
            )
        )
    return [correlation_picture(points)] if points else []


def variance_pictures(splits: Sequence[Split]) -> list[Picture]:
    """Return the figure of the shares of variance as bars; none without a share."""
    bars = [VarianceBar(split.panel.model, split.title, split.panel.remove, split.shares) for split in splits]
    return [variance_picture(bars)] if bars else []
