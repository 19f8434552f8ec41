"""How near to perfect do replicas share a round? The real pool and actors, on masks that take their time asleep.

python experiments/benchmarks/elastic_scale.py --replicas 1,8,16,32,64 --cutting yes,no
"""

from __future__ import annotations

import argparse
import csv
import functools
import os
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import ray
from typing_extensions import override

from raysearch.cluster.actor import Recipe, installed_versions
from raysearch.cluster.fleet import Fleet, Needs
from raysearch.cluster.pool import RayPool, Replicas
from raysearch.cluster.scheduler import Demand
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.evaluation.cutting import cut
from raysearch.evaluation.pool import Cutter
from raysearch.evaluation.prefix import plan_prefixes
from raysearch.evaluation.unit import Job, MaskUnit, UnitResult

N_LAYERS = 32
SITES = Sites.of_equal_layers(N_LAYERS)
#: What the head costs in runs of a layer: that of an 8B Llama.
HEAD = 2.4
#: Of the logarithm of a replica's speed, and of that of the time of a unit.
SPEED_SIGMA = JITTER_SIGMA = 0.05


def rounds() -> dict[str, list[Mask]]:
    """Return rounds like those of searchers, each in mask order."""
    rng = np.random.default_rng(0)

    def some(layers: int) -> Mask:
        return Mask.of(*rng.choice(N_LAYERS, layers, replace=False).tolist())

    parents = [some(3) for _ in range(5)]
    return {
        "singles (greedy, first round)": sorted([Mask(), *(Mask.of(layer) for layer in range(N_LAYERS))]),
        "children of one (greedy, fourth round)": sorted(children(parents[:1])),
        "children of five (beam)": sorted(children(parents)),
        "population of 20 (genetic)": sorted({some(7) for _ in range(20)}),
        "one mask (Bayesian)": [some(7)],
    }


def children(parents: Sequence[Mask]) -> set[Mask]:
    """Return the masks that remove one more layer."""
    return {mask | [layer] for mask in parents for layer in range(N_LAYERS) if layer not in mask}


@functools.cache
def work(masks: tuple[Mask, ...]) -> float:
    """Return the cost of masks on a shard, in layer-forwards."""
    return plan_prefixes(masks, SITES).layer_forwards + HEAD * len(masks)


@dataclass(frozen=True)
class Pricing:
    """How long units take; it travels in the place of a calibration's fingerprint.

    Args:
        layer_s: Of a layer-forward, at speed 1.
        slowest: The speed of replica 0, as a share of what it would be.
    """

    layer_s: float
    slowest: float

    def __str__(self) -> str:
        return f"{self.layer_s!r} {self.slowest!r}"

    def speed(self, replica: int) -> float:
        """Return the speed of a replica, seeded by its number."""
        speed = float(np.random.default_rng([1, replica]).lognormal(0, SPEED_SIGMA))
        return speed * self.slowest if replica == 0 else speed


@dataclass(frozen=True)
class SleepingReplica:
    """Takes as long as a model would, and computes nothing."""

    number: int

    def evaluate(self, unit: MaskUnit) -> UnitResult:
        started = time.perf_counter()
        pricing = Pricing(*map(float, unit.calibration.split()))
        jitter = np.random.default_rng(zlib.crc32(repr((unit, self.number)).encode())).lognormal(0, JITTER_SIGMA)
        seconds = work(unit.masks) * pricing.layer_s / pricing.speed(self.number) * jitter
        time.sleep(max(0.0, seconds - (time.perf_counter() - started)))
        return UnitResult({}, plan_prefixes(unit.masks, SITES).layer_forwards, len(unit.masks), 0, None, seconds)


def make_replica(folder: str, packed: None) -> Any:
    """Return the next replica: its number is the first that no other process has taken."""
    for number in range(10_000):
        try:
            os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_EXCL))
            return SleepingReplica(number)
        except FileExistsError:
            continue
    raise RuntimeError(f"{folder} is full")


