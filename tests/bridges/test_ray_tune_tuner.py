"""Searchers in a real `ray.tune.Tuner`."""

import gc
import math
import threading

import pytest
from ray import tune

from raysearch.bridges.ray_tune import TuneSearcher
from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.searchers.beam import BeamSearcher
from raysearch.searching.driver import run_searcher
from raysearch.testing.searcher_suite import ToyOracle, rugged_loss

PROBLEM = Problem.create(6, 2)
LOSS = rugged_loss(PROBLEM, seed=3)
GREEDY = BeamSearcher(width=1)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _quiet_tuner(one_ray):
    """A Tuner that prints little."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AIR_NEW_OUTPUT", "0")
        patch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
        patch.setenv("TUNE_DISABLE_SIGINT_HANDLER", "1")  # it would stay after the Tuner
        patch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
        yield


def toy(config):
    """Evaluate one mask."""
    return {"loss": LOSS(Mask.of(*config["removed"]))}


def frail_toy(config):
    """Evaluate one mask; fail if it removes layer 0, and report a NaN if it removes layer 1."""
    if 0 in config["removed"]:
        raise RuntimeError("this trial is cursed")
    return {"loss": math.nan} if 1 in config["removed"] else toy(config)


def tuner(trainable, searcher, folder, *callbacks):
    options = tune.TuneConfig(search_alg=searcher, num_samples=-1, max_concurrent_trials=2, reuse_actors=True)
    run = tune.RunConfig(storage_path=str(folder), name="toy", verbose=0, callbacks=list(callbacks))
    return tune.Tuner(trainable, tune_config=options, run_config=run)


def test_a_tuner_finds_what_a_search_finds_and_failed_trials_are_failures(tmp_path):
    searcher = TuneSearcher(GREEDY, PROBLEM)
    results = tuner(frail_toy, searcher, tmp_path).fit()
    assert len(results) == 6 + 5
    assert results.num_errors == 2  # {0}, and {0} together with the best layer
    oracle = ToyOracle(PROBLEM, lambda mask: math.nan if {0, 1} & set(mask) else LOSS(mask))
    assert searcher.mask == run_searcher(GREEDY, PROBLEM, 0, oracle)
    succeeded = {Mask.of(*result.config["removed"]) for result in results if not result.error}
    assert {mask for mask in searcher.losses if not {0, 1} & set(mask)} <= succeeded
    pairs = [result for result in results if not result.error and len(result.config["removed"]) == 2]
    assert min(result.metrics["loss"] for result in pairs if result.metrics["loss"] > -math.inf) == LOSS(searcher.mask)


class Kill(tune.Callback):
    """Ends the Tuner once, from within, as soon as some trials are finished and saved."""

    def __init__(self, folder):
        self.folder = folder
        self.killed = folder / "killed"

    def on_step_begin(self, iteration, trials, **info):
        if self.killed.exists() or sum(trial.status == "TERMINATED" for trial in trials) < 4:
            return
        for thread in threading.enumerate():
            if "(entrypoint)" in thread.name:  # it copies the Tuner's state later, and not atomically
                thread.join()
        if restored(self.folder).losses:
            self.killed.touch()
            raise KeyboardInterrupt


def restored(folder):
    """The searcher as Tune has saved it."""
    searcher = TuneSearcher(GREEDY, PROBLEM)
    searcher.restore_from_dir(str(folder / "toy"))
    return searcher


def test_a_killed_tuner_resumes(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        tuner(toy, TuneSearcher(GREEDY, PROBLEM), tmp_path, Kill(tmp_path)).fit()
    gc.collect()  # frees the actors
    before = restored(tmp_path)
    assert before.mask is None
    assert 0 < len(before.losses) < 6

    results = tune.Tuner.restore(str(tmp_path / "toy"), toy).fit()
    assert restored(tmp_path).mask == run_searcher(GREEDY, PROBLEM, 0, ToyOracle(PROBLEM, LOSS))
    assert 6 + 5 <= len(results) <= 6 + 5 + 2  # trials that were running when it was killed may run twice
