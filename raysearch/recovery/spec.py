"""The specification of a recovery: plain, validated values, built from ``conf/recovery/``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from raysearch.assessment.own_data import is_installed, own_data
from raysearch.assessment.spec import AssessSpec
from raysearch.calibration.data import Data
from raysearch.calibration.items import ItemOptions
from raysearch.cluster.options import THREADS_OF_A_CORE, ClusterOptions
from raysearch.core.machine import n_cores
from raysearch.core.options import Options, Seed
from raysearch.errors import UserError
from raysearch.evaluation.spec import EvaluationSpec, identity_of
from raysearch.models.file_cache import sha256
from raysearch.models.spec import ModelSpec

#: The default number of rows at once. On a CPU, padding all rows of a step to the longest takes up to three times as
#: long as running them two at a time.
_ROWS_AT_ONCE = 2
_ROWS_AT_ONCE_ON_GPU = 8
#: The default number of losses on held-out rows. With ten, they took a third of a short training's time.
_N_MEASURED = 5


@dataclass(frozen=True)
class RecoveryOptions(Options):
    """How a pruned model is trained.

    Args:
        teacher: Another model with the same vocabulary, named as in ``model``, which writes the answers and whose
            distributions are learned; None for the dense model.
        responses: The answers to prompts: written by the dense model (``self``), or those of the ``data``.
        loss: ``tokens``: cross-entropy; ``distill``: the KL divergence from the dense model on the same tokens;
            ``hidden``: the layer before each run of removed layers learns the dense model's hidden state behind it.
        top_k: For ``distill``: the number of the dense model's likeliest tokens to keep; the others count as one. With
            ``all`` nothing is kept, and the dense model runs beside the training.
        method: ``lora``, ``qlora`` (on weights of 4 bits, NF4), ``full``, or ``closed_form``, which trains nothing (see
            `raysearch.recovery.cut_choice`).
        repairs: For ``closed_form``: what is tried at each cut: ``linear``, ``bias``, ``scale``.
        ridges: For ``closed_form``: the regularisations of the linear map, relative to the mean squared input; the one
            with the least error on held-out rows is taken.
        max_prompt_tokens: The maximum length of a prompt; longer ones are left out.
        max_new_tokens: The maximum length of a written answer; an answer that is cut off is left out.
        temperature: The temperature of written answers.
        top_p: The nucleus of written answers.
        system: The system prompt for prompts without one; empty for that of the chat template.
        max_tokens: The maximum length of a row; longer ones are left out.
        tokens: The maximum number of tokens of all rows; further rows are left out. None for no limit.
        held_out: The share of rows that is not trained on; the loss on them is recorded.
        epochs: The number of times that each row is seen; with ``hidden``, at each cut.
        max_steps: The maximum number of steps, with ``hidden`` of each cut; None for no limit besides `epochs`.
        batch_size: The number of rows of a step.
        micro_batch_size: The number of rows at once; halved if memory is short. None for 8 on a GPU, and 2 on a CPU,
            where padding rows of different lengths is expensive.
        workers: The number of processes that share the rows of a step, one for each GPU, or on CPUs.
        learning_rate: The learning rate after the warm-up; ``auto`` for one that a short range test chooses.
        schedule: ``constant``, ``linear`` or ``cosine``, after the warm-up.
        warmup_steps: The number of steps in which the learning rate rises.
        weight_decay: The weight decay of AdamW.
        beta1: The first beta of AdamW.
        beta2: The second beta of AdamW.
        max_grad_norm: The norm to which gradients are clipped.
        lora_r: The rank of an adapter.
        lora_alpha: The scale of an adapter, divided by its rank.
        lora_dropout: The dropout of an adapter's input.
        targets: The names of linear layers that get an adapter, or a regular expression that matches whole names;
            ``all-linear`` for all except the output head.
        completion_only: Whether the loss leaves out the tokens of the prompt.
        packing: Whether several rows are joined to one.
        gradient_checkpointing: Whether activations are computed again instead of kept.
        dtype: The dtype of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that supports it.
        checkpoint_steps: The number of steps between checkpoints, each with a held-out loss; None for five checkpoints.
            With ``hidden``, the number of steps between held-out losses; None for five at each cut.
        patience: The number of checkpoints without a better loss after which the training ends; None to disable.
        seed: The seed of the rows' order, the adapter's first weights, the dropout and the answers.

    Raises:
        UserError: An option is out of range.
    """

    section = "recovery"

    teacher: str | None = None
    responses: Literal["self", "data"] = "self"
    loss: Literal["tokens", "distill", "hidden"] = "distill"
    top_k: PositiveInt | Literal["all"] = 64
    method: Literal["lora", "qlora", "full", "closed_form"] = "lora"
    repairs: Sequence[Literal["linear", "bias", "scale"]] = ("linear", "bias", "scale")
    ridges: Sequence[NonNegativeFloat] = (0.01, 0.1, 1.0, 10.0)
    max_prompt_tokens: PositiveInt = 512
    max_new_tokens: PositiveInt = 256
    temperature: NonNegativeFloat = 0.9
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    system: str = ""
    max_tokens: Annotated[int, Field(ge=2)] = 1024
    tokens: PositiveInt | None = None
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1
    epochs: PositiveFloat = 1.0
    max_steps: PositiveInt | None = None
    batch_size: PositiveInt = 4
    micro_batch_size: PositiveInt | None = None
    workers: PositiveInt = 1
    learning_rate: PositiveFloat | Literal["auto"] = 1e-3
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    warmup_steps: NonNegativeInt = 4
    weight_decay: NonNegativeFloat = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    max_grad_norm: PositiveFloat = 1.0
    lora_r: PositiveInt = 16
    lora_alpha: PositiveInt = 32
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: str | Sequence[str] = "all-linear"
    completion_only: bool = True
    packing: bool = False
    gradient_checkpointing: bool = False
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    checkpoint_steps: PositiveInt | None = None
    patience: PositiveInt | None = 3
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        size = f"recovery.batch_size={self.batch_size} is not a multiple of recovery."
        if self.batch_size % self.workers:
            raise UserError(f"{size}workers={self.workers}; use one that is")
        if self.batch_size % (self.rows_at_once() * self.workers):
            raise UserError(f"{size}micro_batch_size={self.micro_batch_size}; use one that is")
        if self.packing and self.trains and self.loss == "distill":
            raise UserError(
                "recovery.packing=true is not offered with recovery.loss=distill; use recovery.packing=false"
            )
        if self.method == "closed_form" and not (self.repairs and self.ridges):
            raise UserError(
                "recovery.method=closed_form has nothing to try; name recovery.repairs of linear, bias and scale, and "
                "recovery.ridges such as [0.1,1]"
            )
        if self.loss == "hidden":
            self._check_hidden()
        if not self.targets:
            raise UserError("recovery.targets=[] names nothing to train; name linear layers, or all-linear")

    def _check_hidden(self) -> None:
        """Refuse options that have no meaning if whole layers are trained one by one."""
        for name, needed in (("method", "full"), ("workers", 1), ("packing", False), ("gradient_checkpointing", False)):
            value = getattr(self, name)
            if value != needed:
                raise UserError(
                    f"recovery.{name}={str(value).lower()} is not offered with recovery.loss=hidden, which trains "
                    f"whole layers one by one in one process; use recovery.{name}={str(needed).lower()}"
                )

    @property
    def trains(self) -> bool:
        """Whether the model is trained, and not repaired in closed form."""
        return self.method != "closed_form"

    @property
    def needs_logits(self) -> bool:
        """Whether the dense model's likeliest tokens are computed before the training."""
        return self.trains and self.loss == "distill" and self.top_k != "all"

    @property
    def needs_dense(self) -> bool:
        """Whether the dense model runs beside the training."""
        return self.trains and (self.loss == "hidden" or (self.loss == "distill" and self.top_k == "all"))

    @property
    def rate(self) -> float:
        """The learning rate as a number; if it is ``auto``, a range test has to replace it before."""
        assert self.learning_rate != "auto", "see `raysearch.recovery.range_test`"
        return self.learning_rate

    def rows_at_once(self, on_gpu: bool = False) -> int:
        """Return the number of rows at once in each process; it divides the process's share of a step."""
        n_rows = self.batch_size // self.workers
        if self.micro_batch_size is not None:
            return min(self.micro_batch_size, n_rows)
        most = _ROWS_AT_ONCE_ON_GPU if on_gpu else _ROWS_AT_ONCE
        return max(size for size in range(1, most + 1) if n_rows % size == 0)

    def n_held_out(self, n_rows: int) -> int:
        """Return the number of held-out rows: a share of all rows, at least one."""
        return min(n_rows - 1, max(1, round(self.held_out * n_rows)))

    def n_steps(self, n_rows: int) -> int:
        """Return the number of steps for so many rows."""
        whole = math.ceil(math.ceil(n_rows / self.batch_size) * self.epochs)
        return min(whole, self.max_steps) if self.max_steps else whole

    def measured_steps(self, n_steps: int) -> int:
        """Return the number of steps between two losses on held-out rows, for a training of so many steps."""
        return self.checkpoint_steps or math.ceil(n_steps / _N_MEASURED)

    def n_measured(self, n_steps: int) -> int:
        """Return how often a training of so many steps measures the loss on held-out rows."""
        before = 1 if self.loss == "hidden" else 0
        return before + math.ceil(n_steps / self.measured_steps(n_steps))

    def rows_seen(self, n_steps: int, n_rows: int) -> int:
        """Return the number of rows that the steps see; the last step of an epoch may have fewer rows.

        Args:
            n_steps: The number of steps.
            n_rows: The number of rows of an epoch.

        Returns:
            The number; a row that is seen twice counts twice.
        """
        epochs, more = divmod(n_steps, math.ceil(n_rows / self.batch_size))
        return epochs * n_rows + more * self.batch_size


