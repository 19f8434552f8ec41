"""The specification of an assessment: plain, validated values, built from ``conf/assess/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from raysearch.calibration.data import Data
from raysearch.calibration.objectives.generation_accuracy import GenerationAccuracyObjective
from raysearch.core.options import Options, Seed
from raysearch.core.paths import as_name
from raysearch.core.validation import SECTION, UserPath
from raysearch.errors import UserError
from raysearch.searching.serve_options import Serve
from raysearch.searching.speed_options import SpeedOptions


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
    """The arithmetic probe: whether the model predicts the first digit of the result of a small problem.

    Args:
        enabled: Whether the probe is measured.
        items: The number of problems.
        file: A file of JSON lines with the problems to draw from, as EleutherAI's ``arithmetic_1dc``; None for all
            problems of that form.
        seed: The seed of the draw.
    """

    section = "assess.probe"

    enabled: bool = False
    items: Annotated[int, Field(ge=2)] = 200
    file: UserPath | None = None
    seed: Seed = 42


@dataclass(frozen=True)
class AssessSpec(Options):
    """The texts, tasks and speed measurements of an assessment.

    Args:
        texts: The texts for perplexity, by name; a number of samples is the largest number used.
        generation: The tasks that are answered by a generated text, by name.
        answers: How these answers are generated.
        server: The address of a server of the exported checkpoint, which answers instead of the bypassed model.
        server_model: The checkpoint's name on the server; None for the only model that it lists.
        tasks: The names of lm-eval tasks.
        data_dir: A folder with the files of texts and tasks, ``hellaswag/validation.jsonl`` …; None for the hub.
        task_dir: A folder of the user's own lm-eval task files.
        seq_len: The number of tokens of a window of text, and the largest number of a document.
        limit: The largest number of items of each task, and of windows or documents of each text; None for all.
        share: The share of the items of each lm-eval task, in place of `limit`.
        shots: The number of worked examples in a prompt; None for the default of each task, mostly none.
        chat: Whether the prompts of lm-eval's tasks use the model's chat template, with worked examples as earlier
            turns.
        batch_size: The number of rows in a batch of a task.
        probe: The arithmetic probe.
        speed: How speed is measured.
        serve: The runtime in which speed is measured, too, as the section ``serve`` says; None for none.
        own_data: Whether data of the search that the search did not use replace the State of the Union addresses among
            the texts.
    """

    section = "assess"

    texts: Mapping[str, Data] = field(default_factory=dict)
    generation: Mapping[str, Data] = field(default_factory=dict)
    answers: Annotated[AnswerOptions, SECTION] = AnswerOptions()
    server: str | None = None
    server_model: str | None = None
    tasks: Sequence[str] = ()
    data_dir: UserPath | None = None
    task_dir: UserPath | None = None
    seq_len: Annotated[int, Field(ge=2)] = 2048
    limit: PositiveInt | None = None
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    shots: NonNegativeInt | None = None
    chat: bool = False
    batch_size: PositiveInt = 8
    probe: ProbeOptions = ProbeOptions()
    speed: SpeedOptions = field(default_factory=SpeedOptions)
    serve: Serve | None = None
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
        for key, other_key in combinations(("texts", "generation", "tasks"), 2):
            for name in {*getattr(self, key)} & {*getattr(self, other_key)}:
                raise UserError(f"assess.{key} and assess.{other_key} both have {name}; call the first something else")

    @property
    def measures(self) -> list[str]:
        """The names of the measurements of each mask: texts, tasks, the probe, speed, a runtime."""
        switches = {"probe": self.probe.enabled, "speed": self.speed.enabled, "serve": self.serve is not None}
        return [*self.texts, *self.generation, *self.tasks, *(name for name, enabled in switches.items() if enabled)]

    @property
    def task_limit(self) -> float | None:
        """The largest number of items of each lm-eval task; below 1, the share of all items."""
        return self.limit if self.share is None else self.share
