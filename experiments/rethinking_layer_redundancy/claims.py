"""The claims of the README from a study's ``cells.csv``, each with its effect, interval and verdict.

The tests are the report's own (`raysearch.reporting.analysis`); the shape of masks, the share of the prior, and
objective and data apart are computed here. Prints Markdown; each ``claims.md`` is what it prints of the ``cells.csv``
beside it.

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
#: Of a study by the name of its folder: with budgets alike, or random numbers of their own in each draw.
MORE_CONTRASTS = {"equal_budget": ("beam - random", "beam - GA", "beam - BO")}
MARGIN = Margin(loss=0.02, points=1.0)
N_LAYERS = {"SmolLM2-135M": 30, "Gemma-3-270M": 18}


def main() -> None:
    """Prints the tables."""
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
        Metric(name, name, of, "%" if of == "accuracy" else of, of == "accuracy")
        for name, of in GROUPS.items()
        if f"assessed.{name}" in table
    ]
    chosen = table if searchers is None else table[table["searcher"].isin(searchers)]
    items = items_beside(path)
    cells = [cell(row, items.get((row["model"], row["removed"]), {})) for row in chosen.to_dict("records")]
    sites = {name: Sites.of_equal_layers(N_LAYERS[name]) for name in chosen["model"].unique()}
    return StudyResult(
        *("rethinking", "rethinking", cells, sites, metrics, {}, {}),
        margin=MARGIN if "draw" in table else Margin(),
        contrasts=(*CONTRASTS, *MORE_CONTRASTS.get(path.parent.name, ())) if "draw" in table else (),
    )


def items_beside(path: Path) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Return what each item adds to a mask's numbers, by which masks are paired: from ``items.csv``, if it is there."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    if (file := path.with_name("items.csv")).is_file():
        for row in pd.read_csv(file).itertuples():
            found.setdefault((row.model, row.removed), {})[row.metric] = json.loads(row.items)
    return found


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
    found = {
        "search_id": row.get("search_id") or row["run_id"],
        "draw": row.get("draw", ""),
        "held_out_by_draw": json.loads(row.get("held_out_by_draw") or "{}"),
        "n_free": N_LAYERS[row["model"]],
        "outcome": outcome,
    }
    return CellResult(**declared | fields_of(CellResult, row) | found)


def fields_of(kind: type[CellResult | Outcome], row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what a line of the file has of the fields of a class."""
    return {field.name: row[field.name] for field in dataclasses.fields(kind) if field.name in row}


def claims(whole: Analysis, seven: Analysis) -> str:
    """Each claim with its effect, interval and verdict: by all searchers that use the objective, or by the seven."""
    rows = [*calibration_claims(whole), *variance_claims(seven), *agreement_claims(seven)]
    rows += [*searcher_claims(whole), *contrast_claims(whole), *prediction_claims(whole)]
    return table(["claim", "effect", "95 % interval", "verdict"], rows)


def calibration_claims(whole: Analysis) -> Iterator[list[object]]:
    """Which calibration gives better checkpoints, over the searchers that use the objective."""
    for one in whole.effects:
        unit = "times" if one.quantity.ratio else "points"
        ends = "" if one.low is None or one.high is None else f"{number(one.low)} to {number(one.high)}"
        what = f"{one.quantity.group}: {one.best} better than {one.second}, M={one.panel.remove}"
        effect = f"{number(one.gain)} {unit} ({one.n_better} of {one.n_searchers} searchers)"
        yield [what, effect, ends, verdict(one.p, drawn=one.n_draws > 1)]


def variance_claims(seven: Analysis) -> Iterator[list[object]]:
    """Shares of variance, noise taken off."""
    for one in seven.splits:
        for part, p in one.p.items():
            low, high = one.intervals[part]
            shares = f"ω² {one.shares[part]:.2f} (η² {one.raw[part]:.2f})"
            what = f"{one.quantity.group} varies with the {part}, M={one.panel.remove}"
            yield [what, shares, f"{low:.2f} to {high:.2f}", verdict(p, drawn=one.drawn)]


