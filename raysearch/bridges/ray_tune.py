"""Any searcher of raysearch as a search algorithm of Ray Tune, whose trials each evaluate one mask.

`raysearch.bridges.tune_algorithm` is the reverse: Tune's search algorithms as searchers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray.tune
from numpy.typing import NDArray

from raysearch.core.mask import Mask
from raysearch.core.problem import Problem
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.searchers.base import Failed, Loss, Remark, Round, Scores, Searcher, SearchGenerator
from raysearch.searching.driver import check_requests


class TuneSearcher(ray.tune.search.Searcher):
    """Adapts a searcher to `ray.tune.Tuner`; each Tune trial evaluates one mask.

    The configuration of a Tune trial lists what to remove as ``removed``: layers, and halves such as ``17a``. The Tune
    trial reports the loss:

        searcher = TuneSearcher(BeamSearcher(width=1), Problem.create(n_layers=30, remove=5))
        options = TuneConfig(search_alg=searcher, num_samples=-1, max_concurrent_trials=4)
        Tuner(lambda config: {"loss": loss_of(config["removed"])}, tune_config=options).fit()
        searcher.mask

    With ``num_samples=-1`` the experiment ends with the search. A Tune trial that fails, or reports no finite loss, is
    a failed evaluation. Only answers are saved and pickled; a restored searcher replays them. ``Tuner.restore(path,
    …)`` works on a copy; ``searcher.restore_from_dir(path)`` reads its results.

    Args:
        searcher: The searcher that proposes the masks.
        problem: The space of legal masks.
        seed: The seed of the searcher's random numbers.
        metric: The name under which Tune trials report their loss.
        measure: A function that computes a statistic of the dense model; only some searchers need it. Its results are
            saved and pickled, but not the function.

    Attributes:
        mask: The mask that the search returned; None until its end.
        remarks: The values that the searcher recorded, by name.
    """

    def __init__(
        self,
        searcher: Searcher,
        problem: Problem,
        seed: int = 0,
        metric: str = "loss",
        measure: Callable[[Statistic], NDArray[np.float64]] | None = None,
    ) -> None:
        super().__init__(metric=metric, mode="min")
        self.mask: Mask | None = None  # at the end of the search
        self.remarks: dict[str, float | str | list[float]] = {}
        self._searcher = searcher
        self._problem = problem
        self._seed = seed
        self._measure = measure
        self._outcomes: dict[Mask, Loss | Failed] = {}
        self._statistics: dict[Statistic, NDArray[np.float64]] = {}
        self._running: dict[str, Mask] = {}  # by the id of the Tune trial
        self._steps: SearchGenerator | None = None
        self._request: Round | Statistic | Remark | None = None

    @property
    def losses(self) -> dict[Mask, float]:
        """All losses known so far."""
        return {mask: outcome.value for mask, outcome in self._outcomes.items() if isinstance(outcome, Loss)}

    def suggest(self, trial_id: str) -> Any:
        """Return the next mask of the current round; None while all of them run; FINISHED at the end of the search."""
        unknown = self._unknown()
        if self.mask is not None:
            return self.FINISHED
        running = self._running.values()
        mask = next((mask for mask in unknown if mask not in running), None)
        if mask is None:
            return None
        self._running[trial_id] = mask
        return {"removed": mask.parts}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Accept a Tune trial's report; if a mask runs twice after a restore, the first answer is kept.

        Args:
            trial_id: The id with which `suggest` was called.
            result: The report of the Tune trial, with its loss; None if it reported nothing.
            error: Whether the Tune trial failed.
        """
        result = result or {}
        mask = self._running.pop(trial_id, None)
        if mask is None and "config/removed" in result:  # from before a restore; Tune flattens results
            mask = Mask.of(*result["config/removed"])
        if mask is not None:
            self._outcomes.setdefault(mask, _outcome(result.get(self.metric), self.metric, error))

    def save(self, checkpoint_path: str) -> None:
        """Write all answers, the remarks and the best mask as JSON."""
        record = {
            "masks": {str(mask): _to_json(outcome) for mask, outcome in self._outcomes.items()},
            "statistics": {str(statistic): rows.tolist() for statistic, rows in self._statistics.items()},
            "remarks": self.remarks,
            "found": None if self.mask is None else str(self.mask),
        }
        Path(checkpoint_path).write_text(json.dumps(record), encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Start over with the answers of `save`."""
        record = json.loads(Path(checkpoint_path).read_text(encoding="utf-8"))
        self._outcomes = {
            Mask.parse(text): Failed(value) if isinstance(value, str) else Loss(value)
            for text, value in record["masks"].items()
        }
        self._statistics = {Statistic(name): np.array(rows) for name, rows in record["statistics"].items()}
        self.remarks = record["remarks"]
        self.mask = None if record["found"] is None else Mask.parse(record["found"])
        self._steps = None
        self._request = None
        self._running = {}

    def __getstate__(self) -> dict[str, Any]:
        # A generator cannot be pickled, and the handle of a dead actor cannot be unpickled.
        return {**self.__dict__, "_steps": None, "_request": None, "_running": {}, "_measure": None}

    def _unknown(self) -> list[Mask]:
        """Advance the searcher to a round with unknown masks, and return these; an empty list at its end."""
        while self.mask is None:
            if isinstance(self._request, Round):
                unknown = [mask for mask in self._request.masks if mask not in self._outcomes]
                if unknown:
                    return unknown
            if self._steps is None:
                self._steps = check_requests(self._searcher, self._problem, self._seed)
            answer = self._answer()
            try:
                self._request = self._steps.send(answer)
            except StopIteration as stop:
                self.mask = stop.value
            except BaseException:
                self._steps = self._request = None  # the next call raises again
                raise
        return []

    def _answer(self) -> Any:
        match self._request:
            case Round() as proposed:
                return Scores(proposed, {mask: self._outcomes[mask] for mask in proposed.masks})
            case Statistic() as statistic:
                if statistic not in self._statistics:
                    if self._measure is None:
                        raise UserError(
                            f"measure=None cannot compute the {statistic} that {type(self._searcher).__name__} needs; "
                            "give a function that computes it"
                        )
                    self._statistics[statistic] = self._measure(statistic)
                return self._statistics[statistic]
            case Remark(name, value):
                self.remarks[name] = value
        return None


def _outcome(value: Any, metric: str, error: bool) -> Loss | Failed:
    """Return the outcome that a Tune trial reported."""
    if error:
        return Failed("the trial failed")
    if value is None:
        return Failed(f"the trial reported no {metric}")
    return Loss(float(value)) if math.isfinite(value) else Failed(f"the {metric} is {value}")


def _to_json(outcome: Loss | Failed) -> float | str:
    """Return a loss as a number, and a failure as its cause."""
    match outcome:
        case Loss(loss):
            return loss
        case Failed(cause):
            return cause
