"""Hidden-state distillation: its loss is that of plain transformers, and the written model has the reported one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from raysearch.cluster.options import ClusterOptions
from raysearch.core.json import from_json
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.recovery import cut_training
from raysearch.recovery.checkpoint import CHANGED, RecoveryEvidence, write_checkpoint
from raysearch.recovery.cut_training import CUTS
from raysearch.recovery.hidden import CutTrainer
from raysearch.recovery.layer_cuts import LayerCut, layer_cuts
from raysearch.recovery.planned_recovery import check_cuts
from raysearch.recovery.range_test import RangeTest
from raysearch.recovery.recovery_record import Training
from raysearch.recovery.spec import RecoveryOptions
from raysearch.recovery.trainer import TrainingRows, TrainingSetup
from raysearch.recovery.training import train
from tests.calibration.tokenizers import BOS, EOS, PLAIN, characters
from tests.models.families import tiny
from tests.recovery.test_training import interrupt, nothing, rows
from tests.sentences import Sentences

pytestmark = pytest.mark.slow

OPTIONS = RecoveryOptions(
    loss="hidden",
    method="full",
    max_tokens=64,
    batch_size=4,
    micro_batch_size=2,
    learning_rate=0.003,
    warmup_steps=1,
    held_out=0.3,
    epochs=4,
    checkpoint_steps=3,
)
MASK = Mask.of(2, 4, 5)  # of seven layers: layer 1 learns 2, layer 3 learns 4 and 5
N_LAYERS = 7


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a tiny model with seven layers, and the same without the layers of the mask."""
    folder = tmp_path_factory.mktemp("hidden")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": N_LAYERS, "num_attention_heads": 2}
    tokens = {"vocab_size": 303, "bos_token_id": BOS, "eos_token_id": EOS}
    dense = tiny("llama", **sizes, **tokens, max_position_embeddings=64)
    dense.save_pretrained(folder / "dense")
    kept = [layer for index, layer in enumerate(dense.model.layers) if index not in MASK]
    dense.model.layers = torch.nn.ModuleList(kept)
    dense.config.num_hidden_layers = len(kept)
    dense.save_pretrained(folder / "pruned")
    for name in ("dense", "pruned"):
        characters(template=PLAIN).save_pretrained(folder / name)
    return folder / "dense", folder / "pruned"


@pytest.fixture
def setup(models: tuple[Path, Path], tmp_path: Path) -> TrainingSetup:
    dense, pruned = models
    tokenizer = AutoTokenizer.from_pretrained(pruned)
    data = TrainingRows.of(rows(tokenizer), OPTIONS)
    return TrainingSetup(
        ModelSpec("pruned", str(pruned)),
        tokenizer,
        data,
        OPTIONS,
        tmp_path,
        on_gpu=False,
        dense=locate(ModelSpec("dense", str(dense))),
        cuts=layer_cuts(MASK, N_LAYERS),
    )


def plain_error(dense: Path, pruned: Path, data: TrainingRows, cut: LayerCut) -> float:
    """Return the mean error at a cut over the positions of all rows, from the hidden states of plain transformers."""
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in (dense, pruned)]
    errors = list[Tensor]()
    for row, start in zip(data.rows, data.starts, strict=True):
        with torch.no_grad():
            states = [hidden_states(model, row.ids) for model in models]
        part = slice(start - 1, len(row.ids) - 1)
        target = states[0][cut.last + 1][0, part]
        unchanged = states[0][cut.before + 1][0, part]
        learned = states[1][cut.block + 1][0, part]
        errors.append((learned - target).pow(2).sum(-1) / (target - unchanged).pow(2).sum(-1))
    return float(torch.cat(errors).mean())


def hidden_states(model: Any, ids: tuple[int, ...]) -> list[Tensor]:
    """Return what enters the first layer and what leaves each layer, before any final norm."""
    states = list[Tensor]()
    hooks = [
        layer.register_forward_hook(lambda layer, args, output: states.append(output)) for layer in model.model.layers
    ]
    embedded = model.model.embed_tokens(torch.tensor([ids]))
    model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return [embedded, *states]


