"""Is it better to remove nine layers at once and to train once, or to remove three at a time and to train in turns?

    python experiments/healing/stages.py --data DATA --store STORE [--steps 96] [--draws 0 1 2] [--seq-len 128]

DATA is a folder with c4/calibration.jsonl, c4/evaluation.jsonl and wikitext2/test.jsonl. Both schedules get as many
steps on the same rows, so as many tokens: nine layers at once get all steps after one search, three stages get a third
each. If it is stopped, the same command continues. It writes stages.csv next to this file: for each draw of windows and
each schedule the removed layers, the tokens, and the perplexities of two texts that no search and no training has used.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import raysearch

HERE = Path(__file__).parent
MODEL = "smollm2-135m"
N_REMOVE = 9
SCHEDULES = ((9,), (3, 3, 3))


def healed(arguments: argparse.Namespace, schedule: tuple[int, ...], draw: int) -> raysearch.Search:
    """Search and recover in turns, or return the result from the ledger."""
    n_steps = arguments.steps // len(schedule)
    c4 = arguments.data / "c4"
    texts = {
        "c4": f"data=file data.path={c4 / 'evaluation.jsonl'} data.samples=all data.sampling=sequential",
        "wikitext2": f"data=wikitext2 data.path={arguments.data / 'wikitext2/test.jsonl'} data.split=test "
        "data.allow_evaluation_split=true data.samples=all data.sampling=sequential",
    }
    recover_with = [
        *("data=file", f"data.path={c4 / 'calibration.jsonl'}", f"data.samples={arguments.rows}", "data.part=rest"),
        f"data.seq_len={arguments.seq_len}",
        *(f"recovery.max_steps={n_steps}", f"recovery.epochs={n_steps}", "recovery.patience=null"),
        *("assess=none", f"assess.seq_len={arguments.seq_len}", f"assess.limit={arguments.held_out}"),
        *(f"'assess.texts.{name}={overrides}'" for name, overrides in texts.items()),
        *("assess.probe.enabled=false", f"seed={draw}", f"recovery.seed={draw}"),
    ]
    return raysearch.search(
        f"model={MODEL}",
        f"store={arguments.store}",
        *("data=file", f"data.path={c4 / 'calibration.jsonl'}", "data.part=rest"),
        *(f"data.samples={arguments.windows}", f"data.seq_len={arguments.seq_len}", f"data.seed={draw}"),
        "tracking=none",
        "heal=recover",
        searcher=arguments.searcher,
        remove=N_REMOVE,
        schedule=[*schedule],
        heal={"recover_with": " ".join(recover_with)},
    )


def rows_of(search: raysearch.Search, schedule: tuple[int, ...], draw: int) -> list[dict[str, object]]:
    """Return a row for each text."""
    result = search.result
    assert result.staged is not None, "it has stages"
    (recovery,) = (record for record in search.recoveries() if record.recovery_id == result.staged.recovery_id)
    return [
        {
            "draw": draw,
            "schedule": "+".join(map(str, schedule)),
            "removed": str(result.mask),
            "stages": " ".join(str(stage.removed) for stage in result.staged.stages),
            "steps": recovery.training.steps,
            "tokens": recovery.training.tokens,
            "text": numbers.metric.name,
            "dense": f"{numbers.dense.value:.2f}",
            "pruned": f"{numbers.pruned.value:.2f}",
            "recovered": f"{numbers.recovered.value:.2f}",
            "recovered / dense": "" if numbers.regained is None else f"{numbers.regained.value:.3f}",
            "error": "" if numbers.regained is None else f"{numbers.regained.error or 0:.3f}",
        }
        for numbers in recovery.numbers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--searcher", default="greedy")
    parser.add_argument("--steps", type=int, default=96, help="of training in all, a multiple of 3")
    parser.add_argument("--rows", type=int, default=288, help="windows to train on; all steps repeat them")
    parser.add_argument("--windows", type=int, default=16, help="of the calibration")
    parser.add_argument("--seq-len", type=int, default=128, help="tokens of a window")
    parser.add_argument("--held-out", type=int, default=64, help="windows of each text to measure on")
    parser.add_argument("--draws", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=HERE / "stages.csv")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for draw in arguments.draws:
        for schedule in SCHEDULES:
            rows += rows_of(healed(arguments, schedule, draw), schedule, draw)
            with arguments.out.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, [*rows[0]])
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main()