@dataclass(frozen=True)
class Some(Fleet):
    """The first few of all replicas, as a fleet."""

    members: Mapping[str, Any]

    @override
    def sync(self, pool: str, demand: Demand) -> Mapping[str, Any]:
        """Return these replicas, whatever the demand."""
        assert not demand.lost, "a replica has died"
        return self.members


@dataclass(frozen=True)
class Row:
    """The measurements of a round."""

    round: str
    replicas: int
    shards: int
    slowest: float
    cutting: bool
    units: int
    ideal_s: float
    wall_s: float
    efficiency: float
    extra_layer_forwards: float  # of cutting, as a share of the uncut plans'
    dispatch_ms: float  # CPU of the driver by unit


def measure(
    pool: RayPool, name: str, n_replicas: int, n_shards: int, slowest: float, cuts: bool, ideal_s: float
) -> Row:
    """Run a round that would take `ideal_s` seconds if the work were perfectly divided by speed."""
    masks = rounds()[name]
    numbers = range(n_replicas)
    speed = sum(Pricing(1, slowest).speed(number) for number in numbers)
    whole = work(tuple(masks)) * n_shards
    pricing = Pricing(ideal_s * speed / whole, slowest)
    units = [MaskUnit(str(pricing), shard, tuple(masks)) for shard in range(n_shards)]
    cutter: Cutter | None = functools.partial(cut, sites=SITES, head_cost=HEAD) if cuts else None
    started, cpu = time.perf_counter(), time.process_time()
    done = [answer for answer in pool.run(units, cutter=cutter) if answer is not None]
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    evaluated = sorted((unit.shard, mask) for unit, _ in done if isinstance(unit, MaskUnit) for mask in unit.masks)
    assert evaluated == [(shard, mask) for shard in range(n_shards) for mask in masks], "every mask once on every shard"
    extra = sum(work(unit.masks) for unit, _ in done if isinstance(unit, MaskUnit)) / whole - 1
    return Row(
        *(name, n_replicas, n_shards, slowest, cuts, len(done), ideal_s, wall_s, ideal_s / wall_s, extra),
        dispatch_ms=1e3 * cpu_s / len(done),
    )


def load(fleet: Fleet, recipe: list[Any], most: int) -> list[Any]:
    """Return all actors with their replicas, in the order of their numbers."""
    actors = list(fleet.sync("loading", Demand(most)).values())
    ray.get([actor.load.remote("loading", recipe) for actor in actors])
    numbers = ray.get([actor.run.remote("loading", recipe, Number(), []) for actor in actors])
    return [actor for _, actor in sorted(zip(numbers, actors, strict=True), key=lambda pair: pair[0])]


@dataclass(frozen=True)
class Number(Job):
    """Asks a replica for its number."""

    def run(self, replica: Any) -> int:
        return int(replica.number)