def run(setup: TrainingSetup, folder: Path, on_progress: Any = nothing, **options: Any) -> Training:
    folder.mkdir(exist_ok=True)
    setup = replace(setup, folder=folder, options=replace(setup.options, **options))
    return train(setup, ClusterOptions(), on_progress=on_progress, warn=nothing)


def test_cuts_are_runs_after_a_kept_layer() -> None:
    assert layer_cuts(MASK, N_LAYERS) == (LayerCut(1, 2, 1), LayerCut(3, 5, 2))
    assert layer_cuts(Mask.of(0, 1, 5, 6), N_LAYERS) == (LayerCut(4, 6, 2),), "nothing comes before layer 0"
    assert layer_cuts(Mask(), N_LAYERS) == ()


def test_the_loss_is_that_of_plain_hidden_states(setup: TrainingSetup, models: tuple[Path, Path]) -> None:
    trainer = CutTrainer(setup, 2)
    for cut in setup.cuts:
        expected = plain_error(*models, trainer.held_out_rows, cut)
        assert trainer.held_out_loss(cut) == pytest.approx(expected, rel=1e-5)
    assert trainer.held_out_loss(setup.cuts[0]) == pytest.approx(1.0), "before any training, what the run did is lost"


def test_removed_layers_that_change_nothing_lose_nothing(setup: TrainingSetup, tmp_path: Path) -> None:
    assert setup.dense is not None
    dense = AutoModelForCausalLM.from_pretrained(setup.dense.folder)
    for projection in (dense.model.layers[2].self_attn.o_proj, dense.model.layers[2].mlp.down_proj):
        projection.weight.data.zero_()
    dense.save_pretrained(tmp_path / "idle")
    setup = replace(setup, dense=locate(ModelSpec("idle", str(tmp_path / "idle"))))
    assert CutTrainer(setup, 2).held_out_loss(setup.cuts[0]) == 0, "and not 0 / 0"


def test_a_step_trains_the_layer_before_the_cut_alone(setup: TrainingSetup, models: tuple[Path, Path]) -> None:
    """The step is that of plain PyTorch."""
    dense, pruned = models
    cut = setup.cuts[0]
    trainer = CutTrainer(setup, 1)
    trainer.step(cut, range(4), trainer.optimizer(cut, 0.01))
    model = AutoModelForCausalLM.from_pretrained(pruned)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    block = model.model.layers[cut.block]
    errors = list[Tensor]()
    for row, start in zip(trainer.training_rows.rows[:4], trainer.training_rows.starts[:4], strict=True):
        with torch.no_grad():
            states = hidden_states(AutoModelForCausalLM.from_pretrained(dense), row.ids)
        part = slice(start - 1, len(row.ids) - 1)
        target, unchanged = (states[layer + 1][0, part] for layer in (cut.last, cut.before))
        learned = hidden_states(model, row.ids)[cut.block + 1][0, part]
        errors.append((learned - target).pow(2).sum(-1) / (target - unchanged).pow(2).sum(-1))
    torch.cat(errors).mean().backward()
    torch.nn.utils.clip_grad_norm_(block.parameters(), 1.0)
    torch.optim.AdamW(block.parameters(), 0.01, weight_decay=0.0).step()
    after = model.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {f"model.layers.{cut.block}.{name}" for name, _ in block.named_parameters()}
    for name, value in trainer.parameters(cut).items():
        assert torch.allclose(value, after[name], atol=1e-5), name
    assert trainer.parameters(cut).keys() == changed


