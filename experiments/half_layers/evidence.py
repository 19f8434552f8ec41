"""What do pairs, attentions and halves of layers cost, beside whole layers?

    python experiments/half_layers/evidence.py --data DATA --store STORE --model MODEL [--stages search heldout assess]

DATA is a folder with c4/calibration.jsonl, c4/evaluation.jsonl, wikitext2/test.jsonl and files of lm-eval's tasks.
MODEL is smollm2-135m, or a path. `--seq-len 128` searches on longer windows, and compares the masks with those of the
short windows on long windows of other text. `--draws 0` takes one draw of windows. If it is stopped, the same command
continues. The stages write, next to this file, for the model's name, and `NAME-128` for windows of 128 tokens,

    search   paths-NAME.csv     for each draw of windows, searcher and space, the best mask of each size
    heldout  heldout-NAME.csv   the loss of these masks on other text
    speed    speeds-NAME.csv    decoding, prefill and memory of some of them in transformers and llama.cpp
    assess   assessed-NAME.csv  accuracies, the arithmetic probe and perplexities of masks that save as much as layers
    write    written-NAME.csv   what the masks whose speed is measured write: problems of HumanEval and GSM8K
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import raysearch
from raysearch.assessment.results import SearchAssessment
from raysearch.configuration import build
from raysearch.core.mask import Mask
from raysearch.evaluation.session import open_session
from raysearch.evaluation.totals import standard_errors
from raysearch.models.description import describe
from raysearch.models.kv_cache import kv_cache_of
from raysearch.searchers.base import Round

HERE = Path(__file__).parent
#: By model, the searches: the searcher, the space, and the largest size, as `remove=` counts it.
PLANS = {
    "smollm2-135m": [
        ("greedy", "layers", 5),
        ("greedy", "pairs", 5),
        ("beam", "layers", 4),
        ("beam", "pairs", 4),
        ("greedy", "attention", 8),
        ("beam", "attention", 4),
        ("greedy", "halves", 6),
    ],
    "smollm2-135m-128": [("greedy", "attention", 5)],
    "gemma-3-270m": [
        ("greedy", "layers", 4),
        ("greedy", "pairs", 4),
        ("beam", "layers", 4),
        ("beam", "pairs", 4),
        ("greedy", "attention", 6),
        ("greedy", "halves", 4),
    ],
}
SEARCHERS = {"greedy": ["searcher=greedy"], "beam": ["searcher=beam", "searcher.width=2"]}
#: The sizes of masks of layers that are compared with masks of other spaces that save as much.
COMPARED = {"smollm2-135m": (2, 5), "smollm2-135m-128": (), "gemma-3-270m": (2, 4)}
#: The masks whose speed is measured: the space and the size.
TIMED = {
    "smollm2-135m": (("layers", 5), ("attention", 5), ("attention", 8)),
    "smollm2-135m-128": (),
    "gemma-3-270m": (("layers", 2), ("layers", 4), ("pairs", 4), ("attention", 4)),
}
#: The models whose masks are also timed in llama.cpp. Gemma 3 without attentions, or with another order of windows, has
#: no format there.
SERVED = ("smollm2-135m",)
#: The folder with the data `humaneval_indented`.
CONFIGURATION = HERE.parent / "limits_of_layer_pruning" / "conf"
SHORT_TOKENS = 32  # of a window
CONTEXT_TOKENS = 8192  # of the KV cache
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What a run of this script was given."""

    model: str
    data: Path
    store: Path
    seq_len: int
    draws: tuple[int, ...]

    @property
    def name(self) -> str:
        model = Path(self.model).stem
        return model if self.seq_len == SHORT_TOKENS else f"{model}-{self.seq_len}"

    @property
    def overrides(self) -> list[str]:
        return [f"model={self.model}", f"store={self.store}"]

    def table(self, name: str) -> Path:
        return HERE / f"{name}-{self.name}.csv"


def searched(setting: Setting, draw: int, searcher: str, space: str, size: int) -> raysearch.Search:
    """Run a search, or continue it, or return its result from the ledger."""
    windows = ["data=c4", f"data.path={setting.data}/c4/calibration.jsonl", "data.samples=32"]
    windows += [f"data.seq_len={setting.seq_len}", "data.shard_samples=4"]
    return raysearch.search(
        *setting.overrides,
        *windows,
        *SEARCHERS[searcher],
        f"seed={draw}",
        f"space={space}",
        f"remove=1..{size}",
        "tracking=none",
    )


def greedy_search(setting: Setting, draw: int, space: str) -> raysearch.Search:
    """Return the search by greedy that the plan has for a space."""
    sizes = {space: size for searcher, space, size in PLANS[setting.name] if searcher == "greedy"}
    return searched(setting, draw, "greedy", space, sizes[space])


