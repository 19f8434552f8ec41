"""Self-generated responses: the dense model answers each prompt once, on the replicas.

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
from raysearch.evaluation.memory import retry_with_less_memory
from raysearch.evaluation.pool import Pool
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.unit import Job
from raysearch.generation.prompt import Decoding, Prompt, Written
from raysearch.ledger.assessments import read_assessments, write_assessment
from raysearch.ledger.ledger import Ledger
from raysearch.models.loading import quiet
from raysearch.recovery.progress import run_jobs
from raysearch.recovery.prompts import Question
from raysearch.recovery.spec import RecoveryOptions

#: The number of prompts of a job, which are lost when a replica dies. On a GPU a job has several times as many prompts
#: as are written at once, so that a new row can take the place of one that has ended; but there are enough jobs for all
#: replicas.
_JOB_SIZE = 32
_LEAST_JOB_SIZE_ON_GPU = 128
_LARGEST_JOB_SIZE_ON_GPU = 512
_JOBS_ON_GPU = 16
_JobAnswers = dict[str, list[Written]]  # the ledger's entry for a job


@dataclass(frozen=True)
class AnswerJob(Job):
    """A job that continues prompts with the dense model.

    Args:
        prompts: The prompts.
        decoding: The options of decoding.
    """

    prompts: tuple[Prompt, ...]
    decoding: Decoding

    @override
    def run(self, replica: Replica) -> list[Written]:
        """Write the answers. If memory is short, half as many rows at once, now and in later jobs of the replica."""
        from raysearch.generation.decoding import generate, rows_at_once

        def rows() -> int:
            return min(replica.texts_at_once or rows_at_once(replica.stack.model), len(self.prompts))

        def write() -> list[Written]:
            with quiet(), replica.stack.bypassed(Mask()) as model:
                return generate(model, replica.tokenizer, self.prompts, self.decoding, rows())[0]

        def halve() -> None:
            if rows() == 1:
                longest = max(len(prompt.ids) for prompt in self.prompts)
                max_new_tokens = max(prompt.max_new_tokens for prompt in self.prompts)
                raise UserError(
                    f"recovery.max_new_tokens={max_new_tokens} after a prompt of {longest} tokens is more than memory "
                    "holds, even one answer at once; use less, or more memory per replica "
                    "(cluster.gpus_per_replica=…)"
                )
            replica.texts_at_once = rows() // 2

        return retry_with_less_memory(write, halve)

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
    """Return the dense model's answers to the questions, in order, and the number of answers written now.

    Args:
        questions: The questions.
        options: The options of decoding.
        plan: The model, whose fingerprint is a part of the answers' names in the ledger.
        ledger: Receives every answer as soon as it is written; its answers are not written again.
        replicas: Returns the pool; called only if an answer is missing.
        on_progress: Receives a line after each job.

    Returns:
        The answers, and how many of them were not in the ledger.

    Raises:
        UserError: Not even one answer fits the memory.
    """
    decoding = Decoding(options.temperature, 0, options.top_p, options.seed)
    # Prompts of similar length are in the same job. An answer depends only on its prompt and its seed.
    order = sorted(range(len(questions)), key=lambda index: (len(questions[index].ids), questions[index].ids))
    settings = {key: getattr(options, key) for key in ("temperature", "top_p", "seed", "max_new_tokens")}
    job_size = _job_size(len(order), on_gpu=plan.info.model.on_gpu)
    jobs: list[AnswerJob] = []
    for start in range(0, len(order), job_size):
        indices = order[start : start + job_size]
        prompts = tuple(Prompt(questions[index].ids, options.max_new_tokens) for index in indices)
        jobs.append(AnswerJob(prompts, decoding))
    # equal jobs are run once
    names = {job: plan.named({"answers": [prompt.ids for prompt in job.prompts], **settings}) for job in jobs}
    model = plan.fingerprint
    answers_by_job: dict[AnswerJob, list[Written]] = {}
    for job, name in names.items():
        if recorded := read_assessments(ledger, model, name, [Mask()], _JobAnswers):
            answers_by_job[job] = recorded[Mask()]["answers"]
    missing = [job for job in names if job not in answers_by_job]
    for job, new_answers in run_jobs(missing, replicas, "answers of the teacher", on_progress):
        write_assessment(ledger, model, names[job], {Mask(): {"answers": new_answers}}, _JobAnswers)
        answers_by_job[job] = new_answers
    ordered_answers = [answer for job in jobs for answer in answers_by_job[job]]
    answers = dict(zip(order, ordered_answers, strict=True))
    return [answers[index] for index in range(len(questions))], sum(len(job.prompts) for job in missing)


def _job_size(n_prompts: int, *, on_gpu: bool) -> int:
    """Return the number of prompts of a job. It must depend on nothing else: jobs are named by their prompts."""
    if not on_gpu:
        return _JOB_SIZE
    return min(_LARGEST_JOB_SIZE_ON_GPU, max(_LEAST_JOB_SIZE_ON_GPU, math.ceil(n_prompts / _JOBS_ON_GPU)))
