"""recovery=closed_form: a repair without training. Its oracles are plain transformers and NumPy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from raysearch.recovery import cut_choice
from raysearch.recovery.cut_choice import CutChooser
from raysearch.recovery.cut_jobs import LossJob, SumsJob
from raysearch.recovery.progress import run_jobs
from raysearch.recovery.recovery_record import RepairedCut
from tests.cli.conftest import Run, World
from tests.models.families import tiny
from tests.recovery.conftest import done
from tests.sentences import Sentences

Command = Callable[..., Any]  # returns what a command prints as JSON

MASK = [1, 3]  # two cuts
HELD_OUT = 0.5  # the share of the rows
SAMPLES = ["data.samples=240", "recovery.max_tokens=48", "data.seq_len=24", "recovery.held_out=0.5"]
ASSESS = ["assess=none", "assess.probe.enabled=false"]


@pytest.fixture(scope="module")
def text(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tiny model writes: text on which the dense model is better than a pruned one."""
    model: Any = AutoModelForCausalLM.from_pretrained(world.model)
    tokenizer = AutoTokenizer.from_pretrained(world.model)
    torch.manual_seed(0)
    first_tokens = torch.full((200, 1), tokenizer.bos_token_id)
    ids = model.generate(first_tokens, do_sample=True, max_new_tokens=60, min_new_tokens=60, top_k=0)
    file = tmp_path_factory.mktemp("written") / "written.txt"
    file.write_text("\n\n".join(tokenizer.batch_decode(ids, skip_special_tokens=True)))
    return file


@pytest.fixture
def search(run: Run, world: World, cwd: Path, text: Path) -> Command:
    """Search a mask of layers 1 and 3."""

    def run_search(**changes: object) -> Any:
        protect = [layer for layer in range(5) if layer not in MASK]
        overrides = world.search(data__path=text, protect=str(protect).replace(" ", ""), searcher="one_shot", **changes)
        return done(run, "search", *overrides)

    return run_search


@pytest.fixture
def recover(run: Run, text: Path) -> Command:
    """Repair the mask of the last search."""

    def run_recover(out: str, *options: str) -> Any:
        data = ["data=file", f"data.path={text}"]
        return done(run, "recover", "latest", "recovery=closed_form", *data, *SAMPLES, *ASSESS, *options, "--out", out)

    return run_recover


def rows() -> tuple[list[list[int]], list[list[int]]]:
    """Return the held-out rows of the only recovery, and those that it is fitted to."""
    (file,) = Path("mlruns/recoveries").glob("*/rows.jsonl")
    ids = [json.loads(line)["ids"] for line in file.read_text().splitlines()]
    n_held_out = round(HELD_OUT * len(ids))
    return ids[:n_held_out], ids[n_held_out:]


def load(folder: Path | str) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def loss(folder: Path | str, ids: Sequence[Sequence[int]]) -> float:
    """Return the loss of a checkpoint in plain transformers, in nats per token."""
    tokens = torch.tensor(ids)
    return load(folder)(tokens, labels=tokens).loss.item()


def changed_names(folder: str, pruned: str) -> set[str]:
    """Return the names of the tensors whose values differ from those of the pruned checkpoint."""
    before = load_file(f"{pruned}/model.safetensors")
    after = load_file(f"{folder}/model.safetensors")
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_the_repaired_checkpoint_has_the_recorded_losses_in_plain_transformers(
    run: Run, search: Command, recover: Command
) -> None:
    search()
    costs = recover("", "--dry-run")
    assert costs["steps"] == 2
    expected = 2 / 5 + 4 / 5 + (1 + 2 * 4) * HELD_OUT
    assert costs["forwards"] == pytest.approx(expected, rel=0.02), "up to each cut, and 9 times held-out rows"
    result = recover("repaired")
    done(run, "export", "latest", "--out", "pruned")
    cuts = result["training"]["cuts"]
    assert [cut["cut"] for cut in cuts] == ["{1}", "{3}"]
    held_out, _ = rows()
    assert loss("pruned", held_out) == pytest.approx(cuts[0]["held_out_before"], rel=1e-5)
    assert loss("repaired", held_out) == pytest.approx(cuts[1]["held_out"], rel=1e-5)
    assert cuts[0]["held_out_before"] > cuts[0]["held_out"] >= cuts[1]["held_out"], "the text is the dense model's own"
    projections = {"model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight"}
    assert changed_names("repaired", "pruned") & projections
    shown = run("show", "latest").out
    assert "Cut {1}: a linear map that predicts" in " ".join(shown.split())