def agreement_claims(seven: Analysis) -> Iterator[list[object]]:
    """How alike masks are."""
    pairs = [(one.mean, one.chance) for one in seven.agreements if one.mean is not None]
    if pairs:  # else there is one searcher
        within, chance = map(fmean, zip(*pairs, strict=True))
        what, against = "masks of two searchers on the same samples", ""
        if seven.cross:
            what += ", against those of one on two calibrations"
            against = f" against {fmean(one.mean for one in seven.cross):.2f}"
        yield [what, f"Jaccard {within:.2f}{against}; chance {chance:.2f}", "", "a description"]
    for one in seven.agreements:
        if one.between_draws is not None:
            what = f"{one.setting.calibration}: masks of one searcher by two draws, M={one.setting.remove}"
            others = "" if one.mean is None else f"; of two searchers by one draw {one.mean:.2f}"
            yield [what, f"Jaccard {one.between_draws:.2f}{others}", "", "a description"]


def searcher_claims(whole: Analysis) -> Iterator[list[object]]:
    """Searchers over all settings, by calibration loss."""
    found = next((one for one in whole.rankings if one.quantity.key == "loss"), None)
    if found is None:  # too few settings
        return
    yield [
        f"searchers differ in calibration loss ({len(found.ranks)} over {found.n_sets} sets of samples)",
        "mean ranks: " + ", ".join(f"{name} {rank:.1f}" for name, rank in found.ranks.items()),
        f"critical difference {found.critical:.1f}",
        verdict(found.p, "Friedman"),
    ]
    pairs: dict[tuple[str, str], Pair] = {(one.better, one.worse): one for one in found.pairs}
    asked = [pair for pair in PAIRS if {*pair} <= found.ranks.keys()]
    told = [pairs.get(pair) or pairs[pair[::-1]] for pair in asked]
    corrected = holm([mcnemar_p(one.wins, one.losses) for one in told])
    seeds = whole.frame[whole.frame["stochastic"]].groupby("searcher", observed=True)["seed"].nunique()
    for one, p in zip(told, corrected, strict=True):
        lone = [name for name in (one.better, one.worse) if seeds.get(name) == 1]
        yield [
            f"{one.better} better than {one.worse}{f' (one seed of {lone[0]})' if lone else ''}",
            f"better in {one.wins}, worse in {one.losses} of {found.n_sets} sets of samples",
            "",
            verdict(p, f"sign test, corrected for {len(told)} pairs"),
        ]


def contrast_claims(whole: Analysis) -> Iterator[list[object]]:
    """Two searchers beside each other, paired by draw; by the loss on other draws where there are any."""
    for one in whole.contrasts:
        half = one.gap.half_width()
        ends = "" if half is None else f"{one.gain - half:+.3f} to {one.gain + half:+.3f}"
        where = f"{one.setting.calibration}, M={' and '.join(map(str, one.sizes))}"
        same = ", equivalent within the margin" if one.equivalent else ""
        yield [
            f"{one.quantity.title}: {one.first} better than {one.second}, {where}",
            f"{one.gain:+.3f} {one.unit} over {one.gap.n_draws} draws",
            ends,
            f"{verdict(one.p)}{same}",
        ]


def prediction_claims(whole: Analysis) -> Iterator[list[object]]:
    """Whether a better loss means a better checkpoint."""
    told = [one for one in whole.correlations if one.first.key == "loss" and one.rho is not None]
    for key in dict.fromkeys((one.setting.calibration, one.second.group) for one in told):  # as the report groups them
        members = [one for one in told if (one.setting.calibration, one.second.group) == key]
        for one, p in zip(members, holm([one.p for one in members]), strict=True):
            ends = "" if one.low is None or one.high is None else f"{one.low:+.2f} to {one.high:+.2f}"
            what = f"{one.setting.calibration}: its loss predicts {one.second.group}, M={one.setting.remove}"
            effect = f"ρ {one.rho:+.2f} ({one.n} searchers with other masks)"
            yield [what, effect, ends, verdict(p, f"permutations, corrected for {len(members)} M")]


def verdict(p: float | None, test: str = "", drawn: bool = True) -> str:
    """Return the verdict of a test, with its p; what differs in one draw is measured on its samples and no more."""
    if p is None or math.isnan(p):
        return "cannot be told"
    by = f"{test}, " if test else ""
    differs = "**clear**" if drawn else "measured on these samples"
    return f"{differs if p <= 0.05 else 'not told apart'} ({by}{'p < 0.001' if p < 0.001 else f'p = {p:.3f}'})"


