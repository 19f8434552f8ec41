"""The claims of the README from a study's ``cells.csv``, each with its effect, interval and verdict.

The tests are the report's own (`raysearch.reporting.analysis`); the shape of masks, the share of the prior, and
objective and data apart are computed here. Prints Markdown; each ``claims.md`` is its output for the ``cells.csv``
next to it.

    python experiments/rethinking_layer_redundancy/claims.py \\
      experiments/rethinking_layer_redundancy/results/three_draws/cells.csv
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import pandas as pd

from raysearch.core.estimate import Estimate, Group, Metric
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.site import Sites
from raysearch.reporting.analysis.analyse import Analysis, analyse
from raysearch.reporting.analysis.correlation import Correlation
from raysearch.reporting.analysis.ranking import Pair
from raysearch.stats.paired import mcnemar_p
from raysearch.stats.significance import holm
from raysearch.studies.result import CellResult, Outcome, StudyResult
from raysearch.studies.spec import Margin

#: The paper's seven searchers.
SEVEN = ("one-shot", "greedy", "beam", "GA", "BO", "CBO", "fast-block-select")
#: Searchers that do not use the objective, and those that draw random numbers: older files do not say.
BASELINES = ("reverse order", "magnitude", "block influence", "angular distance")
STOCHASTIC = ("GA", "GA without prior", "BO", "BO without prior", "random")
GROUPS: Mapping[str, Group] = {
    "wikitext2": "perplexity",
    "c4": "perplexity",
    "lambada": "perplexity",
    "arc_easy": "accuracy",
    "arc_challenge": "accuracy",
    "piqa": "accuracy",
    "winogrande": "accuracy",
}
PAIRS = (("beam", "GA"), ("greedy", "GA"), ("greedy", "one-shot"), ("beam", "greedy"))
CONTRASTS = ("greedy - one-shot", "beam - greedy")
#: More contrasts of a study, by the name of its folder: with equal budgets, or other random numbers in each draw.
MORE_CONTRASTS = {"equal_budget": ("beam - random", "beam - GA", "beam - BO")}
MARGIN = Margin(loss=0.02, points=1.0)
N_LAYERS = {"SmolLM2-135M": 30, "Gemma-3-270M": 18}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", type=Path)
    path = parser.parse_args().cells
    whole = analyse(study(path))
    cells = whole.frame[whole.frame["loss"].notna()].assign(mask=whole.frame["removed"].map(Mask))
    print(f"## The claims\n\n{claims(whole, analyse(study(path, SEVEN)))}\n")
    print(f"## Shape of the masks (the paper's seven searchers)\n\n{shapes(cells)}\n")
    if cells["searcher"].isin(["GA without prior", "BO without prior"]).any():
        print(f"## The prior of single layers\n\n{priors(cells)}\n")
    if cells["calibration"].nunique() > 1 and cells["calibration"].str.fullmatch(r"\d+ windows").all():
        print(f"## By the number of windows\n\n{by_windows(cells)}\n")
    print(f"## Objective and data apart\n\n{crossed(cells)}")


def study(path: Path, searchers: Collection[str] | None = None) -> StudyResult:
    """Return the study of a report's ``cells.csv``, or of some of its searchers, as the report's statistics take it."""
    table = pd.read_csv(path, dtype={"draw": str}).astype(object)
    table = table.where(table.notna(), None)
    metrics = [
        Metric(name, name, group, "%" if group == "accuracy" else group, group == "accuracy")
        for name, group in GROUPS.items()
        if f"assessed.{name}" in table
    ]
    chosen = table if searchers is None else table[table["searcher"].isin(searchers)]
    items = items_next_to(path)
    cells = [cell(row, items.get((row["model"], row["removed"]), {})) for row in chosen.to_dict("records")]
    sites = {name: Sites.of_equal_layers(N_LAYERS[name]) for name in chosen["model"].unique()}
    return StudyResult(
        *("rethinking", "rethinking", cells, sites, metrics, {}, {}),
        margin=MARGIN if "draw" in table else Margin(),
        contrasts=(*CONTRASTS, *MORE_CONTRASTS.get(path.parent.name, ())) if "draw" in table else (),
    )


def items_next_to(path: Path) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Return the contribution of each item to the numbers of a mask, from ``items.csv``; empty without the file."""
    items_by_mask: dict[tuple[str, str], dict[str, list[float]]] = {}
    if (file := path.with_name("items.csv")).is_file():
        for row in pd.read_csv(file).itertuples():
            items_by_mask.setdefault((row.model, row.removed), {})[row.metric] = json.loads(row.items)
    return items_by_mask


