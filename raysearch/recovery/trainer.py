"""The trainer of a pruned model: trl's SFTTrainer, with peft's adapters unless all weights are trained."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    EarlyStoppingCallback,
    PreTrainedModel,
    PrinterCallback,
)
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer
from typing_extensions import override

from raysearch.core.machine import n_cores
from raysearch.errors import UserError
from raysearch.evaluation.memory import is_out_of_memory, reuse_freed_memory
from raysearch.models.loading import load_model
from raysearch.models.spec import LocatedModel, ModelSpec
from raysearch.recovery.adapter import adapter_for, bare_like, naming_targets
from raysearch.recovery.layer_cuts import LayerCut
from raysearch.recovery.prompts import TrainingRow
from raysearch.recovery.spec import RecoveryOptions
from raysearch.recovery.teacher import TopLogits, distillation_loss, whole_distillation_loss
from raysearch.text.sentences import first_line

CHECKPOINTS = "checkpoints"  # the folder of a running training
_IGNORED = -100  # the label of a token without a loss


@dataclass(frozen=True)
class TrainingRows:
    """The rows that a model is trained on.

    Args:
        rows: The rows.
        starts: The first scored position of each row.
        top_logits: The dense model's likeliest tokens at the scored positions; None to learn the tokens themselves.
    """

    rows: Sequence[TrainingRow]
    starts: Sequence[int]
    top_logits: Sequence[TopLogits] | None = None

    @classmethod
    def of(cls, rows: Sequence[TrainingRow], options: RecoveryOptions) -> TrainingRows:
        """Return rows with their first scored positions.

        Args:
            rows: The rows.
            options: The options; with `completion_only` only the answers are scored.

        Returns:
            The rows. Position 0 is never scored, since no token precedes it.
        """
        return cls(rows, [max(1, row.n_prompt if options.completion_only else 1) for row in rows])

    def part(self, start: int, stop: int) -> TrainingRows:
        """Return rows `start` … `stop` - 1.

        Args:
            start: The index of the first row.
            stop: The index after the last row.

        Returns:
            The part, with its logits if the rows have some.
        """
        top_logits = None if self.top_logits is None else self.top_logits[start:stop]
        return TrainingRows(self.rows[start:stop], self.starts[start:stop], top_logits)

    def filled(self, multiple: int) -> TrainingRows:
        """Return the rows padded to a multiple with unscored copies of the first row.

        Otherwise several processes would repeat scored rows to have the same number of them.
        """
        n_padding = -len(self.rows) % multiple
        rows = [*self.rows, *[self.rows[0]] * n_padding]
        starts = [*self.starts, *[len(self.rows[0].ids)] * n_padding]
        if self.top_logits is None:
            return TrainingRows(rows, starts)
        unscored = TopLogits(self.top_logits[0].ids[:0], self.top_logits[0].log_p[:0])
        return TrainingRows(rows, starts, [*self.top_logits, *[unscored] * n_padding])

    def dataset(self) -> Dataset:
        """Return the rows in the format of trl."""
        labels = [[*[_IGNORED] * start, *row.ids[start:]] for row, start in zip(self.rows, self.starts, strict=True)]
        ids = [list(row.ids) for row in self.rows]
        return Dataset.from_dict({"input_ids": ids, "labels": labels, "row": list(range(len(ids)))})


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """A checkpoint to train, with its data and options.

    Args:
        model: The pruned checkpoint.
        tokenizer: The model's tokenizer; if it has no padding token, one is set.
        data: The rows; held-out rows come first.
        options: The options of the training.
        folder: The folder of the training's checkpoints and of the trained weights.
        on_gpu: Whether the training is on a GPU.
        dense: The dense model, if it runs beside the training.
        cuts: The cuts of the mask, for ``hidden``.
    """

    model: ModelSpec
    tokenizer: Any
    data: TrainingRows
    options: RecoveryOptions
    folder: Path
    on_gpu: bool
    dense: LocatedModel | None = None
    cuts: tuple[LayerCut, ...] = ()


class _Collator(DataCollatorForLanguageModeling):
    """Keeps the indices of the rows, by which the trainer finds the dense model's logits."""

    @override
    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().torch_call(examples)
        return {**batch, "row": torch.tensor([example["row"] for example in examples])}