def paths(setting: Setting) -> Iterator[Row]:
    """Yield the best mask of each size, of each search, with what it saves."""
    info = describe(replace(build.score_spec([*setting.overrides, "masks=[[]]"])[0].model, halves=True))
    kv_cache = kv_cache_of(info, CONTEXT_TOKENS, n_sequences=1)
    for searcher, space, size in PLANS[setting.name]:
        for draw in setting.draws:
            result = searched(setting, draw, searcher, space, size).result
            for trial in result.path:
                assert trial.loss is not None, "the best mask of a size has a loss"
                yield {
                    "draw": draw,
                    "searcher": searcher,
                    "space": space,
                    "size": result.space.size_of(trial.mask),
                    "mask": str(trial.mask),
                    "parameters": info.sites.parameters(trial.mask),
                    "kv_bytes": sum(kv_cache.layer_bytes) - kv_cache.size_without(trial.mask, info.sites),
                    "delta": trial.loss - result.dense_loss,
                }


def held_out(setting: Setting) -> Iterator[Row]:
    """Yield the loss over dense of each mask on text that no search has read.

    The error of a difference is that of the mean over windows. `over` is the loss minus that of another mask of the
    same draw, searcher and size: for pairs, that of whole layers; after a search on long windows, that of the search
    on short ones.
    """
    rows: list[Row] = [*read(setting.table("paths"))]
    is_long = setting.seq_len != SHORT_TOKENS
    n_windows, n_tokens = (32, 512) if is_long else (64, 48)
    if is_long:
        short_rows = {key_of(row): row for row in read(replace(setting, seq_len=SHORT_TOKENS).table("paths"))}
        baselines = {key_of(row): short_rows[key_of(row)] for row in rows}
        rows = [{"seq_len": setting.seq_len, **row} for row in rows]
        rows += [{"seq_len": SHORT_TOKENS, **row} for row in baselines.values()]
    else:
        baselines = {key_of({**row, "space": "pairs"}): row for row in rows if row["space"] == "layers"}
    masks = [Mask(), *dict.fromkeys(Mask.parse(row["mask"]) for row in rows)]
    windows = ["data=file", f"data.path={setting.data}/c4/evaluation.jsonl", "data.allow_evaluation_split=true"]
    windows += ["data.sampling=documents", f"data.samples={n_windows}", f"data.seq_len={n_tokens}"]
    typed = json.dumps([mask.parts for mask in masks], separators=(",", ":")).replace('"', "")
    spec, _ = build.score_spec([*setting.overrides, *windows, f"masks={typed}"])
    with closing(open_session(spec, describe(spec.model), lambda progress: None)) as session:
        evaluations = session.evaluator.evaluate(Round(masks))
        (calibration,) = session.calibrations

        def difference(mask: Mask, other_mask: Mask) -> tuple[float, float]:
            if mask == other_mask:
                return 0.0, 0.0
            (error,) = standard_errors(calibration, session.ledger, [mask], other_mask)
            losses = [evaluations[compared_mask].loss for compared_mask in (mask, other_mask)]
            assert error is not None and None not in losses, "all masks have finite losses"
            return losses[0] - losses[1], error

        for row in rows:
            mask = Mask.parse(row["mask"])
            delta, error = difference(mask, Mask())
            entry = {**row, "held_out": delta, "held_out_error": error, "over": "", "over_error": ""}
            is_baseline = is_long and row["seq_len"] == SHORT_TOKENS
            baseline = baselines.get(key_of(row))
            if baseline is not None and not is_baseline:
                entry["over"], entry["over_error"] = difference(mask, Mask.parse(baseline["mask"]))
            yield entry


def key_of(row: Row) -> tuple[str, ...]:
    """Return the draw, the searcher, the space and the size of a row."""
    return tuple(row[name] for name in ("draw", "searcher", "space", "size"))


def equal_savings(rows: Sequence[Row], sizes: Iterable[int]) -> Iterator[tuple[str, Row]]:
    """Yield the masks to compare, each with what it has in common with a mask of whole layers.

    Args:
        rows: The rows of greedy searches of one draw.
        sizes: The sizes of the masks of whole layers.
    """
    for size in sizes:
        (layers,) = (row for row in rows if row["space"] == "layers" and int(row["size"]) == size)
        yield f"{size} layers", layers
        (pairs,) = (row for row in rows if row["space"] == "pairs" and int(row["size"]) == size)
        yield f"{size} layers", pairs
        for saving in ("parameters", "kv_bytes"):
            for space in ("attention", "halves"):
                gaps = {number: abs(int(row[saving]) - int(layers[saving])) for number, row in enumerate(rows)}
                of_space = [number for number, row in enumerate(rows) if row["space"] == space]
                closest = min(of_space, key=gaps.__getitem__, default=None)
                if closest is not None and gaps[closest] <= 0.1 * int(layers[saving]):
                    yield f"{saving} of {size} layers", rows[closest]