def test_the_merged_projection_is_that_of_an_independent_solution(
    world: World, search: Command, recover: Command
) -> None:
    search()
    result = recover("repaired", "recovery.repairs=[linear]", "recovery.ridges=[0.5]")
    assert result["training"]["cuts"][0]["ridge"] == 0.5
    dense = load(world.model)
    added: list[torch.Tensor] = []
    dense.model.layers[0].mlp.register_forward_hook(lambda module, args, output: added.append(output))
    with torch.no_grad():
        states = dense(torch.tensor(rows()[1]), output_hidden_states=True).hidden_states
    before, after = (states[depth].flatten(0, 1).double().numpy() for depth in (1, 2))
    roots = 1 / np.linalg.norm(after, axis=1, keepdims=True)
    inputs = roots * added[0].flatten(0, 1).double().numpy()
    ridge = 0.5 * np.trace(inputs.T @ inputs) / inputs.shape[1]
    rows_of_ridge = np.sqrt(ridge) * np.eye(inputs.shape[1])
    targets = np.vstack([roots * (after - before), np.zeros_like(rows_of_ridge)])
    matrix, *_ = np.linalg.lstsq(np.vstack([inputs, rows_of_ridge]), targets)
    weight = dense.model.layers[0].mlp.down_proj.weight.detach().double().numpy()
    expected = (np.eye(len(matrix)) + matrix.T) @ weight
    merged = load_file("repaired/model.safetensors")["model.layers.0.mlp.down_proj.weight"].double().numpy()
    np.testing.assert_allclose(merged, expected, rtol=1e-4, atol=1e-5)


def test_scales_are_merged_into_what_later_halves_add(
    run: Run, search: Command, recover: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_choice, "_best", lambda losses: len(losses) - 1)  # whether or not it lowers the loss
    search()
    result = recover("repaired", "recovery.repairs=[scale]")
    done(run, "export", "latest", "--out", "pruned")
    cuts = result["training"]["cuts"]
    scales = [cut["scale"] for cut in cuts]
    assert 1 not in scales
    assert loss("repaired", rows()[0]) == pytest.approx(cuts[1]["held_out"], rel=1e-5)
    names = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
    assert changed_names("repaired", "pruned") == {f"model.layers.{layer}.{name}" for layer in (1, 2) for name in names}
    pruned = load_file("pruned/model.safetensors")
    repaired = load_file("repaired/model.safetensors")
    name = "model.layers.2.mlp.down_proj.weight"  # after both cuts
    torch.testing.assert_close(repaired[name] * scales[0] * scales[1], pruned[name])


def test_a_repair_that_is_killed_ends_with_the_same_bytes(
    search: Command, recover: Command, run: Run, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search()
    recover("whole")
    shutil.rmtree("mlruns/recoveries")
    choose = CutChooser.choose
    with monkeypatch.context() as patch:

        def choose_first(self: Any, cut: Any, repairs: Any, losses_before: Any) -> Any:
            if repairs:
                raise KeyboardInterrupt
            return choose(self, cut, repairs, losses_before)

        patch.setattr(CutChooser, "choose", choose_first)
        with pytest.raises(AssertionError):
            recover("resumed")
    jobs: list[Any] = []

    def run_recorded_jobs(new_jobs: Any, *args: Any) -> Any:
        jobs.extend(new_jobs)
        return run_jobs(new_jobs, *args)

    monkeypatch.setattr(cut_choice, "run_jobs", run_recorded_jobs)
    recover("resumed")
    assert {str(job.cut) for job in jobs if isinstance(job, SumsJob)} == {"{3}"}
    candidates = [candidate for job in jobs if isinstance(job, LossJob) for candidate in job.candidates]
    assert all(candidate.values or candidate.scale != 1 for candidate in candidates), "the loss before is known"
    assert Path("resumed/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


def test_a_cut_that_no_repair_helps_is_left_as_it_is(
    run: Run, world: World, search: Command, recover: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    search()

    def rising(self: Any, cut: Any, repairs: Any, candidates: Any, first_losses: Any) -> Any:
        return np.array([[9.0 + index] * len(self.held_out) for index in range(len(candidates))])

    monkeypatch.setattr(CutChooser, "_losses", rising)
    result = recover("repaired")
    done(run, "export", "latest", "--out", "pruned")
    assert not changed_names("repaired", "pruned")
    assert all("not repaired, since nothing lowers" in sentence for sentence in sentences_of(result))


def sentences_of(result: Any) -> list[str]:
    return [RepairedCut(**cut).sentence for cut in result["training"]["cuts"]]


def test_models_of_other_forms(
    run: Run, world: World, text: Path, cwd: Path, recover: Command, search: Command, sentences: Sentences
) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5, "pad_token_id": 0}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, "head_dim": 8}
    for family in ("gemma2", "olmo2", "gpt_neox"):
        tiny(family, **sizes).save_pretrained(cwd / family)
        for file in world.model.glob("token*"):
            shutil.copyfile(file, cwd / family / file.name)
    search(model=cwd / "gemma2")
    result = recover("repaired")
    assert all("a norm follows the projection of" in sentence for sentence in sentences_of(result))
    search(model=cwd / "olmo2")
    result = recover("repaired", "--overwrite")
    assert all("the layers do not begin with a norm" in sentence for sentence in sentences_of(result))
    search(model=cwd / "gpt_neox")
    data = ["data=file", f"data.path={text}", *SAMPLES]
    sentences.refused_command(
        run("recover", "latest", "recovery=closed_form", *data, *ASSESS, "--out", "x"), "parallel"
    )
    nothing = run("recover", "latest", "recovery=closed_form", "recovery.repairs=[]", *ASSESS, "--out", "x")
    sentences.refused_command(nothing, "nothing to try")