class RecoveryTrainer(SFTTrainer):
    """An SFTTrainer that distils if it has the dense model or its logits. Its held-out loss is a mean over tokens."""

    def __init__(
        self,
        *args: Any,
        train: TrainingRows,
        held_out: TrainingRows,
        dense: PreTrainedModel | None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._training_rows = {"train": train, "eval": held_out}
        self._dense = dense

    @override
    def evaluation_loop(self, *args: Any, **options: Any) -> Any:
        self._held_out = torch.zeros(2, dtype=torch.float64, device=self.args.device)  # nats, tokens
        output: Any = super().evaluation_loop(*args, **options)
        nats, tokens = cast(Tensor, self.accelerator.reduce(self._held_out)).tolist()
        output.metrics["eval_loss"] = nats / tokens
        return output

    @override
    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        tokens = (inputs["labels"][..., 1:] != _IGNORED).sum()
        outputs = super().prediction_step(model, inputs, *args, **options)
        if tokens:  # the mean over no tokens is not a number
            self._held_out += torch.stack([outputs[0] * tokens, tokens]).to(self._held_out)
        return outputs

    @override
    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        top_logits = self._training_rows["train" if model.training else "eval"].top_logits
        if top_logits is None and self._dense is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        model_inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
        outputs = model(**model_inputs, use_cache=False, labels=None)
        scored = inputs["labels"][:, 1:] != _IGNORED
        logits = outputs.logits[:, :-1][scored]
        losses: Tensor
        if top_logits is None:
            assert self._dense is not None, "see above"
            with torch.no_grad():
                dense_logits = self._dense(**model_inputs, use_cache=False).logits[:, :-1][scored]
            losses = whole_distillation_loss(logits, dense_logits)
        else:
            batch_logits = [top_logits[row] for row in inputs["row"].tolist()]
            ids = torch.from_numpy(np.concatenate([row_logits.ids for row_logits in batch_logits])).long()
            log_p = torch.from_numpy(np.concatenate([row_logits.log_p for row_logits in batch_logits])).float()
            losses = distillation_loss(logits, ids.to(logits.device), log_p.to(logits.device))
        n_tokens = max(1, len(losses)) if num_items_in_batch is None else num_items_in_batch
        loss = losses.sum() / n_tokens
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss


@contextmanager
def all_threads() -> Iterator[None]:
    """Let PyTorch use all cores of this process, or OMP_NUM_THREADS, within the context; a replica may use fewer."""
    before = torch.get_num_threads()
    omp_threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list has a number for each level
    torch.set_num_threads(int(omp_threads or n_cores()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_trainer(setup: TrainingSetup, micro_batch_size: int) -> RecoveryTrainer:
    """Load a checkpoint, and return its trainer.

    Args:
        setup: The checkpoint, the rows and the options.
        micro_batch_size: The number of rows at once in each process.

    Returns:
        The trainer, which has not begun to train.

    Raises:
        UserError: The targets of the adapter do not fit the model.
    """
    data = setup.data
    options = setup.options
    tokenizer = setup.tokenizer
    on_gpu = setup.on_gpu
    reuse_freed_memory()
    n_held_out = options.n_held_out(len(data.rows))
    held_out_rows = data.part(0, n_held_out)
    training_rows = data.part(n_held_out, len(data.rows))
    if options.workers > 1:
        held_out_rows = held_out_rows.filled(options.workers * micro_batch_size)
    bf16 = computes_in_bfloat16(options, on_gpu=on_gpu)
    pruned = load_pruned(setup.model, options, on_gpu=on_gpu, bf16=bf16)
    config = SFTConfig(
        output_dir=str(setup.folder / CHECKPOINTS),
        per_device_train_batch_size=micro_batch_size,
        per_device_eval_batch_size=micro_batch_size,
        gradient_accumulation_steps=options.batch_size // micro_batch_size // options.workers,
        num_train_epochs=options.epochs,
        learning_rate=options.rate,
        lr_scheduler_type="constant_with_warmup" if options.schedule == "constant" else options.schedule,
        warmup_steps=options.warmup_steps,
        weight_decay=options.weight_decay,
        adam_beta1=options.beta1,
        adam_beta2=options.beta2,
        max_grad_norm=options.max_grad_norm,
        logging_steps=1,
        logging_nan_inf_filter=False,  # it would log 0 in place of a loss that is not finite
        eval_strategy="steps",
        save_strategy="steps",
        save_total_limit=2,
        load_best_model_at_end=True,
        restore_callback_states_from_checkpoint=True,  # for the patience
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        prediction_loss_only=True,
        bf16=bf16,
        use_cpu=not on_gpu,
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=on_gpu,
        router_aux_loss_coef=None if _balances_experts(pruned, options) else 0.0,
        gradient_checkpointing=options.gradient_checkpointing,
        packing=options.packing,
        eval_packing=options.packing and options.workers == 1,
        max_length=options.max_tokens,
        remove_unused_columns=False,
        include_num_input_tokens_seen="non_padding",
        seed=options.seed,
        data_seed=options.seed,
        report_to="none",
        disable_tqdm=True,
    )
    if config.n_gpu > 1:
        config._n_gpu = 1  # each process uses one GPU
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)  # padding is masked
    with naming_targets(options):
        trainer = RecoveryTrainer(
            model=pruned,
            args=config,
            data_collator=None if data.top_logits is None else _Collator(pad_token_id=tokenizer.pad_token_id),
            train_dataset=training_rows.dataset(),
            eval_dataset=held_out_rows.dataset(),
            processing_class=tokenizer,
            peft_config=None if options.method == "full" else adapter_for(options, bare_like(pruned)),
            callbacks=[] if options.patience is None else [EarlyStoppingCallback(options.patience)],
            train=training_rows,
            held_out=held_out_rows,
            dense=None if setup.dense is None else load_model(setup.dense, str(config.device)),
        )
    n_steps = options.n_steps(len(cast(Sized, trainer.train_dataset)))  # rows may have been packed
    if n_steps == 1:
        trainer.args.warmup_steps = 0  # the first step of a warm-up has a learning rate of 0
    # a limit above the number of epochs would extend the training
    trainer.args.max_steps = n_steps if n_steps == options.max_steps else -1
    trainer.args.eval_steps = trainer.args.save_steps = options.measured_steps(n_steps)
    if options.workers > 1:
        trainer.eval_dataset = held_out_rows.dataset()  # trl has left out the unscored rows
    trainer.remove_callback(PrinterCallback)  # it prints to standard output
    return trainer


@contextmanager
def naming_bitsandbytes(options: RecoveryOptions) -> Iterator[None]:
    """Turn an error of bitsandbytes, such as for weights of some widths, into one that names the option."""
    try:
        yield
    except (RuntimeError, ValueError, AssertionError, NotImplementedError) as error:
        frames = traceback.walk_tb(error.__traceback__)
        is_theirs = any(frame.f_globals.get("__name__", "").startswith("bitsandbytes") for frame, _ in frames)
        if options.method != "qlora" or not is_theirs or is_out_of_memory(error):
            raise
        raise UserError(
            f"recovery.method=qlora does not work with this model: bitsandbytes fails ({first_line(error)}); use "
            "recovery.method=lora"
        ) from error


def _balances_experts(model: PreTrainedModel, options: RecoveryOptions) -> bool:
    """Return whether trl can add the loss that balances experts; distillation has no such loss."""
    return options.loss == "tokens" and bool(getattr(model.config.get_text_config(), "num_experts", 0))


def computes_in_bfloat16(options: RecoveryOptions, *, on_gpu: bool) -> bool:
    """Return whether a training computes in bfloat16.

    Args:
        options: The options of the training.
        on_gpu: Whether the training is on a GPU.

    Returns:
        True for bfloat16, False for float32.
    """
    if options.dtype == "auto":
        return on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    return options.dtype == "bfloat16"


def load_pruned(model: ModelSpec, options: RecoveryOptions, *, on_gpu: bool, bf16: bool) -> PreTrainedModel:
    """Load a checkpoint to train: in 4 bits for QLoRA; in float32 for `full`, and if the computation is in float32.

    Args:
        model: The pruned checkpoint.
        options: The options of the training.
        on_gpu: Whether the training is on a GPU.
        bf16: Whether the computation is in bfloat16.

    Returns:
        The model.
    """
    exact = options.method == "full" or not bf16
    quantization = None
    if options.method == "qlora":
        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16 if bf16 else torch.float32,
        )
    device_map: dict[str, str] | None = None
    if quantization is not None:
        device_map = {"": f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if on_gpu else "cpu"}
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        model.path,
        dtype=torch.float32 if exact else "auto",
        quantization_config=quantization,
        device_map=device_map,
        trust_remote_code=model.trust_remote_code,
    )
    return loaded
