"""Training uses trl; its losses equal plain computations, and a killed training resumes with identical bits."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import shutil
import signal
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from raysearch.cluster.options import ClusterOptions
from raysearch.errors import UserError
from raysearch.models.loading import quiet
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.recovery import training
from raysearch.recovery.prompts import Question, TrainingRow, encode, row_of
from raysearch.recovery.recovery_record import Training
from raysearch.recovery.spec import RecoveryOptions
from raysearch.recovery.teacher import TopLogits, distillation_loss
from raysearch.recovery.trainer import (
    RecoveryTrainer,
    TrainingRows,
    TrainingSetup,
    load_pruned,
    make_trainer,
    naming_bitsandbytes,
)
from raysearch.recovery.training import last_checkpoint, train
from tests.models.families import tiny
from tests.sentences import Sentences

pytestmark = pytest.mark.slow

OPTIONS = RecoveryOptions(
    loss="tokens",
    max_tokens=64,
    batch_size=4,
    micro_batch_size=2,
    learning_rate=0.01,
    warmup_steps=1,
    lora_r=2,
    checkpoint_steps=2,
)
TALKS = [(f"say {word}", word * 2) for word in ("a", "bb", "ccc", "d", "ee", "fff", "g", "hh", "iii", "j", "kk", "lll")]


def rows(tokenizer: Any) -> list[TrainingRow]:
    training_rows = []
    for prompt, answer in TALKS:
        messages = (("user", prompt),)
        question = Question(messages, answer, encode(messages, None, tokenizer, "row"))
        training_rows.append(row_of(question, answer, False, OPTIONS, tokenizer))
    return [row for row in training_rows if isinstance(row, TrainingRow)]


@pytest.fixture
def data(checkpoint: Path) -> TrainingRows:
    return TrainingRows.of(rows(AutoTokenizer.from_pretrained(checkpoint)), OPTIONS)


def nothing(line: str) -> None:
    """Ignore a line of progress."""


def run(
    checkpoint: Path,
    data: TrainingRows,
    options: RecoveryOptions,
    folder: Path,
    on_progress: Any = nothing,
    **spec: Any,
) -> Training:
    model = ModelSpec("tiny", str(checkpoint), **spec)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    folder.mkdir(exist_ok=True)
    setup = TrainingSetup(model, tokenizer, data, options, folder, on_gpu=False)
    return train(setup, ClusterOptions(), on_progress=on_progress, warn=nothing)


def interrupt() -> None:
    raise KeyboardInterrupt


def stop_at(step: int, stop: Callable[[], None] = interrupt) -> Callable[[str], None]:
    """Receive progress, and stop as soon as so many steps are done."""
    return lambda line: stop() if line.startswith(f"training: step {step} ") else None


def adapters(folder: Path) -> list[bytes]:
    """Return the files of the two trained adapters."""
    return [(folder / name / "trained/adapter_model.safetensors").read_bytes() for name in ("whole", "killed")]


def test_losses_are_those_of_a_plain_script_of_trl(checkpoint: Path, data: TrainingRows, tmp_path: Path) -> None:
    from datasets import Dataset
    from peft import LoraConfig
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    trained = run(checkpoint, data, OPTIONS, tmp_path / "ours")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.pad_token = tokenizer.eos_token
    talks = [
        {"prompt": [{"role": "user", "content": prompt}], "completion": [{"role": "assistant", "content": answer}]}
        for prompt, answer in TALKS[1:]
    ]
    with warnings.catch_warnings(action="ignore"):  # peft's calls of transformers
        plain = SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained(checkpoint),
            args=SFTConfig(
                output_dir=str(tmp_path / "plain"),
                per_device_train_batch_size=2,
                gradient_accumulation_steps=2,
                num_train_epochs=1,
                learning_rate=0.01,
                lr_scheduler_type="cosine",
                warmup_steps=1,
                weight_decay=0.0,
                logging_steps=1,
                max_length=64,
                bf16=False,
                use_cpu=True,
                activation_checkpointing=False,
                seed=0,
                data_seed=0,
                report_to="none",
                disable_tqdm=True,
                save_strategy="no",
            ),
            train_dataset=Dataset.from_list(talks),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=2, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        plain.train()
    expected = [entry["loss"] for entry in plain.state.log_history if "loss" in entry]
    assert [point.loss for point in trained.points if point.loss is not None] == expected
    assert len(expected) == trained.steps == 3


def test_max_steps_ends_a_training_and_prolongs_none(checkpoint: Path, data: TrainingRows, tmp_path: Path) -> None:
    for most, expected_steps in ((2, 2), (9, 3)):
        trained = run(checkpoint, data, replace(OPTIONS, max_steps=most), tmp_path / str(most))
        assert trained.steps == expected_steps, "an epoch has three steps"
    assert [OPTIONS.rows_seen(n_steps, 11) for n_steps in (2, 3, 5)] == [8, 11, 19]


def test_packed_rows_make_fewer_steps(checkpoint: Path, data: TrainingRows, tmp_path: Path) -> None:
    n_tokens = sum(len(row.ids) for row in data.rows[1:])
    options = replace(OPTIONS, packing=True, max_tokens=64, batch_size=2, max_steps=5, checkpoint_steps=None)
    trained = run(checkpoint, data, options, tmp_path / "packed")
    assert n_tokens / 128 <= trained.steps < 5, "no further than the one epoch"
    assert len(trained.held_out) == trained.steps, "five losses on held-out rows, or as many as there are steps"


def test_distillation_is_a_divergence_over_the_kept_tokens_and_the_rest() -> None:
    logits, dense = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0)).double().unbind(0)
    log_p, ids = dense.log_softmax(-1).topk(3)
    for row in range(3):
        p = dense[row].softmax(-1)
        q = logits[row].softmax(-1)
        top_tokens = ids[row].tolist()
        other_tokens = [token for token in range(7) if token not in top_tokens]
        pairs = [*((p[token], q[token]) for token in top_tokens), (p[other_tokens].sum(), q[other_tokens].sum())]
        by_hand = sum(float(p_token * (p_token / q_token).log()) for p_token, q_token in pairs)
        computed = distillation_loss(logits[row : row + 1].float(), ids[row : row + 1], log_p[row : row + 1].float())
        assert float(computed) == pytest.approx(by_hand, rel=1e-4)
    same = distillation_loss(dense.float(), ids, log_p.float())
    assert same.abs().max() < 1e-5
    dense[0, 5] = -torch.inf  # ruled out
    log_p, ids = dense.log_softmax(-1).topk(7)
    whole = torch.nn.functional.kl_div(logits.log_softmax(-1), dense.softmax(-1), reduction="none").sum(-1)
    assert torch.allclose(distillation_loss(logits.float(), ids, log_p.float()), whole.float(), rtol=1e-4)


def random_top_logits(data: TrainingRows) -> list[TopLogits]:
    generator = torch.Generator().manual_seed(1)
    top_logits = []
    for row, start in zip(data.rows, data.starts, strict=True):
        log_p, ids = torch.randn(len(row.ids) - start, 303, generator=generator).log_softmax(-1).topk(5)
        top_logits.append(TopLogits(ids.int().numpy(), log_p.half().numpy()))
    return top_logits


def plain_loss(checkpoint: Path, data: TrainingRows) -> float:
    """Return the mean loss over the tokens of all rows, computed one row at a time."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    nats = []
    for place, (row, start) in enumerate(zip(data.rows, data.starts, strict=True)):
        logits = model(torch.tensor([row.ids])).logits[0, start - 1 : -1]
        if data.top_logits is None:
            nats.append(torch.nn.functional.cross_entropy(logits, torch.tensor(row.ids[start:]), reduction="none"))
        else:
            top_logits = data.top_logits[place]
            nats.append(
                distillation_loss(logits, torch.tensor(top_logits.ids).long(), torch.tensor(top_logits.log_p).float())
            )
    return float(torch.cat(nats).mean().detach())