def cell(row: Mapping[Any, Any], items: Mapping[str, Sequence[float]]) -> CellResult:
    """Return a search of a line of the file, whose columns have the names of fields."""
    outcome = Outcome(
        **fields_of(Outcome, row)
        | {
            "removed": tuple(json.loads(row["removed"])),
            "measure": Measure(row["unit"], "token" if "token" in row["unit"] else "sample"),
            "delta_error": row["loss_error"],
            "items": items,
            "assessed": {
                name: Estimate(row[f"assessed.{name}"], row[f"assessed.{name}_error"])
                for name in GROUPS
                if row.get(f"assessed.{name}") is not None
            },
        }
    )
    declared = {"uses_objective": row["searcher"] not in BASELINES, "stochastic": row["searcher"] in STOCHASTIC}
    derived = {
        "search_id": row.get("search_id") or row["run_id"],
        "draw": row.get("draw", ""),
        "held_out_by_draw": json.loads(row.get("held_out_by_draw") or "{}"),
        "n_free": N_LAYERS[row["model"]],
        "outcome": outcome,
    }
    return CellResult(**declared | fields_of(CellResult, row) | derived)


def fields_of(kind: type[CellResult | Outcome], row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the fields of a class that a line of the file has."""
    return {field.name: row[field.name] for field in dataclasses.fields(kind) if field.name in row}


def claims(whole: Analysis, seven: Analysis) -> str:
    """Return each claim with its effect, interval and verdict: by all searchers with an objective, or by the seven."""
    rows = [*calibration_claims(whole), *variance_claims(seven), *agreement_claims(seven)]
    rows += [*searcher_claims(whole), *contrast_claims(whole), *prediction_claims(whole)]
    return table(["claim", "effect", "95 % interval", "verdict"], rows)


def calibration_claims(whole: Analysis) -> Iterator[list[object]]:
    """Yield which calibration gives better checkpoints, over the searchers that use the objective."""
    for effect in whole.effects:
        unit = "times" if effect.quantity.ratio else "points"
        ends = "" if effect.low is None or effect.high is None else f"{number(effect.low)} to {number(effect.high)}"
        what = f"{effect.quantity.group}: {effect.best} better than {effect.second}, M={effect.panel.remove}"
        gain = f"{number(effect.gain)} {unit} ({effect.n_better} of {effect.n_searchers} searchers)"
        yield [what, gain, ends, verdict(effect.p, drawn=effect.n_draws > 1)]


def variance_claims(seven: Analysis) -> Iterator[list[object]]:
    """Yield the shares of variance, after subtraction of the noise."""
    for split in seven.splits:
        for part, p in split.p.items():
            low, high = split.intervals[part]
            shares = f"ω² {split.shares[part]:.2f} (η² {split.raw[part]:.2f})"
            what = f"{split.quantity.group} varies with the {part}, M={split.panel.remove}"
            yield [what, shares, f"{low:.2f} to {high:.2f}", verdict(p, drawn=split.drawn)]


def agreement_claims(seven: Analysis) -> Iterator[list[object]]:
    """Yield how similar masks are."""
    pairs = [(agreement.mean, agreement.chance) for agreement in seven.agreements if agreement.mean is not None]
    if pairs:  # else there is one searcher
        within, chance = map(fmean, zip(*pairs, strict=True))
        what, against = "masks of two searchers on the same samples", ""
        if seven.cross:
            what += ", against those of one on two calibrations"
            against = f" against {fmean(agreement.mean for agreement in seven.cross):.2f}"
        yield [what, f"Jaccard {within:.2f}{against}; chance {chance:.2f}", "", "a description"]
    for agreement in seven.agreements:
        if agreement.between_draws is not None:
            what = f"{agreement.setting.calibration}: masks of one searcher by two draws, M={agreement.setting.remove}"
            others = "" if agreement.mean is None else f"; of two searchers by one draw {agreement.mean:.2f}"
            yield [what, f"Jaccard {agreement.between_draws:.2f}{others}", "", "a description"]


def searcher_claims(whole: Analysis) -> Iterator[list[object]]:
    """Compare searchers over all settings, by calibration loss."""
    ranking = next((ranking for ranking in whole.rankings if ranking.quantity.key == "loss"), None)
    if ranking is None:  # too few settings
        return
    yield [
        f"searchers differ in calibration loss ({len(ranking.ranks)} over {ranking.n_sets} sets of samples)",
        "mean ranks: " + ", ".join(f"{name} {rank:.1f}" for name, rank in ranking.ranks.items()),
        f"critical difference {ranking.critical:.1f}",
        verdict(ranking.p, "Friedman"),
    ]
    pairs: dict[tuple[str, str], Pair] = {(pair.better, pair.worse): pair for pair in ranking.pairs}
    claimed = [names for names in PAIRS if {*names} <= ranking.ranks.keys()]
    compared = [pairs.get(names) or pairs[names[::-1]] for names in claimed]
    corrected = holm([mcnemar_p(pair.wins, pair.losses) for pair in compared])
    seeds = whole.frame[whole.frame["stochastic"]].groupby("searcher", observed=True)["seed"].nunique()
    for pair, p in zip(compared, corrected, strict=True):
        lone = [name for name in (pair.better, pair.worse) if seeds.get(name) == 1]
        yield [
            f"{pair.better} better than {pair.worse}{f' (one seed of {lone[0]})' if lone else ''}",
            f"better in {pair.wins}, worse in {pair.losses} of {ranking.n_sets} sets of samples",
            "",
            verdict(p, f"sign test, corrected for {len(compared)} pairs"),
        ]


def contrast_claims(whole: Analysis) -> Iterator[list[object]]:
    """Compare two searchers, paired by draw; by the loss on other draws where there are any."""
    for contrast in whole.contrasts:
        half = contrast.gap.half_width()
        ends = "" if half is None else f"{contrast.gain - half:+.3f} to {contrast.gain + half:+.3f}"
        where = f"{contrast.setting.calibration}, M={' and '.join(map(str, contrast.sizes))}"
        same = ", equivalent within the margin" if contrast.equivalent else ""
        yield [
            f"{contrast.quantity.title}: {contrast.first} better than {contrast.second}, {where}",
            f"{contrast.gain:+.3f} {contrast.unit} over {contrast.gap.n_draws} draws",
            ends,
            f"{verdict(contrast.p)}{same}",
        ]


def prediction_claims(whole: Analysis) -> Iterator[list[object]]:
    """Yield whether a better loss predicts a better checkpoint."""
    by_question: dict[tuple[str, str | None], list[Correlation]] = {}  # grouped as in the report
    for correlation in whole.correlations:
        if correlation.first.key == "loss" and correlation.rho is not None:
            question = (correlation.setting.calibration, correlation.second.group)
            by_question.setdefault(question, []).append(correlation)
    for (calibration, group), correlations in by_question.items():
        corrected = holm([correlation.p for correlation in correlations])
        for correlation, p in zip(correlations, corrected, strict=True):
            ends = ""
            if correlation.low is not None and correlation.high is not None:
                ends = f"{correlation.low:+.2f} to {correlation.high:+.2f}"
            what = f"{calibration}: its loss predicts {group}, M={correlation.setting.remove}"
            effect = f"ρ {correlation.rho:+.2f} ({correlation.n} searchers with other masks)"
            yield [what, effect, ends, verdict(p, f"permutations, corrected for {len(correlations)} M")]


def verdict(p: float | None, test: str = "", drawn: bool = True) -> str:
    """Return the verdict of a test, with its p. A difference in a single draw is known only for its samples."""
    if p is None or math.isnan(p):
        return "cannot be told"
    by = f"{test}, " if test else ""
    differs = "**clear**" if drawn else "measured on these samples"
    return f"{differs if p <= 0.05 else 'not told apart'} ({by}{'p < 0.001' if p < 0.001 else f'p = {p:.3f}'})"


def number(value: float) -> str:
    """Return a number in three digits."""
    return f"{float(f'{value:.3g}'):,.10g}"


def shapes(cells: pd.DataFrame) -> str:
    """Return the runs of neighbouring layers, their positions, and the similarity of searchers' masks."""
    rows = []
    seven = cells[cells["searcher"].isin(SEVEN)]
    for (calibration, remove), group in seven.groupby(["calibration", "remove"], sort=False, observed=True):
        drawn = group.drop_duplicates(["searcher", "draw"]).groupby("draw")["mask"]
        alike = [mask.jaccard(other_mask) for _, masks in drawn for mask, other_mask in combinations(masks, 2)]
        runs = group["mask"].map(lambda mask: sum(layer - 1 not in mask for layer in mask))
        middle = group["mask"].map(fmean)
        places = f"{middle.mean():.1f} ± {middle.std():.1f}"
        mean, span = (f"{fmean(alike):.2f}", f"{min(alike):.2f} to {max(alike):.2f}") if alike else ("", "")
        rows.append([calibration, remove, f"{runs.mean():.1f}", places, mean, span])
    heads = ["calibration", "M", "runs of neighbours", "middle layer (sd)", "mean Jaccard", "range"]
    return table(heads, rows)


def priors(cells: pd.DataFrame) -> str:
    """Return what GA and BO lose without the prior, over the same seeds; and one-shot, which is the prior."""
    rows = []
    for (calibration, remove), group in cells.groupby(["calibration", "remove"], sort=False, observed=True):
        best = group["loss"].min()
        behind = {name: searches["loss"] - best for name, searches in group.groupby("searcher", observed=True)}
        names = ("one-shot", "GA", "GA without prior", "BO", "BO without prior", "random")
        rows.append([calibration, remove, *(over_seeds(behind[name]) if name in behind else "" for name in names)])
    return table(["calibration", "M", "one-shot", "GA", "GA, no prior", "BO", "BO, no prior", "random"], rows)


def by_windows(cells: pd.DataFrame) -> str:
    """Return the similarity of the masks of each number of windows, and their perplexities on the same text."""
    rows = []
    for (calibration, searcher), group in cells.groupby(["calibration", "searcher"], sort=False, observed=True):
        alike = [mask.jaccard(other_mask) for mask, other_mask in combinations(group["mask"], 2)]
        perplexities = group["assessed.c4"]
        mean, span = geometric_mean(perplexities), f"{perplexities.min():.1f} to {perplexities.max():.1f}"
        rows.append([calibration, searcher, group["mask"].nunique(), f"{fmean(alike):.2f}", f"{mean:.1f}", span])
    heads = ["calibration", "searcher", "masks of three draws", "mean Jaccard", "perplexity on C4, mean", "range"]
    return table(heads, rows)


def crossed(cells: pd.DataFrame) -> str:
    """Return the similarity of the masks of two calibrations: the mean Jaccard over the seven searchers and both M."""
    seven = cells[cells["searcher"].isin(SEVEN) & (cells["seed"] == 0)]
    names = list(seven["calibration"].unique())
    masks_by_place = {
        place: list(masks)
        for place, masks in seven.groupby(["searcher", "remove", "calibration"], observed=True)["mask"]
    }
    rows = []
    for calibration in names:
        row = [calibration]
        for other_calibration in names:
            pairs = [
                mask.jaccard(other_mask)
                for place in product(SEVEN, seven["remove"].unique())
                for mask, other_mask in product(
                    masks_by_place.get((*place, calibration), ()), masks_by_place.get((*place, other_calibration), ())
                )
            ]
            row.append(f"{fmean(pairs):.2f}" if pairs and calibration != other_calibration else "")
        rows.append(row)
    return table(["", *names], rows)


def over_seeds(values: pd.Series) -> str:
    """Return a mean, with its standard error if there are several values."""
    if len(values) == 1:
        return f"{values.iloc[0]:.3f}"
    return f"{values.mean():.3f} ± {values.std() / math.sqrt(len(values)):.3f}"


def table(heads: list[str], rows: list[list[object]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [heads, ["---"] * len(heads), *rows]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
