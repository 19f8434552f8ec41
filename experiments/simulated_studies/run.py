"""How often a report says "clear" or "clear in part" of nothing: studies of random numbers, in which all are alike.

Each study has 2 calibrations x 2 M x 5 searchers x 3 draws. A mask has a quality of its own, that of the draw of its
samples, and noise wherever it is measured, of which all masks that a searcher finds have a part in common on the same
samples; both are much alike for the two M, as one mask grows out of the other. Nothing depends on searcher or
calibration. With ``--effect`` the first
searcher is better in every number by so many standard errors of the named contrast, which is then to be found.

    python experiments/simulated_studies/run.py --studies 400
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections import Counter
from collections.abc import Iterator

import numpy as np

from raysearch.core.estimate import Estimate, Metric
from raysearch.core.measure import PERPLEXITY
from raysearch.core.site import Sites
from raysearch.reporting.analysis.analyse import analyse
from raysearch.reporting.findings import findings
from raysearch.studies.result import CellResult, Outcome, StudyResult

CALIBRATIONS, SIZES, SEARCHERS, DRAWS = ("x", "y"), (5, 7), "abcde", "012"
METRICS = (
    Metric("ppl", "Perplexity", "perplexity", "perplexity", False),
    Metric("acc", "Accuracy", "accuracy", "%", True),
)
N_ITEMS, SPREAD, NOISE = 100, 0.1, 0.1
#: The correlation of a searcher's luck with the same samples at two M; between neighbouring M of a real study .7 to .9.
OF_BOTH_SIZES = 0.8
#: The standard error of a contrast over three draws by held-out loss: two masks, each on the two other draws, whose
#: samples suit all masks of a searcher alike, and each mask by itself.
ERROR = float(np.sqrt(2 * (SPREAD**2 + NOISE**2 + NOISE**2 / 2) / len(DRAWS)))


def main() -> None:
    """Print how often each question was answered with each certainty."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument("--effect", type=float, default=0.0, help="of the first searcher, in standard errors")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for seed in range(options.studies):
        study = simulated_study(np.random.default_rng(seed), options.effect * ERROR)
        clear = [finding for finding in findings(analyse(study)) if finding.sure in ("clear", "clear in part")]
        counts.update({f"{subject(finding.question, finding.verdict)} ({finding.sure})" for finding in clear})
        if (seed + 1) % 50 == 0:
            print(f"{seed + 1} studies", dict(counts), flush=True)
    print("\n| verdict | clear, share of studies |\n| --- | --- |")
    for name, number in sorted(counts.items()):
        print(f"| {name} | {number / options.studies:.3f} |")


def subject(question: str, verdict: str) -> str:
    """Return a question with the numbers and the calibration it is about, so that each verdict is counted by itself."""
    about = [name for name in ("held-out", "calibration loss", "perplexity", "accuracy") if name in verdict]
    under = [f"under {name}" for name in CALIBRATIONS if f"(under {name})" in verdict]
    named = question in ("Which calibration?", "Which searcher?", "Does a better loss help")
    return f"{question}: {', '.join(about + under)}" if named else question


def simulated_study(rng: np.random.Generator, effect: float = 0.0) -> StudyResult:
    """Return a study in which the first searcher's masks are better by `effect`, and all else is chance."""
    of_draw = {key: SPREAD * rng.normal() for key in itertools.product(CALIBRATIONS, DRAWS)}
    cells = list(_cells(rng, of_draw, effect))
    return StudyResult("s", "s", cells, {"m": Sites.of_equal_layers(30)}, METRICS, {}, {}, contrasts=["a - b"])


def _alike_by_size(rng: np.random.Generator, size: float) -> dict[tuple[str, int, str, str], float]:
    """Return random numbers by calibration, M, searcher and draw, which are much alike for all M."""
    common = {key: rng.normal() for key in itertools.product(CALIBRATIONS, SEARCHERS, DRAWS)}
    return {
        (calibration, remove, searcher, draw): size
        * float(np.sqrt(OF_BOTH_SIZES) * number + np.sqrt(1 - OF_BOTH_SIZES) * rng.normal())
        for (calibration, searcher, draw), number in common.items()
        for remove in SIZES
    }


def _cells(rng: np.random.Generator, of_draw: dict[tuple[str, str], float], effect: float) -> Iterator[CellResult]:
    luck, suits = (_alike_by_size(rng, size) for size in (SPREAD, NOISE))
    for calibration, remove, searcher, draw in suits:
        better = effect if searcher == "a" else 0.0
        quality = 1.0 + luck[calibration, remove, searcher, draw] - better
        held_out = {
            other: quality + suits[calibration, remove, searcher, other] + NOISE * rng.normal()
            for other in DRAWS
            if other != draw
        }
        items = rng.random(N_ITEMS) < 0.5 + 0.05 * rng.normal() + better
        perplexity = float(np.exp(2.0 + of_draw[calibration, draw] + SPREAD * rng.normal() - better))
        accuracy = 100 * items.mean()
        outcome = Outcome(
            removed=tuple(sorted(rng.choice(30, remove, replace=False).tolist())),
            measure=PERPLEXITY,
            dense_loss=0.0,
            loss=quality + NOISE * rng.normal(),
            delta_error=NOISE,
            evaluations=1,
            layer_forwards_alone=1.0,
            layer_forwards_naive=1.0,
            seconds=1.0,
            assessed={"ppl": Estimate(perplexity, 0.01 * perplexity), "acc": Estimate(accuracy, 5.0)},
            items={"acc": tuple((100 * items / N_ITEMS).tolist())},
        )
        yield CellResult(
            "m",
            calibration,
            searcher,
            remove,
            int(draw),  # each draw has another seed, as in studies
            "",
            draw=draw,
            stochastic=True,
            held_out=float(np.mean([*held_out.values()])),
            held_out_by_draw=held_out,
            n_free=30,
            state="finished",
            outcome=outcome,
        )


if __name__ == "__main__":
    main()