def test_a_distilled_step_has_the_loss_of_a_plain_computation(
    checkpoint: Path, data: TrainingRows, tmp_path: Path
) -> None:
    options = replace(OPTIONS, loss="distill", batch_size=11, micro_batch_size=11, checkpoint_steps=1)
    data = replace(data, top_logits=random_top_logits(data))
    trained = run(checkpoint, data, options, tmp_path / "ours")
    assert trained.points[0].loss == pytest.approx(plain_loss(checkpoint, data.part(1, 12)), rel=1e-4)


def test_a_step_on_the_whole_vocabulary_has_the_loss_of_a_plain_computation(
    checkpoint: Path, data: TrainingRows, tmp_path: Path
) -> None:
    dense_folder = tmp_path / "dense"
    shutil.copytree(checkpoint, dense_folder)
    dense = AutoModelForCausalLM.from_pretrained(checkpoint)
    torch.manual_seed(1)
    for parameter in dense.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    dense.save_pretrained(dense_folder)
    student = AutoModelForCausalLM.from_pretrained(checkpoint)
    divergences = []
    for row, start in zip(data.rows, data.starts, strict=True):
        with torch.no_grad():
            log_p, log_q = (
                model(torch.tensor([row.ids])).logits[0, start - 1 : -1].log_softmax(-1) for model in (dense, student)
            )
        divergences.append((log_p.exp() * (log_p - log_q)).sum(-1))
    options = replace(OPTIONS, loss="distill", top_k="all", batch_size=11, micro_batch_size=11, checkpoint_steps=1)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = ModelSpec("tiny", str(checkpoint))
    setup = TrainingSetup(model, tokenizer, data, options, tmp_path, on_gpu=False)
    setup = replace(setup, dense=locate(ModelSpec("dense", str(dense_folder))))
    losses = []
    for micro_batch_size in (11, 1):
        with quiet():
            trainer = make_trainer(setup, micro_batch_size)
            assert trainer.evaluate()["eval_loss"] == pytest.approx(float(divergences[0].mean()), rel=1e-5)
            trainer.train()
        losses += [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == pytest.approx([float(torch.cat(divergences[1:]).mean())] * 2, rel=1e-4)


@pytest.mark.parametrize("loss", ["tokens", "distill"])
def test_a_held_out_loss_is_the_mean_over_its_tokens(
    checkpoint: Path, data: TrainingRows, tmp_path: Path, loss: Any
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    options = replace(OPTIONS, loss=loss, held_out=0.5, batch_size=4)
    if loss == "distill":
        data = replace(data, top_logits=random_top_logits(data))
    losses = []
    for micro, workers in ((1, 1), (2, 1), (4, 1), (2, 2)):  # in this process the first of two sees all rows
        options = replace(options, micro_batch_size=micro, workers=workers)
        with quiet():
            model = ModelSpec("tiny", str(checkpoint))
            trainer = make_trainer(TrainingSetup(model, tokenizer, data, options, tmp_path, on_gpu=False), micro)
            losses.append(trainer.evaluate()["eval_loss"])
    assert losses == pytest.approx([plain_loss(checkpoint, data.part(0, 6))] * 4, rel=1e-5)


def test_a_killed_training_keeps_its_patience(checkpoint: Path, data: TrainingRows, tmp_path: Path) -> None:
    options = replace(OPTIONS, learning_rate=0.3, schedule="constant", epochs=8, checkpoint_steps=1, patience=3)
    whole = run(checkpoint, data, options, tmp_path / "whole")
    assert whole.best_step + 3 == whole.steps < 24
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint, data, options, tmp_path / "killed", stop_at(whole.steps))
    assert run(checkpoint, data, options, tmp_path / "killed").points == whole.points


def damaged(file: Path) -> list[bytes]:
    """Yield damaged contents of a checkpoint's file, as after a power cut or on a bad disk."""
    whole = file.read_bytes()
    middle = len(whole) // 2
    flipped = [whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]]  # among numbers in a large file alone
    return [b"", whole[:middle], *(flipped if file.name == "optimizer.pt" else [])]