def test_the_written_checkpoint_has_the_reported_error(
    setup: TrainingSetup, models: tuple[Path, Path], tmp_path: Path
) -> None:
    dense, pruned = models
    trained = run(setup, tmp_path / "kept")
    evidence = RecoveryEvidence(
        "recover-1", "search-1", "tiny", MASK, N_LAYERS, setup.options, 12, {"source": "sotu"}, {}, trained, "0"
    )
    write_checkpoint(setup.model, tmp_path / "kept/trained", tmp_path / "out", evidence)
    held_out = setup.data.part(0, OPTIONS.n_held_out(len(setup.data.rows)))
    errors = [plain_error(dense, tmp_path / "out", held_out, cut) for cut in setup.cuts]
    reported = [loss for _, loss in trained.held_out]
    assert min(reported[-3:]) == pytest.approx(sum(errors) / 2, rel=1e-4), "the mean over the cuts"
    assert min(reported[-3:]) < 0.97 * reported[0], "it has learned something"
    before, after = (load_file(folder / "model.safetensors") for folder in (pruned, tmp_path / "out"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == load_file(tmp_path / "kept/trained" / CHANGED).keys()
    assert {int(name.split(".")[2]) for name in changed} == {1, 2}
    assert "hidden states" in (tmp_path / "out/README.md").read_text()


def test_a_killed_training_repeats_no_cut_and_has_the_same_bytes(
    setup: TrainingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(setup, tmp_path / "whole")

    def stop(line: str) -> None:
        if "step 4 of 8 at cut 2 of 2" in line:
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        run(setup, tmp_path / "killed", stop)
    assert [folder.name for folder in (tmp_path / "killed" / CUTS).iterdir()] == ["1"]
    lines = list[str]()
    resumed = run(setup, tmp_path / "killed", lines.append)
    assert resumed.points == whole.points
    assert not [line for line in lines if "cut 1 of 2" in line]
    contents = [(tmp_path / name / "trained" / CHANGED).read_bytes() for name in ("whole", "killed")]
    assert len({*contents}) == 1
    assert not (tmp_path / "killed" / CUTS).exists()
    monkeypatch.setattr(cut_training, "CutTrainer", pytest.fail)
    assert run(setup, tmp_path / "killed") == resumed, "done once"


def test_patience_ends_each_cut_and_the_best_weights_are_kept(setup: TrainingSetup, tmp_path: Path) -> None:
    trained = run(setup, tmp_path / "hot", learning_rate=0.3, schedule="constant", checkpoint_steps=1, patience=2)
    assert trained.steps < 16, "of 8 at each cut"
    shutil.rmtree(tmp_path / "hot/trained")
    trainer = CutTrainer(setup, 2)
    (cut, _) = setup.cuts
    history = trainer.train(cut, 0.3, lambda points, norm: None)
    assert trainer.held_out_loss(cut) == pytest.approx(min(history.held_out))


def test_rows_of_other_lengths_change_no_error(setup: TrainingSetup) -> None:
    alone, together = (CutTrainer(setup, n).held_out_loss(setup.cuts[1]) for n in (1, 4))
    assert alone == pytest.approx(together, rel=1e-5)


def test_what_cannot_be_trained_layer_by_layer_is_refused(sentences: Sentences) -> None:
    cases = [{"method": "lora"}, {"workers": 2}, {"packing": True}, {"gradient_checkpointing": True}]
    sentences.refused_each(lambda **changes: replace(OPTIONS, **changes), cases)
    warnings = list[str]()
    for mask in (Mask(), Mask.of(0, 1), Mask.of(3, "5a")):
        with sentences.refused(UserError, str(mask)):
            check_cuts(mask, N_LAYERS, warnings.append)
    check_cuts(MASK, N_LAYERS, warnings.append)
    assert not warnings
    check_cuts(Mask.of(0, 3), N_LAYERS, warnings.append)
    sentences.check("\n".join(warnings), "a warning")


def test_a_rate_is_tested_at_the_first_cut(setup: TrainingSetup, tmp_path: Path) -> None:
    trained = run(setup, tmp_path / "auto", learning_rate="auto")
    range_result = from_json(RangeTest, (tmp_path / "auto/learning_rate.json").read_text())
    assert trained.learning_rate == range_result.rate
    assert range_result.losses[0] == pytest.approx(1.0, rel=0.05)
    assert min(range_result.losses) < 0.97
