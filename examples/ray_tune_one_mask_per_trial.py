"""A `ray.tune.Tuner` whose trials are masks, and an actor that keeps the model loaded and evaluates them.

    python examples/ray_tune_one_mask_per_trial.py
    python examples/ray_tune_one_mask_per_trial.py searcher=beam remove=3 data.samples=8 data.seq_len=256

The arguments are those of `raysearch search`. That command needs no Tuner: it uses its replicas directly, and the
masks of a round share their prefixes. Use a Tuner if you need its trials, callbacks and restore.
"""

import argparse
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray import tune

import raysearch
from raysearch.bridges.ray_tune import TuneSearcher
from raysearch.configuration import build
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic
from raysearch.errors import EvaluationError
from raysearch.evaluation.session import open_session
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.models.description import describe
from raysearch.searchers.base import Round

#: Small enough for a laptop. The actor is the replica, so the search needs no other actors.
DEFAULTS = ["remove=2", "model.dtype=bfloat16", "data.samples=2", "data.seq_len=64", "cluster=inline", "tracking=none"]


class EvaluationActor:
    """Load the model once, and look masks up in the ledger before computing them."""

    def __init__(self, spec: EvaluationSpec) -> None:
        self._session = open_session(spec, describe(spec.model), lambda progress: None)

    def loss(self, removed: list[int]) -> float:
        """Return the loss without these layers, in nats per token."""
        (evaluation,) = self._session.evaluator.evaluate(Round([Mask.of(*removed)])).values()
        if evaluation.loss is None:
            raise EvaluationError(str(evaluation.failure))
        return evaluation.loss

    def measure(self, statistic: Statistic) -> NDArray[np.float64]:
        """Return a statistic of the dense model."""
        return self._session.evaluator.measure(statistic)

    def close(self) -> None:
        """Close the ledger."""
        self._session.close()


def trial(config: dict[str, Any], evaluation: Any) -> dict[str, float]:
    """Return the loss of a trial's mask. The trial holds no model, so Tune may run it in any process."""
    return {"loss": ray.get(evaluation.loss.remote(config["removed"]))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="see raysearch search")
    parser.add_argument("--concurrent", type=int, default=2, help="trials at a time; the actor evaluates one by one")
    options = parser.parse_args()
    overrides = [*DEFAULTS, *options.overrides]

    spec = build.search_spec(overrides)
    info = describe(spec.evaluation.model)
    problem = spec.problem(info)

    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    # Each trial reserves a CPU while it waits for the actor, so the actor itself must not need one.
    evaluation: Any = ray.remote(num_cpus=0, num_gpus=int(info.model.on_gpu))(EvaluationActor).remote(spec.evaluation)
    print(f"dense: {ray.get(evaluation.loss.remote([])):.4f} nats per token")  # this waits until the model is loaded

    def measure(statistic: Statistic) -> NDArray[np.float64]:
        return ray.get(evaluation.measure.remote(statistic))

    searcher = TuneSearcher(spec.searcher, problem, spec.seed, measure=measure)
    tuner = tune.Tuner(
        tune.with_parameters(trial, evaluation=evaluation),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            num_samples=-1,  # as many as the searcher requests
            max_concurrent_trials=options.concurrent,
            reuse_actors=True,  # a new process for each trial takes a second or two
        ),
        run_config=tune.RunConfig(storage_path=str(Path(spec.config["store"]).resolve() / "ray_tune"), verbose=0),
    )
    started = time.perf_counter()
    results = tuner.fit()
    seconds = time.perf_counter() - started
    print(f"Tuner: {searcher.mask} after {len(results)} trials of {seconds / len(results):.2f} s")
    ray.get(evaluation.close.remote())

    result = raysearch.search(*overrides).result
    counts = result.work.evaluations
    print(f"raysearch search: {result.mask}; of {counts.requested} evaluations the ledger had {counts.cached}")
    if searcher.mask != Mask.of(*result.removed):
        raise SystemExit("they differ")


if __name__ == "__main__":
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # no tables of trials
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # one file for each trial instead of six
    main()