def assessed(setting: Setting) -> Iterator[Row]:
    """Yield the numbers of each mask of `equal_savings`, once where two spaces have the same mask."""
    all_rows = [row for row in read(setting.table("paths")) if row["searcher"] == "greedy"]
    options: Row = {
        "texts": {
            "wikitext2": f"data=wikitext2 data.path={setting.data}/wikitext2/test.jsonl "
            "data.allow_evaluation_split=true data.sampling=sequential data.samples=16",
        },
        "tasks": ["arc_easy", "piqa"],
        "data_dir": str(setting.data),
        "seq_len": 256,
        "limit": 60,
        "probe": {"enabled": True, "items": 100, "file": str(setting.data / "arithmetic" / "1dc.jsonl")},
    }
    for draw in setting.draws:
        rows = [row for row in all_rows if int(row["draw"]) == draw]
        compared = [*equal_savings(rows, COMPARED[setting.name])]
        by_mask: dict[str, Row] = {}
        for _, row in compared:
            by_mask.setdefault(row["mask"], row)
        for mask, row in by_mask.items():
            search = greedy_search(setting, draw, row["space"])
            assessment = search.assess("assess=none", remove=int(row["size"]), assess=options)
            savings = "; ".join(dict.fromkeys(saving for saving, other in compared if other["mask"] == mask))
            yield from ({**row, "equal": savings, **number} for number in numbers_beside_dense(assessment))


def numbers_beside_dense(assessment: SearchAssessment) -> Iterator[Row]:
    """Yield each number of a pruned model with its error, and the same number of the dense model."""
    for name, result in assessment.pruned.items():
        numbers = {"metric": name, "value": result.estimate.value, "error": result.estimate.error}
        yield {**numbers, "dense": assessment.dense[name].estimate.value}


def timed_masks(setting: Setting) -> Iterator[tuple[Row, raysearch.Search]]:
    """Yield the rows of the masks of `TIMED`, of one draw, with their searches."""
    for row in read(setting.table("paths")):
        is_timed = (row["space"], int(row["size"])) in TIMED[setting.name]
        if is_timed and (row["searcher"], row["draw"]) == ("greedy", "0"):
            yield row, greedy_search(setting, 0, row["space"])


def written(setting: Setting) -> Iterator[Row]:
    """Yield numbers on the answers of masks of one draw: whether they are right, and how code fails."""
    options: Row = {
        "data_dir": str(setting.data),
        "generation": {
            "gsm8k": "data=gsm8k_cot data.samples=16",
            "humaneval": "data=humaneval_indented data.samples=24",
        },
        "answers": {"max_new_tokens": 64, "run_code": True},
    }
    for row, search in timed_masks(setting):
        assessment = search.assess("assess=none", remove=int(row["size"]), config_dir=CONFIGURATION, assess=options)
        yield from ({**row, **number} for number in numbers_beside_dense(assessment))


def speeds(setting: Setting) -> Iterator[Row]:
    """Yield the speed and memory of masks of one draw, beside the dense model.

    They are taken in transformers, and for the models of `SERVED` in llama.cpp too.
    """
    server = HERE.parents[1] / "tests" / "assessment" / "llama_server.py"
    serving = ["assess.serve=llama.cpp", f"serve.command={sys.executable} {server}"] if setting.name in SERVED else []
    for row, search in timed_masks(setting):
        assessment = search.assess(
            "assess=none",
            *serving,
            remove=int(row["size"]),
            assess={"speed": {"enabled": True}},
        )
        for name, result in assessment.pruned.items():
            numbers = {"metric": name, "value": result.estimate.value, "error": result.estimate.error}
            retention = result.retention
            yield {**row, **numbers, "of_dense": "" if retention is None else retention.value}


def read(table: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with table.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def write(table: Path, rows: Iterable[Row]) -> None:
    """Write rows to a CSV file, each as soon as it is there."""
    with table.open("w", encoding="utf-8", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, [*row], lineterminator="\n")
                writer.writeheader()
            writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
            file.flush()


STAGES = {
    "search": ("paths", paths),
    "heldout": ("heldout", held_out),
    "assess": ("assessed", assessed),
    "speed": ("speeds", speeds),
    "write": ("written", written),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seq-len", type=int, default=SHORT_TOKENS, help="of the windows of the searches, in tokens")
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2], help="of the windows of the searches")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=[*STAGES])
    arguments = parser.parse_args()
    data = arguments.data.absolute()
    setting = Setting(arguments.model, data, arguments.store.absolute(), arguments.seq_len, tuple(arguments.draws))
    for stage in arguments.stages:
        name, rows = STAGES[stage]
        write(setting.table(name), rows(setting))
        print(f"wrote {setting.table(name)}", flush=True)


if __name__ == "__main__":
    main()
