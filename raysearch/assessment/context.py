"""What a model is assessed by, and the means: the ledger and replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from raysearch.assessment.results import Result
from raysearch.assessment.spec import AssessSpec
from raysearch.assessment.task_files import TaskSource
from raysearch.calibration.calibration import Calibration
from raysearch.core.formatting import count, remaining, written
from raysearch.core.mask import Mask
from raysearch.evaluation.costs import head_cost
from raysearch.evaluation.evaluator import Evaluation, Evaluator
from raysearch.evaluation.pool import Pool, PoolFactory
from raysearch.evaluation.prepared_data import ModelFiles
from raysearch.evaluation.progress import Progress
from raysearch.generation.arithmetic import Problem
from raysearch.ledger.assessments import assessment_fingerprint, read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.models.spec import ModelInfo
from raysearch.searchers.base import Round

#: What a stage returns: results by mask, by the name of the metric; and how many numbers had to be computed. A job that
#: fails for good is an `EvaluationError`.
Assessed = tuple[dict[Mask, dict[str, Result]], int]


@dataclass(frozen=True)
class AssessmentPlan:
    """A model and what it is to be assessed by, read, and checked against each other.

    Args:
        cluster: Who computes it, unless somebody else's replicas do; its `cpus_per_replica` names results in any case.
        files: What has been read of the model's files.
        texts: The texts, for perplexity.
        tasks: The tasks to generate answers to.
        sources: The tasks of lm-eval.
        problems: Of the arithmetic probe; none if it is not asked.
        notes: What the user should know of the choice of texts, in sentences.
    """

    spec: AssessSpec
    cluster: PoolFactory
    info: ModelInfo
    files: ModelFiles
    texts: Sequence[Calibration] = ()
    tasks: Sequence[Calibration] = ()
    sources: Sequence[TaskSource] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """The dense model's fingerprint."""
        return self.files.fingerprint

    @property
    def calibrations(self) -> Sequence[Calibration]:
        """All texts and prompts."""
        return [*self.texts, *self.tasks]

    def named(self, identity: Mapping[str, Any]) -> str:
        """Return the ledger's name of a number of this model; `identity` is all that it depends on besides."""
        own = {
            "tokenizer": self.files.tokenizer_fingerprint,
            "writing": self.files.writing_fingerprint,  # some tasks write, or use the chat template
            **self.info.numerics,
            "threads": self.cluster.cpus_per_replica,
        }
        return assessment_fingerprint({**own, **identity})

    def known(self, ledger: Ledger, name: str, masks: Sequence[Mask]) -> dict[Mask, dict[str, Any]]:
        """Return what the ledger has of masks by such a name."""
        return read_assessments(ledger, self.fingerprint, name, masks)

    def name_of(self, source: TaskSource) -> str:
        """Return the ledger's name of a task's results."""
        spec = self.spec
        options = {"limit": spec.task_limit, "shots": spec.shots, "batch_size": spec.batch_size}
        chat = {"chat": True} if spec.chat else {}  # else as it was named before there was a choice
        return self.named({**source.identity, **options, **chat})


@dataclass(frozen=True)
class AssessContext:
    """The masks of one model, what is known of them, and who computes the rest.

    Args:
        masks: Distinct masks, the dense one among them.
        make_pool: Gives the pool when it is first needed; it is not closed.
        on_progress: Told in a line how far it is.
    """

    plan: AssessmentPlan
    masks: Sequence[Mask]
    ledger: Ledger
    make_pool: Callable[[], Pool]
    on_progress: Callable[[str], None]

    def evaluate(self, calibrations: Sequence[Calibration], title: str) -> tuple[dict[Mask, Evaluation], int]:
        """Return evaluations of the masks on calibrations, if any, and how many numbers had to be computed."""
        if not calibrations:
            return {}, 0
        started = time.monotonic()

        def progress(now: Progress) -> None:
            if now.waiting:
                return self.on_progress(f"{title}: {now.waiting}")
            share = now.layer_forwards / max(now.layer_forwards_planned, 1e-9)
            passed = time.monotonic() - started
            left = f", {remaining(passed, share, 1)} left" if 0 < share < 1 else ""
            self.on_progress(
                f"{title}: {share:.0%} of {count(now.masks_planned, 'mask')}, {count(now.n_replicas, 'replica')}"
                f"{written(now.tokens_per_s)}{left}"
            )

        computed = 0
        for one in calibrations:
            known = self.ledger.known(one.fingerprint, self.masks)
            computed += sum(len(known.get(mask, ())) < one.n_shards for mask in self.masks)
        evaluator = Evaluator(
            calibrations,
            self.plan.info.n_layers,
            self.ledger,
            self.make_pool,
            head_cost=head_cost(self.plan.info),
            on_progress=progress,
            owns_pool=False,
        )
        with closing(evaluator):
            return evaluator.evaluate(Round(self.masks)), computed

    def keep(self, name: str, found: Mapping[Mask, Any]) -> None:
        """Make results durable by a name of `plan`."""
        write_assessment(self.ledger, self.plan.fingerprint, name, found)
