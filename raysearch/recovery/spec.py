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

#: Rows at once where the user does not say: on a CPU those of a step take up to three times as long together, padded to
#: the longest, as two by two.
_AT_ONCE, _AT_ONCE_ON_GPU = 2, 8


@dataclass(frozen=True)
class RecoveryOptions(Options):
    """How a pruned model is trained.

    Args:
        responses: Of prompts: the answers that the dense model writes itself (``self``), or those of the ``data``.
        loss: ``tokens``: cross-entropy; ``distill``: the KL divergence from the dense model on the same tokens.
        top_k: Of `loss` ``distill``: the dense model's likeliest tokens that are kept; the others count as one.
        method: ``lora``, ``qlora`` (on weights of 4 bits, NF4) or ``full``.
        max_prompt_tokens: Longer prompts are left out.
        max_new_tokens: Of an answer that the dense model writes; one that is cut off is left out.
        temperature: Of those answers.
        top_p: Of those answers.
        system: The system prompt of prompts that have none; empty for that of the chat template.
        max_tokens: Of a row; longer ones are left out.
        tokens: Of all rows together, at most; the others are left out. None for no limit.
        held_out: The share of the rows that the training does not see, and its loss is followed on.
        epochs: How often each row is seen.
        max_steps: The most steps; None for no limit but `epochs`.
        batch_size: Rows of a step.
        micro_batch_size: Rows that go through the model at once; halved where memory does not hold them. None for 8 on
            a GPU and 2 on a CPU, where rows of other lengths cost less apart.
        workers: Processes that share the rows of a step, one for each GPU, or on CPUs.
        learning_rate: After the warm-up.
        schedule: ``constant``, ``linear`` or ``cosine``, after the warm-up.
        warmup_steps: Steps in which the learning rate rises.
        weight_decay: Of AdamW.
        beta1: Of AdamW.
        beta2: Of AdamW.
        max_grad_norm: Gradients are clipped to it.
        lora_r: The rank of an adapter.
        lora_alpha: The scale of an adapter, divided by its rank.
        lora_dropout: Of an adapter's input.
        targets: The names of linear layers that get an adapter, or a regular expression that whole names match;
            ``all-linear`` for all but the output head.
        completion_only: Whether the loss leaves out the tokens of the prompt.
        packing: Whether several rows go through the model as one.
        gradient_checkpointing: Whether activations are computed again in place of being kept.
        dtype: Of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has it.
        checkpoint_steps: Steps between checkpoints, each with a loss on held-out rows; None for ten in all.
        patience: How many of those may pass without a better loss before the training ends; None for no early stop.
        seed: Of the rows' order, the adapter's first weights, the dropout and the answers.

    Raises:
        UserError: An option is out of range.
    """

    section = "recovery"

    responses: Literal["self", "data"] = "self"
    loss: Literal["tokens", "distill"] = "distill"
    top_k: PositiveInt = 64
    method: Literal["lora", "qlora", "full"] = "lora"
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
    batch_size: PositiveInt = 8
    micro_batch_size: PositiveInt | None = None
    workers: PositiveInt = 1
    learning_rate: PositiveFloat = 1e-3
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
        if self.packing and self.loss == "distill":
            raise UserError(
                "recovery.packing=true is not offered with recovery.loss=distill; use recovery.packing=false"
            )
        if not self.targets:
            raise UserError("recovery.targets=[] names nothing to train; name linear layers, or all-linear")

    def rows_at_once(self, on_gpu: bool = False) -> int:
        """Return how many rows go through the model of a process at once: no more than its part of a step."""
        own = self.batch_size // self.workers
        if self.micro_batch_size is not None:
            return min(self.micro_batch_size, own)
        return max(one for one in range(1, (_AT_ONCE_ON_GPU if on_gpu else _AT_ONCE) + 1) if own % one == 0)

    def n_held_out(self, n_rows: int) -> int:
        """Return how many rows are held out: a share, and at least one."""
        return min(n_rows - 1, max(1, round(self.held_out * n_rows)))

    def n_steps(self, n_rows: int) -> int:
        """Return how many steps so many rows take."""
        whole = math.ceil(math.ceil(n_rows / self.batch_size) * self.epochs)
        return min(whole, self.max_steps) if self.max_steps else whole

    def rows_seen(self, n_steps: int, n_rows: int) -> int:
        """Return how many rows so many steps see; the last step of an epoch has what is left of it."""
        epochs, more = divmod(n_steps, math.ceil(n_rows / self.batch_size))
        return epochs * n_rows + more * self.batch_size


@dataclass(frozen=True)
class RecoverSpec:
    """A recovery: what on, how, and what it is assessed by.

    Args:
        data: The rows to train on: prompts, or plain text.
        options: How the model is trained.
        assess: What the dense, the pruned and the recovered model are assessed by.
        cluster: Whose replicas of the dense model write answers, and assess.
        own: How the model is trained on the search's own data, if these hold enough; `data` are then not used. None to
            train on `data`.
        settings: The configuration of data and training by dotted key, plain values without secrets, for the record.

    Raises:
        UserError: This machine cannot run so many workers, or a server is to answer for all models.
    """

    data: Data
    options: RecoveryOptions
    assess: AssessSpec
    cluster: ClusterOptions
    own: RecoveryOptions | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

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

    def on_own_data(self, searched: EvaluationSpec, config: Mapping[str, Any]) -> RecoverSpec | None:
        """Return the recovery on a search's own data.

        Args:
            searched: The calibrations of the search.
            config: Its configuration, for the record.

        Returns:
            None where data were chosen, or the search is on several data, or on State of the Union addresses.
        """
        data, asked = own_data(searched), self.data.draw
        if self.own is None or data is None or is_installed(data):
            return None
        changed: dict[str, Any] = {"seed": asked.seed, "sampling": "random"}
        if isinstance(data.draw, ItemOptions):
            changed["balance"] = "none"
        else:
            changed |= {"seq_len": asked.seq_len, "sampling": asked.sampling}
        rows = replace(data.rows, part=self.data.rows.part)
        at_most = None if asked.samples == "all" else asked.samples
        draw = replace(data.draw, samples="all", at_most=at_most, **changed)
        drawn = {**config["data"], **changed, "part": rows.part, "samples": asked.samples}
        settings = {
            "choices.data": config["choices"]["data"],
            **{key: value for key, value in self.settings.items() if not key.startswith(("choices.data", "data."))},
            **{f"data.{key}": value for key, value in drawn.items()},
            "recovery.responses": self.own.responses,
        }
        return replace(self, data=Data(rows, data.format, draw), options=self.own, own=None, settings=settings)

    @property
    def identity(self) -> dict[str, Any]:
        """All that the training is made of, in plain values, but for the content of its files."""
        data = self.data
        return {
            "options": identity_of(self.options),
            "data": [identity_of(data.rows), identity_of(data.format), identity_of(data.draw)],
        }

    @property
    def digests(self) -> list[str]:
        """The SHA-256 of each file that the training reads."""
        return [sha256(file) for file in self.data.rows.files() or ()]