def run_all(options: argparse.Namespace) -> Iterator[Row]:
    """Run every round in every setting."""
    most = max(options.replicas)
    ray.init(num_cpus=most, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        recipe = [ray.put(Recipe(functools.partial(make_replica, folder), None, installed_versions()))]
        fleet = Fleet(most, most, Needs(cpus=1, gpus=0), idle_s=3600)
        actors = load(fleet, recipe, most)
        for n_replicas in options.replicas:
            some = Some({str(number): actor for number, actor in enumerate(actors[:n_replicas])})
            pool = RayPool(Replicas(some, recipe, n_replicas))
            while pool.n_replicas < n_replicas:  # they have loaded the model, but each pool waits for them
                list(pool.run([MaskUnit(str(Pricing(0, 1)), shard, (Mask(),)) for shard in range(n_replicas)]))
            for n_shards in options.shards:
                for slowest in options.slowest:
                    for name, masks in rounds().items():
                        for cuts in options.cutting if len(masks) > 1 else (False,):
                            yield measure(pool, name, n_replicas, n_shards, slowest, cuts, options.seconds)
        fleet.close()
    ray.shutdown()


#: The setting of a measurement: replicas, shards, speed of the slowest, whether units are cut, round.
Setting = tuple[int, int, float, bool, str]


def read(file: Path) -> dict[Setting, list[float]]:
    """Return the efficiencies that were measured in each setting."""
    efficiencies: dict[Setting, list[float]] = {}
    with file.open(newline="", encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            size = int(line["replicas"]), int(line["shards"]), float(line["slowest"])
            setting = (*size, line["cutting"] == "True", line["round"])
            efficiencies.setdefault(setting, []).append(float(line["efficiency"]))
    return efficiencies


def table(efficiencies: Mapping[Setting, Sequence[float]]) -> str:
    """Return the medians in Markdown: a line for each round and setting, a column for each size."""
    sizes = sorted({(replicas, shards) for replicas, shards, *_ in efficiencies})
    rows = sorted({(-slowest, not cutting, name) for _, _, slowest, cutting, name in efficiencies})
    heads = ["slowest replica", "cut", "round", *(f"{replicas} on {shards}" for replicas, shards in sizes)]
    lines = [heads, ["---"] * len(heads)]
    for slow, whole, name in rows:
        cells = [efficiencies.get((*size, -slow, not whole, name)) for size in sizes]
        texts = ["" if cell is None else f"{np.median(cell):.2f}" for cell in cells]
        lines.append(["half speed" if slow > -1 else "as any", "no" if whole else "yes", name, *texts])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plot(efficiencies: Mapping[Setting, Sequence[float]], file: Path) -> None:
    """Draw the medians by the number of replicas, on 64 shards."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for panel, slow in zip(panels, (1.0, 0.5), strict=True):
        panel.set(title="speeds vary by 5 %" if slow == 1 else "and one replica at half speed", xlabel="replicas")
        for number, name in enumerate(rounds()):
            for cuts, style in (True, "-o"), (False, ":o"):
                line = sorted(
                    (replicas, np.median(efficiencies[replicas, shards, slowest, cutting, kind]))
                    for replicas, shards, slowest, cutting, kind in efficiencies
                    if (shards, slowest, cutting, kind) == (64, slow, cuts, name)
                )
                label = name if cuts or "one mask" in name else None
                if line:
                    panel.plot(*zip(*line, strict=True), style, color=f"C{number}", label=label, markersize=3)
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks := [1, 8, 16, 32, 64], map(str, ticks))
        panel.set_ylim(0, 1.02)
    panels[0].set_ylabel("ideal time / time (dotted: not cut)")
    panels[0].legend(fontsize="small", loc="lower left")
    figure.savefig(file, dpi=100)


def numbers(text: str) -> list[int]:
    """Return the numbers of a text such as ``1,8``."""
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=numbers, default=[1, 8, 16, 32, 64])
    parser.add_argument("--shards", type=numbers, default=[64])
    parser.add_argument("--slowest", type=lambda text: [float(word) for word in text.split(",")], default=[1.0, 0.5])
    parser.add_argument(
        "--cutting", type=lambda text: [word == "yes" for word in text.split(",")], default=[False, True]
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="the ideal time of a round")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"), help="rows are added to it")
    parser.add_argument(
        "--report", action="store_true", help="measure nothing; print the table and draw the figure of --out"
    )
    options = parser.parse_args()
    if options.report:
        efficiencies = read(options.out)
        plot(efficiencies, options.out.with_suffix(".png"))
        print(table(efficiencies), end="")
        return
    fresh = not options.out.exists()
    with options.out.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        if fresh:
            writer.writeheader()
        for row in run_all(options):
            writer.writerow(asdict(row))
            file.flush()
            print(
                f"{row.round}: {row.replicas} replicas, {row.shards} shards, slowest {row.slowest:g}, "
                f"cutting {row.cutting}: {row.efficiency:.3f} ({row.dispatch_ms:.1f} ms a unit)",
                flush=True,
            )


if __name__ == "__main__":
    from elastic_scale import main  # as a module that replicas can import, too

    main()
