"""How near to the ideal does a search with default settings use many replicas? Computed in virtual time, in seconds.

    python experiments/benchmarks/scaling.py
    python experiments/benchmarks/scaling.py --screening off                    each mask on all samples
    python experiments/benchmarks/scaling.py --only demo --cores 8 --late 5     replicas that start one after another

Everything that decides is the real thing: the searcher, the evaluator with its ledger and its screening, the cutting of
units, the scheduler, and how many replicas `cluster.replicas=auto` starts on a machine with so many cores, or GPUs, and
enough memory. Only the replicas are simulated. The time of a unit follows from the parameters that the prefix plan and
the head run. Replicas have different speeds, and the time of each unit varies (log-normal, 5 % each, seeded). A clock
is moved from answer to answer, so the results are the same on any machine. The times of messages, commits and searchers
are left out.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import math
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from raysearch.calibration.batch import Batch
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.cluster.options import ClusterOptions
from raysearch.cluster.scheduler import Call, Scheduler
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.site import Sites
from raysearch.evaluation.costs import head_cost, n_units, passes
from raysearch.evaluation.evaluator import Evaluator
from raysearch.evaluation.pool import Cutter, Pool
from raysearch.evaluation.screening import Screening
from raysearch.evaluation.unit import JobT, MaskUnit, UnitResult
from raysearch.ledger.ledger import Ledger
from raysearch.models.spec import LocatedModel, ModelInfo
from raysearch.searchers.beam import BeamSearcher
from raysearch.searching.driver import run_rounds
from raysearch.searching.forecast import SearchForecast
from raysearch.searching.forecaster import Forecaster
from raysearch.searching.observer import Observer
from raysearch.searching.search_recorder import SearchRecorder

GREEDY = BeamSearcher(width=1)
REMOVE = 5
#: Of the logarithm of a replica's speed, and of that of the time of a unit.
SPEED_SIGMA = JITTER_SIGMA = 0.05


def shape(device: str, n_layers: int, layer: int, head: int, embedding: int, width: int) -> ModelInfo:
    """Return the sizes of a model of this many parameters a layer, in its head and in a separate embedding."""
    model = LocatedModel("simulated", "simulated", "bfloat16", device, location="simulated")
    parameters = n_layers * layer + head + embedding
    sites = Sites.of_layers([layer] * n_layers)
    return ModelInfo(model, sites, parameters, head, head // width, width, None, "bfloat16")


SMOLLM2 = shape("cpu", 30, 3_540_096, 28_311_552, 0, 576)
LLAMA_8B = shape("cuda", 32, 218_112_000, 525_336_576, 525_336_576, 4096)


@dataclass(frozen=True)
class Case:
    """A calibration of random tokens, and the model that it is for."""

    title: str
    info: ModelInfo
    samples: int
    seq_len: int
    flops: float  #: of a replica, by which time passes in seconds

    def calibration(self) -> Calibration:
        """Return it, with shards of the default size."""
        ids = np.zeros((self.samples, self.seq_len), dtype=np.int64)
        scored = np.ones_like(ids, dtype=bool)
        scored[:, 0] = False
        return Calibration.create(PerplexityObjective(), Batch(ids, scored), None, {"case": self.title}, {})

    def seconds(self, masks: Sequence[Mask], tokens: int) -> float:
        """Return what masks take together on a shard of this many tokens, at speed 1."""
        layers, heads = passes(PerplexityObjective(), masks, self.info.sites)
        parameters = layers * self.info.sites.layer_parameters[0] + heads * self.info.head_parameters
        return 2 * parameters * tokens / self.flops


CASES = (
    Case("demo: SmolLM2, 8 x 128", SMOLLM2, 8, 128, 1.6e11),
    Case("SmolLM2, 4 x 128", SMOLLM2, 4, 128, 1.6e11),
    Case("SmolLM2, 16 x 512", SMOLLM2, 16, 512, 1.6e11),
    Case("8B Llama on GPUs, 64 x 2048", LLAMA_8B, 64, 2048, 4.5e14),
)


class Losses:
    """Losses that differ as those of a model do: layers that cost little and much, a little more or less by sample."""

    def __init__(self, n_layers: int, samples: int) -> None:
        rng = np.random.default_rng(0)
        self._layers = rng.lognormal(-2.5, 1.0, n_layers)
        self._layers_by_sample = 0.3 * rng.standard_normal((samples, n_layers))
        self._base = rng.normal(3.7, 0.4, samples)

    def by_sample(self, mask: Mask, samples: Sequence[int], tokens: int) -> np.ndarray:
        """Return the loss of each of some samples of this many scored tokens."""
        rng = np.random.default_rng(zlib.crc32(str(mask).encode()))
        removed = list(mask)
        costs = (self._layers[removed] * (1 + self._layers_by_sample[:, removed])).sum(axis=1)
        together = 0.005 * len(mask) ** 2 * abs(rng.standard_normal())
        return np.asarray(tokens * (self._base + costs + together)[list(samples)])


@dataclass
class Span:
    """A round, or a stage of one, as the clock saw it."""

    began: float
    ended: float = 0.0
    busy_s: float = 0.0
    tail_s: float = 0.0  #: at its end, in which some replica had nothing


@dataclass(eq=False)
class VirtualPool(Pool):
    """Replicas of which only the time passes: `seconds` of a unit by the number of the replica."""

    n_started: int
    seconds: Callable[[MaskUnit, int], float]
    losses: Callable[[MaskUnit], dict[Any, Any]]
    arrivals: Sequence[float]  #: when each has loaded the model
    cuts: bool = True
    spans: list[Span] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self._scheduler = Scheduler()
        self.stats = self._scheduler.stats
        self._events: list[tuple[float, int, Call]] = []
        self._order = count()

    @property
    @override
    def n_replicas(self) -> int:
        return self._scheduler.n_replicas

    @override
    def run(
        self, jobs: Sequence[JobT], calibrations: Sequence[Calibration] = (), cutter: Cutter | None = None
    ) -> Iterator[tuple[JobT, Any] | None]:
        scheduler, span = self._scheduler, Span(self.now)
        self.spans.append(span)
        last_answers = dict.fromkeys(map(str, range(self.n_started)), self.now)
        scheduler.begin(jobs, cutter if self.cuts else None, self.now)
        while not scheduler.is_done:
            if scheduler.must_sync(self.now):
                for call in scheduler.sync(map(str, range(self.n_started)), self.now):
                    arrival = max(self.now, self.arrivals[int(call.replica)])
                    heapq.heappush(self._events, (arrival, next(self._order), call))
            for call in scheduler.assign(self.now):
                seconds = self.seconds(call.job, int(call.replica))
                heapq.heappush(self._events, (self.now + seconds, next(self._order), call))
            self.now, _, call = heapq.heappop(self._events)
            scheduler.account_time(self.now)
            if call.job is None:
                scheduler.answered(call, "this machine", self.now)
                continue
            result = UnitResult(self.losses(call.job), 0, 0, 0, None, self.now - call.since)
            scheduler.answered(call, result, self.now)
            last_answers[call.replica] = span.ended = self.now
            span.busy_s += result.seconds
            yield call.job, result
        span.tail_s = self.now - min(last_answers.values())

    @override
    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def speed(replica: int) -> float:
    """Return the speed of a replica, seeded by its number."""
    return float(np.random.default_rng([1, replica]).lognormal(0, SPEED_SIGMA))


@dataclass(frozen=True)
class Outcome:
    """A search with the replicas that were started."""

    n_replicas: int
    seconds: float
    rounds: Sequence[Sequence[Span]]  #: of each, its stages

    @property
    def tails(self) -> list[float]:
        """Return the share of each round in which some replica has no work."""
        return [
            sum(span.tail_s for span in spans) / sum(span.ended - span.began for span in spans) for spans in self.rounds
        ]

    @property
    def share_without_work(self) -> float:
        """Return the share of the replicas' time in which they have no work, the mean over the rounds."""
        lasted = [sum(span.ended - span.began for span in spans) for spans in self.rounds]
        busy = [sum(span.busy_s for span in spans) for spans in self.rounds]
        return float(np.mean([1 - spent / self.n_replicas / whole for spent, whole in zip(busy, lasted, strict=True)]))


