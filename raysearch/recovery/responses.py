"""Self-generated responses: the dense model answers the prompts itself, on the replicas, each prompt once.

Source: section 5 of `On the Limits of Layer Pruning for Generative Reasoning`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from raysearch.assessment.context import AssessmentPlan
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.evaluation.pool import Pool
from raysearch.evaluation.replica import Replica, in_memory
from raysearch.evaluation.unit import Job
from raysearch.generation.prompt import Decoding, Prompt, Written
from raysearch.ledger.assessments import read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.models.loading import quiet
from raysearch.recovery.progress import run_jobs
from raysearch.recovery.prompts import Question
from raysearch.recovery.spec import RecoveryOptions

#: Prompts of a job: what is lost when a replica dies. On a GPU it has some times the rows that are written at once, so
#: that new ones take the places of those that have ended, but leaves work to as many replicas as there may be.
_AT_ONCE, _AT_ONCE_ON_GPU, _JOBS_ON_GPU = 32, (128, 512), 16
_Kept = dict[str, list[Written]]  # what the ledger has of a job


@dataclass(frozen=True)
class AnswerJob(Job):
    """A job that continues prompts with the dense model."""

    prompts: tuple[Prompt, ...]
    decoding: Decoding

    @override
    def run(self, replica: Replica) -> list[Written]:
        """Write the answers; where memory does not hold so many rows at once, half as many, which is remembered."""
        from raysearch.generation.decoding import generate, rows_at_once

        def rows() -> int:
            return min(replica.texts_at_once or rows_at_once(replica.stack.model), len(self.prompts))

        def write() -> list[Written]:
            with quiet(), replica.stack.bypassed(Mask()) as model:
                return generate(model, replica.tokenizer, self.prompts, self.decoding, rows())[0]

        def halve() -> None:
            if rows() == 1:
                longest = max(len(one.ids) for one in self.prompts)
                raise UserError(
                    f"recovery.max_new_tokens={max(one.max_new_tokens for one in self.prompts)} after a prompt of "
                    f"{longest} tokens is more than memory holds, even one answer at once; use less, or more memory a "
                    "replica (cluster.gpus_per_replica=…)"
                )
            replica.texts_at_once = rows() // 2

        return in_memory(write, halve)

    def __str__(self) -> str:
        return f"answers to {len(self.prompts)} prompts"


def write_answers(
    questions: Sequence[Question],
    options: RecoveryOptions,
    plan: AssessmentPlan,
    ledger: Ledger,
    replicas: Callable[[], Pool],
    on_progress: Callable[[str], None],
) -> tuple[list[Written], int]:
    """Return the dense model's answers to the questions, in order, and how many were written now.

    Every answer is in the ledger as soon as it is written, and `replicas` gives the pool when it is first needed.
    """
    decoding = Decoding(options.temperature, 0, options.top_p, options.seed)
    # Prompts of like length beside each other; an answer depends on its prompt and its seed.
    order = sorted(range(len(questions)), key=lambda place: (len(questions[place].ids), questions[place].ids))
    how = {key: getattr(options, key) for key in ("temperature", "top_p", "seed", "max_new_tokens")}
    jobs, at_once = list[AnswerJob](), _prompts_of_job(len(order), on_gpu=plan.info.model.on_gpu)
    for start in range(0, len(order), at_once):
        places = order[start : start + at_once]
        prompts = tuple(Prompt(questions[place].ids, options.max_new_tokens) for place in places)
        jobs.append(AnswerJob(prompts, decoding))
    names = {job: plan.named({"answers": [one.ids for one in job.prompts], **how}) for job in jobs}  # equal ones once
    model, found = plan.fingerprint, dict[AnswerJob, list[Written]]()
    for job, name in names.items():
        if known := read_assessments(ledger, model, name, [Mask()], _Kept):
            found[job] = known[Mask()]["answers"]
    missing = [job for job in names if job not in found]
    for job, written in run_jobs(missing, replicas, "answers", on_progress):
        write_assessment(ledger, model, names[job], {Mask(): {"answers": written}}, _Kept)
        found[job] = written
    answers = dict(zip(order, [one for job in jobs for one in found[job]], strict=True))
    return [answers[place] for place in range(len(questions))], sum(len(job.prompts) for job in missing)


def _prompts_of_job(n: int, *, on_gpu: bool) -> int:
    """Return how many of `n` prompts are a job, by their number alone: jobs are named by their prompts."""
    least, most = _AT_ONCE_ON_GPU
    return min(most, max(least, math.ceil(n / _JOBS_ON_GPU))) if on_gpu else _AT_ONCE
