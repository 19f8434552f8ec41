"""Does it pay to search for masks as repaired by the scales of their cuts (repair=scale)?

    python experiments/healing/scale.py --data DATA --store STORE [--draws 0 1 2] [--samples 32] [--seq-len 128]

DATA is a folder with c4/calibration.jsonl and c4/evaluation.jsonl. For each draw of windows, greedy removes layers once
without and once with the repair. Masks are then judged by other documents of C4, each without and with its factors,
which are those of the draw, as in an export. If it is stopped, the same command continues. It writes scale.csv next to
this file: for each draw, size and search the mask, its factors, and its losses over the dense model's.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

import raysearch
from raysearch.configuration import build
from raysearch.core.mask import Mask
from raysearch.core.scale import REPAIRS, Scale, Scales, scales_text
from raysearch.evaluation.prepared_data import prepare_data
from raysearch.evaluation.replica import Replica, make_replica
from raysearch.evaluation.unit import MaskUnit
from raysearch.models.description import describe
from raysearch.stats.ratio import standard_error

MODEL = "smollm2-135m"
TABLE = Path(__file__).with_suffix(".csv")


def overrides(arguments: argparse.Namespace, file: str, n_samples: int, draw: int) -> list[str]:
    """Return the overrides of windows of C4."""
    return [
        f"model={MODEL}",
        "model.dtype=float32",
        "cluster=inline",
        f"store={arguments.store}",
        *("data=file", f"data.path={arguments.data / 'c4' / file}", "data.allow_evaluation_split=true"),
        *("data.sampling=documents", f"data.samples={n_samples}", f"data.seq_len={arguments.seq_len}"),
        f"data.seed={draw}",
    ]


class HeldOut:
    """Text that no search has read, and a model that is judged by it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        windows = overrides(arguments, "evaluation.jsonl", arguments.held_out, draw=0)
        spec, _ = build.score_spec([*windows, "masks=[[]]"])
        info = describe(spec.model)
        (self._samples,) = prepare_data(spec, info).calibrations
        self._replica: Replica = make_replica(info.model, threads=1)
        self._replica.calibrations[self._samples.fingerprint] = self._samples
        self._n_layers = info.sites.n_layers
        self._losses: dict[tuple[Mask, tuple[Scale, ...]], npt.NDArray[np.float64]] = {}

    def losses(self, mask: Mask, scales: tuple[Scale, ...]) -> npt.NDArray[np.float64]:
        """Return the loss of each window without a mask's layers, in nats, with the states multiplied at its cuts."""
        key = mask, scales
        if key not in self._losses:
            shards = []
            for shard in range(self._samples.n_shards):
                factors = Scales(self._n_layers, scales) if scales else None
                unit = MaskUnit(self._samples.fingerprint, shard, (mask,), factors)
                shards.append(self._replica.evaluate(unit).values[mask])
            self._losses[key] = np.concatenate(shards)
        return self._losses[key]

    def difference(self, losses: npt.NDArray[np.float64], other_losses: npt.NDArray[np.float64]) -> tuple[float, float]:
        """Return the difference of two losses in nats per token, and its standard error over the windows."""
        weights = np.concatenate([self._samples.weights(shard) for shard in range(self._samples.n_shards)])
        differences = losses - other_losses
        return float(differences.sum() / weights.sum()), standard_error(differences, weights)


def rows_of(arguments: argparse.Namespace, draw: int, held_out: HeldOut) -> Iterator[Mapping[str, object]]:
    """Yield the best mask of each size, without and with the repair in the search."""
    windows = overrides(arguments, "calibration.jsonl", arguments.samples, draw)
    searches = {
        repair: raysearch.search(
            *windows, "tracking=none", f"repair={repair}", searcher="greedy", remove=arguments.remove
        )
        for repair in REPAIRS
    }
    dense = held_out.losses(Mask(), ())
    for size in range(1, arguments.remove + 1):
        unscaled_mask = searches["none"].result.best_by_size[size].mask
        baseline = held_out.losses(unscaled_mask, ())
        for repair, search in searches.items():
            result = search.result
            trial = result.best_by_size[size]
            mask = trial.mask
            (score,) = raysearch.score(*windows, "repair=scale", masks=[mask.parts])
            scaled = held_out.losses(mask, score.scales)
            row: dict[str, object] = {"draw": draw, "size": size, "repair": repair, "mask": mask}
            row |= {"factors": scales_text(score.scales), "calibration": trial.delta}
            row |= {"calibration_scaled": score.loss - result.dense_loss}
            pairs = {
                "held_out": (held_out.losses(mask, ()), dense),
                "held_out_scaled": (scaled, dense),
                "scaled_over_unscaled": (scaled, held_out.losses(mask, ())),
                "scaled_over_found_without": (scaled, baseline),
            }
            for name, (losses, other_losses) in pairs.items():
                row[name], row[f"{name}_error"] = held_out.difference(losses, other_losses)
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--samples", type=int, default=32, help="windows of a search")
    parser.add_argument("--held-out", type=int, default=64, help="windows of other documents")
    parser.add_argument("--seq-len", type=int, default=128, help="tokens of a window")
    parser.add_argument("--remove", type=int, default=5, help="the largest number of removed layers")
    parser.add_argument("--table", type=Path, default=TABLE, help="the file to write")
    arguments = parser.parse_args()
    held_out = HeldOut(arguments)
    rows = [row for draw in arguments.draws for row in rows_of(arguments, draw, held_out)]
    with arguments.table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
    print(f"wrote {arguments.table}")


if __name__ == "__main__":
    main()