def number(value: float) -> str:
    """Return a number in three digits."""
    return f"{float(f'{value:.3g}'):,.10g}"


def shapes(cells: pd.DataFrame) -> str:
    """Runs of neighbouring layers, where they lie, and how alike searchers' masks are."""
    rows = []
    seven = cells[cells["searcher"].isin(SEVEN)]
    for (calibration, remove), group in seven.groupby(["calibration", "remove"], sort=False, observed=True):
        drawn = group.drop_duplicates(["searcher", "draw"]).groupby("draw")["mask"]
        alike = [one.jaccard(other) for _, masks in drawn for one, other in combinations(masks, 2)]
        runs = group["mask"].map(lambda mask: sum(layer - 1 not in mask for layer in mask))
        middle = group["mask"].map(fmean)
        places = f"{middle.mean():.1f} ± {middle.std():.1f}"
        mean, span = (f"{fmean(alike):.2f}", f"{min(alike):.2f} to {max(alike):.2f}") if alike else ("", "")
        rows.append([calibration, remove, f"{runs.mean():.1f}", places, mean, span])
    heads = ["calibration", "M", "runs of neighbours", "middle layer (sd)", "mean Jaccard", "range"]
    return table(heads, rows)


def priors(cells: pd.DataFrame) -> str:
    """What GA and BO lose without the prior, over the same seeds; and one-shot, which is the prior."""
    rows = []
    for (calibration, remove), group in cells.groupby(["calibration", "remove"], sort=False, observed=True):
        best = group["loss"].min()
        behind = {name: one["loss"] - best for name, one in group.groupby("searcher", observed=True)}
        names = ("one-shot", "GA", "GA without prior", "BO", "BO without prior", "random")
        rows.append([calibration, remove, *(over_seeds(behind[name]) if name in behind else "" for name in names)])
    return table(["calibration", "M", "one-shot", "GA", "GA, no prior", "BO", "BO, no prior", "random"], rows)


def by_windows(cells: pd.DataFrame) -> str:
    """What the draws of each number of windows found: how alike masks are, and their perplexities on the same text."""
    rows = []
    for (calibration, searcher), group in cells.groupby(["calibration", "searcher"], sort=False, observed=True):
        alike = [one.jaccard(other) for one, other in combinations(group["mask"], 2)]
        perplexities = group["assessed.c4"]
        mean, span = geometric_mean(perplexities), f"{perplexities.min():.1f} to {perplexities.max():.1f}"
        rows.append([calibration, searcher, group["mask"].nunique(), f"{fmean(alike):.2f}", f"{mean:.1f}", span])
    heads = ["calibration", "searcher", "masks of three draws", "mean Jaccard", "perplexity on C4, mean", "range"]
    return table(heads, rows)


def crossed(cells: pd.DataFrame) -> str:
    """How alike the masks of two calibrations are: mean Jaccard over the seven searchers and both M, like with like."""
    seven = cells[cells["searcher"].isin(SEVEN) & (cells["seed"] == 0)]
    names = list(seven["calibration"].unique())
    found = {
        place: list(masks)
        for place, masks in seven.groupby(["searcher", "remove", "calibration"], observed=True)["mask"]
    }
    rows = []
    for one in names:
        row = [one]
        for other in names:
            pairs = [
                a.jaccard(b)
                for place in product(SEVEN, seven["remove"].unique())
                for a, b in product(found.get((*place, one), ()), found.get((*place, other), ()))
            ]
            row.append(f"{fmean(pairs):.2f}" if pairs and one != other else "")
        rows.append(row)
    return table(["", *names], rows)


def over_seeds(values: pd.Series) -> str:
    """A mean, and its standard error where there are several."""
    if len(values) == 1:
        return f"{values.iloc[0]:.3f}"
    return f"{values.mean():.3f} ± {values.std() / math.sqrt(len(values)):.3f}"


def table(heads: list[str], rows: list[list[object]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [heads, ["---"] * len(heads), *rows]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
