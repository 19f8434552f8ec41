"""The plan of an assessment of a model, and the context that its stages share: the ledger and the replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from raysearch.assessment.results import Result
from raysearch.assessment.serving.serving import Serving
from raysearch.assessment.spec import AssessSpec
from raysearch.assessment.task_files import TaskSource
from raysearch.calibration.calibration import Calibration
from raysearch.core.mask import Mask
from raysearch.evaluation.costs import head_cost
from raysearch.evaluation.evaluator import Evaluation, Evaluator
from raysearch.evaluation.pool import Pool, PoolFactory
from raysearch.evaluation.prepared_data import ModelFiles
from raysearch.evaluation.progress import Progress
from raysearch.generation.arithmetic import ArithmeticProblem
from raysearch.ledger.assessments import assessment_fingerprint, read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.models.spec import ModelInfo
from raysearch.searchers.base import Round
from raysearch.text.numbers import count, remaining, written

#: The return value of a stage: the results by mask and name of the metric, and the number of newly computed numbers. A
#: stage raises an `EvaluationError` if a job fails for good.
Assessed = tuple[dict[Mask, dict[str, Result]], int]


@dataclass(frozen=True)
class AssessmentPlan:
    """A model and the data of its assessment, which were read and checked against each other.

    Args:
        spec: The texts, the tasks and the options.
        cluster: The replicas that compute the assessment, unless the caller has a pool. Its ``cpus_per_replica`` is a
            part of the names of results in any case.
        info: The description of the model.
        files: The model's files, as far as they were read.
        texts: The texts, for perplexity.
        tasks: The tasks to which answers are generated.
        sources: The tasks of lm-eval.
        problems: The problems of the arithmetic probe; empty if it is not enabled.
        notes: Sentences to the user on the choice of texts.
        serving: The runtime in which speed is measured; None for none.
    """

    spec: AssessSpec
    cluster: PoolFactory
    info: ModelInfo
    files: ModelFiles
    texts: Sequence[Calibration] = ()
    tasks: Sequence[Calibration] = ()
    sources: Sequence[TaskSource] = ()
    problems: tuple[ArithmeticProblem, ...] = ()
    notes: tuple[str, ...] = ()
    serving: Serving | None = None

    @property
    def fingerprint(self) -> str:
        """The dense model's fingerprint."""
        return self.files.fingerprint

    @property
    def calibrations(self) -> Sequence[Calibration]:
        """All texts and prompts."""
        return [*self.texts, *self.tasks]

    def named(self, identity: Mapping[str, Any]) -> str:
        """Return the name of a result of this model in the ledger.

        Args:
            identity: All that the result depends on, besides the model and its numerics; JSON values.
        """
        model_identity = {
            "tokenizer": self.files.tokenizer_fingerprint,
            "writing": self.files.writing_fingerprint,  # some tasks generate text, or use the chat template
            **self.info.numerics,
            "threads": self.cluster.cpus_per_replica,
        }
        return assessment_fingerprint({**model_identity, **identity})

    def recorded(self, ledger: Ledger, name: str, masks: Sequence[Mask]) -> dict[Mask, dict[str, Any]]:
        """Return the results that the ledger has.

        Args:
            ledger: An open ledger.
            name: The name of the result, see `named`.
            masks: The masks.

        Returns:
            The recorded result of each mask as plain values. A mask without one is left out.
        """
        return read_assessments(ledger, self.fingerprint, name, masks)

    def name_of(self, source: TaskSource) -> str:
        """Return the name of the results of a task of lm-eval in the ledger."""
        spec = self.spec
        options = {"limit": spec.task_limit, "shots": spec.shots, "batch_size": spec.batch_size}
        chat = {"chat": True} if spec.chat else {}  # without the option, so that results of old ledgers keep their name
        return self.named({**source.identity, **options, **chat})


@dataclass(frozen=True)
class AssessContext:
    """The masks that are assessed, the ledger, and the pool for results that the ledger does not have.

    Args:
        plan: The plan of the assessment.
        masks: Distinct masks, the dense one among them.
        ledger: An open ledger.
        make_pool: Returns the pool when it is first needed; it is not closed.
        on_progress: Called with a line on the progress.
    """

    plan: AssessmentPlan
    masks: Sequence[Mask]
    ledger: Ledger
    make_pool: Callable[[], Pool]
    on_progress: Callable[[str], None]

    def evaluate(self, calibrations: Sequence[Calibration], title: str) -> tuple[dict[Mask, Evaluation], int]:
        """Evaluate the masks on calibrations.

        Args:
            calibrations: The calibrations; an empty sequence gives no evaluations.
            title: The title of the progress line.

        Returns:
            The evaluations by mask, and the number of newly computed numbers.
        """
        if not calibrations:
            return {}, 0
        started = time.monotonic()

        def report(progress: Progress) -> None:
            if progress.waiting:
                return self.on_progress(f"{title}: {progress.waiting}")
            share = progress.layer_forwards / max(progress.layer_forwards_planned, 1e-9)
            elapsed_s = time.monotonic() - started
            time_left = f", {remaining(elapsed_s, share, 1)} left" if 0 < share < 1 else ""
            masks = count(progress.masks_planned, "mask")
            replicas = count(progress.n_replicas, "replica")
            self.on_progress(f"{title}: {share:.0%} of {masks}, {replicas}{written(progress.tokens_per_s)}{time_left}")

        computed = 0
        for calibration in calibrations:
            losses = self.ledger.evaluations(calibration.fingerprint, self.masks)
            computed += sum(len(losses.get(mask, ())) < calibration.n_shards for mask in self.masks)
        evaluator = Evaluator(
            calibrations,
            self.plan.info.sites,
            self.ledger,
            self.make_pool,
            head_cost=head_cost(self.plan.info),
            on_progress=report,
            owns_pool=False,
        )
        with closing(evaluator):
            return evaluator.evaluate(Round(self.masks)), computed

    def record(self, name: str, results: Mapping[Mask, Any]) -> None:
        """Write results to the ledger.

        Args:
            name: The name of the results, see `AssessmentPlan.named`.
            results: The results by mask, plain values.
        """
        write_assessment(self.ledger, self.plan.fingerprint, name, results)