def n_started(case: Case, cores: int) -> int:
    """Return how many replicas the default starts on a machine with so many cores, or GPUs, and enough memory."""
    problem, calibration = Problem.of_model(case.info.sites, REMOVE), case.calibration()
    rounds = Forecaster().forecast(GREEDY, problem, 0, [calibration.objective])
    most = n_units([calibration], SearchForecast(rounds).n_passes(case.info.sites))
    resources = {"CPU": cores, "GPU": cores, "memory": math.inf}
    return ClusterOptions().replica_range(case.info, most, resources).max


def search(case: Case, n_replicas: int, screening: Screening, *, varies: bool = True, late_s: float = 0) -> Outcome:
    """Run a greedy search from an empty ledger.

    Args:
        case: The calibration and the model.
        n_replicas: How many replicas there are.
        screening: As a search has it.
        varies: Whether replicas and units differ in speed, and units are cut; else the time is that of the plain work.
        late_s: How long after the first replica the last one has loaded the model, the others in between.
    """
    calibration = case.calibration()
    sites = case.info.sites
    losses = Losses(len(sites), case.samples)
    samples = [range(shard, case.samples, calibration.n_shards) for shard in range(calibration.n_shards)]

    def seconds(unit: MaskUnit, replica: int) -> float:
        whole = case.seconds(unit.masks, calibration.shards[unit.shard].n_tokens)
        if not varies:
            return whole
        rng = np.random.default_rng(zlib.crc32(repr((unit, replica)).encode()))
        return whole / speed(replica) * float(rng.lognormal(0, JITTER_SIGMA))

    def values(unit: MaskUnit) -> dict[Any, Any]:
        return {mask: losses.by_sample(mask, samples[unit.shard], case.seq_len - 1) for mask in unit.masks}

    arrivals = np.linspace(0, late_s, n_replicas).tolist()
    pool = VirtualPool(n_replicas, seconds, values, arrivals, varies)
    problem = Problem.of_model(sites, REMOVE)
    rounds: list[list[Span]] = []
    in_memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a ledger waits for the disk at each answer
    with tempfile.TemporaryDirectory(dir=in_memory) as folder, closing(Ledger(Path(folder, "ledger.db"))) as ledger:
        evaluator = Evaluator(
            [calibration], sites, ledger, lambda: pool, head_cost=head_cost(case.info), screening=screening
        )
        with closing(evaluator):
            n_spans = 0
            for _ in run_rounds(GREEDY, problem, 0, SearchRecorder(problem, evaluator, Observer(), 0.0)):
                rounds.append(pool.spans[n_spans:])
                n_spans = len(pool.spans)
    return Outcome(n_replicas, pool.now, rounds)


