"""The specification of an assessment: plain, validated values, built from ``conf/assess/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from raysearch.calibration.data import Data
from raysearch.calibration.objectives.generation_accuracy import GenerationAccuracyObjective
from raysearch.core.options import Options, Seed
from raysearch.core.paths import as_name
from raysearch.errors import UserError


@dataclass(frozen=True)
class SpeedOptions(Options):
    """How speed is measured: one sequence, as in "On the Limits of Layer Pruning …", A.9.

    Args:
        enabled: Whether it is measured at all.
        context_tokens: Tokens of the prompt.
        new_tokens: Tokens that are generated after it.
        repeats: How often each model is timed, in turn; the median counts.
    """

    section = "assess.speed"

    enabled: bool = True
    context_tokens: PositiveInt = 512
    new_tokens: Annotated[int, Field(ge=2)] = 64
    repeats: PositiveInt = 5


@dataclass(frozen=True)
class SearchSpeedOptions(SpeedOptions):
    """How the speeds of a search by budget are measured."""

    section = "speed"


@dataclass(frozen=True)
class AnswerOptions(GenerationAccuracyObjective):
    """How answers are generated and scored."""

    section = "assess.answers"

    @property
    def objective(self) -> GenerationAccuracyObjective:
        """The objective that generates and scores answers."""
        return GenerationAccuracyObjective(**vars(self))


@dataclass(frozen=True)
class ProbeOptions(Options):
    """The arithmetic probe: whether the next digit of a small problem is known.

    Args:
        enabled: Whether it is asked at all.
        items: How many problems.
        file: JSON lines with the problems to draw from, EleutherAI's ``arithmetic_1dc``; None for all of that form.
        seed: Of the draw.
    """

    section = "assess.probe"

    enabled: bool = False
    items: Annotated[int, Field(ge=2)] = 200
    file: Path | None = None
    seed: Seed = 42


@dataclass(frozen=True)
class AssessSpec(Options):
    """The texts, tasks and speed measurements of an assessment.

    Args:
        texts: Texts for perplexity, by name; a number of samples is the most that are taken.
        generation: Tasks that are answered by a text, by name.
        answers: How those texts are generated.
        server: The address of a server of the exported checkpoint, which answers in place of the bypassed model.
        server_model: The checkpoint's name there; None for the one model that it lists.
        tasks: Names of lm-eval tasks.
        data_dir: A folder with the files of texts and tasks, ``hellaswag/validation.jsonl`` …; None for the hub.
        task_dir: A folder of the user's own lm-eval task files.
        seq_len: Tokens of a window of text, and the most of a document.
        limit: The most items of each task, and windows or documents of each text; None for all.
        share: The share of the items of each lm-eval task, in place of `limit`.
        shots: Worked examples in a prompt; None for what each task defines, mostly none.
        chat: Whether lm-eval's tasks are asked in the model's chat template, worked examples as turns before.
        batch_size: Rows that a task runs at once.
        probe: The arithmetic probe.
        speed: How speed is measured.
        own_data: Whether a part of the search's own data that it has not used takes the place of State of the Union
            addresses among the texts.
    """

    section = "assess"

    texts: Mapping[str, Data] = field(default_factory=dict)
    generation: Mapping[str, Data] = field(default_factory=dict)
    answers: AnswerOptions = AnswerOptions()
    server: str | None = None
    server_model: str | None = None
    tasks: Sequence[str] = ()
    data_dir: Path | None = None
    task_dir: Path | None = None
    seq_len: Annotated[int, Field(ge=2)] = 2048
    limit: PositiveInt | None = None
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    shots: NonNegativeInt | None = None
    chat: bool = False
    batch_size: PositiveInt = 8
    probe: ProbeOptions = ProbeOptions()
    speed: SpeedOptions = SpeedOptions()
    own_data: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(self.tasks):
            raise UserError("assess.tasks has an empty name; leave it out")
        if len(set(self.tasks)) < len(self.tasks):
            raise UserError(f"assess.tasks=[{','.join(self.tasks)}] names a task twice; name each once")
        for key in ("texts", "generation"):
            for name in getattr(self, key):
                as_name(f"assess.{key}", name)
        for key, other in combinations(("texts", "generation", "tasks"), 2):
            for name in {*getattr(self, key)} & {*getattr(self, other)}:
                raise UserError(f"assess.{key} and assess.{other} both have {name}; call the first something else")

    @property
    def measures(self) -> list[str]:
        """What each mask is measured by: the names of texts and tasks, the probe, speed."""
        others = {"probe": self.probe.enabled, "speed": self.speed.enabled}
        return [*self.texts, *self.generation, *self.tasks, *(name for name, enabled in others.items() if enabled)]

    @property
    def task_limit(self) -> float | None:
        """The most items of each lm-eval task, or below 1 a share of them."""
        return self.limit if self.share is None else self.share