def test_a_killed_training_resumes_to_the_same_bytes(
    checkpoint: Path, data: TrainingRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(OPTIONS, lora_dropout=0.3, epochs=2)
    whole = run(checkpoint, data, options, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint, data, options, tmp_path / "killed", stop_at(5))
    (tmp_path / "killed/checkpoints/checkpoint-6").mkdir()  # begun, and not written to its end
    last = last_checkpoint(tmp_path / "killed/checkpoints")
    assert last is not None
    assert last.endswith("checkpoint-4")
    for file in Path(last).iterdir():
        copy = tmp_path / "killed/checkpoints/checkpoint-6" / file.name
        for content in damaged(file) if file.suffix not in (".bin", ".jinja", ".md") else ():
            shutil.copytree(last, copy.parent, dirs_exist_ok=True)
            copy.write_bytes(content)
            assert last_checkpoint(copy.parent.parent) == last, f"{file.name}, {len(content)} bytes"
    resumed = run(checkpoint, data, options, tmp_path / "killed")
    assert resumed.points == whole.points
    assert len({*adapters(tmp_path)}) == 1
    monkeypatch.setattr(training, "make_trainer", pytest.fail)
    assert run(checkpoint, data, options, tmp_path / "killed") == resumed, "done once"


@pytest.mark.parametrize("end", [{"max_steps": 5}, {"epochs": 2}, {"patience": 1, "epochs": 8, "learning_rate": 0.3}])
def test_a_training_that_is_killed_at_its_end_trains_no_further(
    checkpoint: Path, data: TrainingRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: dict[str, Any]
) -> None:
    options = replace(OPTIONS, schedule="constant", **{"epochs": 8, "patience": None, **end})

    # Where the best weights are loaded, and once they are written.
    for owner, name in ((RecoveryTrainer, "_load_best_model"), (training, "_history")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, lambda *arguments: interrupt())
            run(checkpoint, data, options, tmp_path / "killed")
    whole, resumed = (run(checkpoint, data, options, tmp_path / name) for name in ("whole", "killed"))
    assert replace(resumed, seconds=whole.seconds) == whole
    assert whole.steps < 24
    assert len({*adapters(tmp_path)}) == 1


def run_to_step(step: int, checkpoint: Path, data: TrainingRows, options: RecoveryOptions, folder: Path) -> None:
    """Train, and kill this process as soon as so many steps are done."""
    run(checkpoint, data, options, folder, stop_at(step, lambda: os.kill(os.getpid(), signal.SIGKILL)))


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
def test_two_workers_have_the_losses_of_one_and_resume_after_a_kill(
    checkpoint: Path, data: TrainingRows, tmp_path: Path
) -> None:
    options = replace(OPTIONS, epochs=2, micro_batch_size=1, held_out=0.27)  # 3 rows, for 2 workers
    data = data.part(0, 11)
    single = run(checkpoint, data, options, tmp_path / "alone")
    options = replace(options, workers=2)
    together = run(checkpoint, data, options, tmp_path / "together")
    assert single.steps == together.steps == 4
    assert single.tokens == together.tokens
    assert [(point.step, point.tokens) for point in together.points] == [
        (point.step, point.tokens) for point in single.points
    ]
    losses = [[point.loss or point.held_out for point in training.points] for training in (together, single)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    arguments = (3, checkpoint, data, options, tmp_path / "killed")
    process = multiprocessing.get_context("spawn").Process(target=run_to_step, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert last_checkpoint(tmp_path / "killed/checkpoints", 2)
    assert run(checkpoint, data, options, tmp_path / "killed").points == together.points


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
def test_short_memory_in_a_worker_is_reported_as_such() -> None:
    from raysearch.recovery.workers import on_workers

    def short(on_progress: Any, warn: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        on_workers(short, 1, ClusterOptions(), on_gpu=False, on_progress=nothing, warn=nothing)


def test_memory_that_does_not_hold_a_batch_gets_half_of_it(
    checkpoint: Path, data: TrainingRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = make_trainer
    sizes = []

    class Cycle:
        """A model that is part of a reference cycle."""

        def __init__(self) -> None:
            self.cycle = self

    def short(*args: Any, **more: Any) -> Any:
        sizes.append(args[-1])
        if args[-1] > 1:
            references.append(weakref.ref(Cycle()))
            raise torch.OutOfMemoryError("no room")
        assert references[0]() is None, "the model that did not fit is gone before the next is loaded"
        trainer: Any = make(*args, **more)
        references.append(weakref.ref(next(trainer.model.parameters())))
        return trainer

    references = list[Any]()
    monkeypatch.setattr(training, "make_trainer", short)
    gc.disable()
    try:
        trained = run(checkpoint, data, OPTIONS, tmp_path / "ours")
    finally:
        gc.enable()
    assert sizes == [2, 1]
    assert trained.micro_batch_size == 1
    assert trained.steps == 3
    assert references[1]() is None, "what was trained is gone before others need the device"


def test_weights_are_of_the_dtype_that_is_computed_in(checkpoint: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).save_pretrained(tmp_path)
    model = ModelSpec("tiny", str(tmp_path))
    full = replace(OPTIONS, method="full")
    cases = [(OPTIONS, False, torch.float32), (OPTIONS, True, torch.bfloat16), (full, True, torch.float32)]
    for options, bf16, dtype in cases:
        assert load_pruned(model, options, on_gpu=True, bf16=bf16).dtype == dtype


def test_refuses_layers_that_are_not_there_and_a_loss_that_is_not_finite(
    checkpoint: Path, data: TrainingRows, tmp_path: Path, sentences: Sentences
) -> None:
    for targets in (["nothing"], ["lm_head"]):
        with sentences.refused(UserError):
            run(checkpoint, data, replace(OPTIONS, targets=targets), tmp_path / "targets")
    with sentences.refused(UserError):
        run(
            checkpoint,
            data,
            replace(OPTIONS, learning_rate=1e30, warmup_steps=0, epochs=2),
            tmp_path / "diverged",
        )


def test_a_growing_loss_is_reported_once() -> None:
    warnings: list[str] = []
    watch = training._Watch(0.1, lambda _: None, warnings.append)
    history = list[dict[str, float]]()
    for step, loss in enumerate([2.0, 2.2, 1.8, 1.7, 3.5, 2.9, 3.2, 3.1, 3.3, 3.4], start=1):
        history.append({"loss": loss})
        state = SimpleNamespace(global_step=step, max_steps=20, log_history=history)
        watch.on_log(None, state, None, logs=history[-1])
        assert bool(warnings) == (step >= 9), "when the last three are all half as high again as the first three"
    assert warnings == [
        "the training's loss grows (3.300 at step 9, from 2.000); use a lower recovery.learning_rate than 0.1"
    ]


def test_the_tokens_that_count_are_those_of_the_answer(data: TrainingRows) -> None:
    encoded = data.dataset()[1]
    assert [label for label in encoded["labels"] if label >= 0] == [*map(ord, "bbbb"), 301]


def test_linear_layers_that_peft_refuses_get_no_adapter_and_models_without_experts_train(
    data: TrainingRows, tmp_path: Path, checkpoint: Path, subtests: pytest.Subtests
) -> None:
    layers = {"layer_types": ["mamba", "attention"], "num_local_experts": 0, "num_experts_per_tok": 0}
    granite = {"mamba_d_state": 32, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_d_head": 32, **layers}
    kinds: dict[str, tuple[dict[str, Any], set[str]]] = {
        "mamba2": ({"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1}, {"in_proj"}),
        "granitemoehybrid": (
            {**granite, "shared_intermediate_size": 32, "intermediate_size": 32},
            {"in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj", "input_linear", "output_linear"},
        ),
    }
    for kind, (settings, expected) in kinds.items():
        sizes = {"vocab_size": 303, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        folder = tmp_path / kind
        tiny(kind, **sizes, num_key_value_heads=2, **settings).save_pretrained(folder)
        AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
        for loss in ("tokens", "distill"):
            with subtests.test(kind=kind, loss=loss):
                rows = data if loss == "tokens" else replace(data, top_logits=random_top_logits(data))
                training_result = run(
                    folder, rows, replace(OPTIONS, loss=loss, max_steps=1), tmp_path / f"{kind}-{loss}"
                )
                trained = tmp_path / f"{kind}-{loss}" / "trained"
                targets = json.loads((trained / "adapter_config.json").read_text())["target_modules"]
                assert {name.rpartition(".")[2] for name in targets} == expected
                assert training_result.steps == 1
                with safe_open(trained / "adapter_model.safetensors", "pt") as weights:
                    moved = [name for name in weights.keys() if "lora_B" in name and weights.get_tensor(name).any()]  # noqa: SIM118
                assert moved, "one step without a warm-up changes weights"


def test_a_training_that_changes_nothing_warns(
    checkpoint: Path, data: TrainingRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings = list[str]()
    model = ModelSpec("tiny", str(checkpoint))
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    for rate in (1e-300, 0.01):
        (folder := tmp_path / str(rate)).mkdir()
        options = replace(OPTIONS, learning_rate=rate, max_steps=2)
        setup = TrainingSetup(model, tokenizer, data, options, folder, on_gpu=False)
        train(setup, ClusterOptions(), on_progress=nothing, warn=warnings.append)
    (sentence,) = warnings
    assert sentence.startswith("the training has changed no weight, so the recovered model is the pruned one")


def test_what_bitsandbytes_cannot_compute_is_a_sentence(checkpoint: Path, data: TrainingRows, tmp_path: Path) -> None:
    theirs = ModuleType("bitsandbytes.nn")
    exec("def fail():\n    raise RuntimeError('odd width')", vars(theirs))
    for method, expected in (("qlora", UserError), ("lora", RuntimeError)):
        with pytest.raises(expected) as caught, naming_bitsandbytes(replace(OPTIONS, method=method)):  # type: ignore[arg-type]
            theirs.fail()
        assert ("use recovery.method=lora" in str(caught.value)) == (method == "qlora")