@functools.cache
def work_s(case: Case, screening: Screening) -> float:
    """Return what one replica of speed 1 takes for a search with uncut units."""
    return search(case, 1, screening, varies=False).seconds


def table(cases: Sequence[Case], machines: Sequence[int], screening: Screening, late_s: float) -> Iterator[str]:
    """Yield the lines of a table in Markdown: each case on machines of so many cores, or GPUs."""
    heads = ["calibration", "shards", "cores or GPUs", "replicas", "times one replica", "share of the ideal"]
    yield f"| {' | '.join([*heads, 'time without work', 'tail of a round, median (most)'])} |"
    yield f"|---{'|---:' * (len(heads) + 1)}|"
    for case in cases:
        n_shards = case.calibration().n_shards
        for cores in machines:
            n_replicas = n_started(case, cores)
            outcome = search(case, n_replicas, screening, late_s=late_s)
            share = work_s(case, screening) / sum(map(speed, range(n_replicas))) / outcome.seconds
            tail = f"{np.median(outcome.tails):.0%} ({max(outcome.tails):.0%})"
            measured = [f"{share * n_replicas:.1f}", f"{share:.2f}", f"{outcome.share_without_work:.0%}", tail]
            yield f"| {' | '.join([case.title, *map(str, (n_shards, cores, n_replicas)), *measured])} |"


def numbers(text: str) -> list[int]:
    """Read ``1,8`` as numbers."""
    return [int(word) for word in text.split(",")]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=numbers, default=[1, 2, 4, 8, 16, 64])
    parser.add_argument("--only", default="", help="a part of the titles of calibrations")
    parser.add_argument("--screening", choices=["confident", "off"], default="confident", help="as in conf/screening/")
    parser.add_argument("--late", type=float, default=0, help="seconds between the first and the last replica's start")
    options = parser.parse_args()
    screening = Screening() if options.screening == "confident" else Screening(stages=())
    cases = [case for case in CASES if options.only in case.title]
    for line in table(cases, options.cores, screening, options.late):
        print(line, flush=True)


if __name__ == "__main__":
    main()