@dataclass(frozen=True)
class RecoverySpec:
    """A recovery: the data, the training and the assessment.

    Args:
        data: The rows to train on: prompts, or plain text.
        options: The options of the training.
        assess: The assessment of the dense, the pruned and the recovered model.
        cluster: The cluster for replicas of the dense model, which write answers and assess.
        own_data_options: The options for training on the search's own data. If these have enough rows, `data` are not
            used. None to train on `data`.
        settings: The configuration of data and training by dotted key, plain values without secrets, for the record.
        teacher: The model that `options.teacher` names; None for the dense model.

    Raises:
        UserError: This machine cannot run so many workers, or the assessment uses a server.
    """

    data: Data
    options: RecoveryOptions
    assess: AssessSpec
    cluster: ClusterOptions
    own_data_options: RecoveryOptions | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    teacher: ModelSpec | None = None

    def __post_init__(self) -> None:
        cores = n_cores()
        if self.cluster.address is None and self.options.workers > THREADS_OF_A_CORE * cores:
            raise UserError(
                f"recovery.workers={self.options.workers} are more processes than the {cores} cores of this machine "
                f"can run; use 1 … {cores}, or the GPUs of a cluster with cluster.address=…"
            )
        if self.assess.server is not None:
            raise UserError(
                f"assess.server={self.assess.server} serves one checkpoint, and a recovery assesses three; leave it out"
            )

    def on_own_data(self, searched: EvaluationSpec, config: Mapping[str, Any]) -> RecoverySpec | None:
        """Return the recovery on the search's own data.

        Args:
            searched: The calibrations of the search.
            config: The search's configuration, for the record.

        Returns:
            The recovery; None if the user chose data, or if the search has several data or the installed text.
        """
        data = own_data(searched)
        default_draw = self.data.draw
        if self.own_data_options is None or data is None or is_installed(data):
            return None
        changes: dict[str, Any] = {"seed": default_draw.seed, "sampling": "random"}
        if isinstance(data.draw, ItemOptions):
            changes["balance"] = "none"
        else:
            changes |= {"seq_len": default_draw.seq_len, "sampling": default_draw.sampling}
        rows = replace(data.rows, part=self.data.rows.part)
        at_most = None if default_draw.samples == "all" else default_draw.samples
        draw = replace(data.draw, samples="all", at_most=at_most, **changes)
        data_settings = {**config["data"], **changes, "part": rows.part, "samples": default_draw.samples}
        settings = {
            "choices.data": config["choices"]["data"],
            **{key: value for key, value in self.settings.items() if not key.startswith(("choices.data", "data."))},
            **{f"data.{key}": value for key, value in data_settings.items()},
            "recovery.responses": self.own_data_options.responses,
        }
        return replace(
            self,
            data=Data(rows, data.format, draw),
            options=self.own_data_options,
            own_data_options=None,
            settings=settings,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the training, as plain values, except the content of its files."""
        data = self.data
        options = identity_of(self.options)
        if self.teacher is None:  # without the option, so that recoveries of old ledgers keep their ids
            del options["teacher"]
        return {
            "options": options,
            "data": [identity_of(data.rows), identity_of(data.format), identity_of(data.draw)],
        }

    @property
    def digests(self) -> list[str]:
        """The SHA-256 of each file that the training reads."""
        return [sha256(file) for file in self.data.rows.files() or ()]
