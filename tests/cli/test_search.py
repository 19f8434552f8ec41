"""`raysearch search` and `raysearch score`, as people and as programs use them."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import raysearch
from raysearch.core.versions import VERSION
from raysearch.models import source
from raysearch.searching.result import in_brief
from tests.cli.answers import json_answer
from tests.cli.conftest import MAIN, N_LAYERS, Run, World
from tests.models.conftest import write_llama
from tests.sentences import Sentences
from tests.tracking.recorded import Recorded

#: What may differ between two runs of the same search.
TIMES = {"seconds", "searcher_seconds", "busy_share", "pool", "mlflow_run_id", "mlflow_receipt", "ended"}
EFFORT = {"evaluations", "layer_forwards", "layer_tokens"}  # what the ledger saves
GREEDY = 5 + 4  # masks that two rounds of greedy see
SHARDS = {"data.shard_samples": 1}  # work for two replicas


def numbers(result: dict[str, Any], without: set[str] = TIMES | EFFORT) -> dict[str, Any]:
    """Return the numbers of a result that must not differ between runs."""
    return {key: value for key, value in result.items() if key not in without}


@pytest.fixture(scope="module")
def recorded(
    world: World, tmp_path_factory: pytest.TempPathFactory, one_ray: None, store_with_tables: Path
) -> tuple[Path, dict[str, Any]]:
    """Run a search with two Ray replicas and MLflow; return its folder and its result."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "mlruns").mkdir()
    shutil.copy(store_with_tables, folder / "mlruns")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        search = raysearch.search(*world.overrides(**SHARDS, remove=2, cluster="local", cluster__replicas=2))
    return folder, in_brief(search.result)


def test_people_get_a_table_and_what_to_type_next(run: Run, world: World) -> None:
    outcome = run("search", *world.search(store="my store", searcher="greedy"))
    result = json_answer(run("search", *world.search(store="my store"), "--json"))
    assert outcome.code == 0
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in table(outcome.out)}
    assert rows["loss (nats per token)"] == [f"{result['dense_loss']:.4f}", f"{result['loss']:.4f}"]
    assert rows["perplexity"] == [f"{result['dense_perplexity']:.2f}", f"{result['perplexity']:.2f}"]
    assert rows["layers"] == ["5", "3"]
    assert rows["parameters"][1].endswith(f"(-{result['parameters_removed'] / result['parameters']:.1%})")
    removed = ",".join(map(str, result["removed"]))
    order = ", ".join(map(str, result["removal_order"]))
    for line in (
        f"Removed layers (0-based): {{{removed}}}",
        f"In this order: {order}",
        f"Evaluations: {GREEDY} requested, {GREEDY} computed, 0 cached, each on 120 scored tokens",
        "Layer-forwards: 24 computed, 32 by a full forward per mask (1.33x fewer)",
        f"Next: raysearch export {result['search_id']} --out pruned-model --store 'my store'",
        f"raysearch show {result['search_id']} --store 'my store'",
    ):
        assert line in outcome.out
    assert "raysearch ui" not in outcome.out, "nothing was recorded that it would show"
    assert "9 masks in 2 rounds: about 24 layer-forwards" in outcome.err
    assert "round 2 done" in outcome.err


def table(text: str) -> list[list[str]]:
    """Return the rows of the tables in a text."""
    return [line.strip("│").split("│") for line in text.splitlines() if line.startswith("│")]


@pytest.mark.slow
def test_a_result_is_complete_with_ray_and_mlflow(recorded: tuple[Path, dict[str, Any]]) -> None:
    _, result = recorded
    assert set(result) >= {
        "model",
        "search_id",
        "loss",
        "perplexity",
        "dense_loss",
        "n_tokens",
        "seconds",
        *TIMES,
        *EFFORT,
    }
    assert result["n_layers"] == N_LAYERS
    assert len(result["removed"]) == 2
    assert result["removed"] == sorted(result["removed"]) == sorted(result["removal_order"])
    assert result["evaluations"] == {"requested": GREEDY, "computed": GREEDY, "cached": 0, "screened": 0}
    forwards = result["layer_forwards"]
    assert (forwards["alone"], forwards["naive"], forwards["naive_computed"]) == (24.0, 32, 32)
    assert 24 <= forwards["computed"] < 26  # a replica that is late may have masks cut, which repeats a few layers
    assert result["search_id"].startswith("greedy-m2-")
    assert 0 < result["delta_error"] < abs(result["loss"])
    assert result["measure"] == {"unit": "nats per token", "per": "token", "readout": "perplexity"}
    assert (result["n_tokens"], result["n_samples"]) == (120, 8)
    assert result["layer_tokens"]["packed"] is None
    (data,) = result["data"]
    assert (data["source"], data["samples"], data["n_tokens"]) == ("file", 8, 120)
    assert "evaluation_split" not in data


@pytest.mark.slow
def test_mlflow_holds_all_of_it(recorded: tuple[Path, dict[str, Any]], world: World) -> None:
    folder, result = recorded
    recorded_there = Recorded(folder / "mlruns")
    recorded_there.assert_complete(GREEDY + 1)  # the dense model too
    client = recorded_there.client
    parent = recorded_there.parent
    assert (parent.info.run_name, parent.info.run_id) == (result["search_id"], result["mlflow_run_id"])
    assert parent.data.params["model.path"] == str(world.model)
    assert parent.data.params["remove"] == "2"
    assert parent.data.params["cluster.replicas"] == "2"
    assert parent.data.params["versions.torch"] == torch.__version__
    assert parent.data.tags["raysearch.searcher"] == "greedy"
    assert parent.data.tags["raysearch.data"] == "file"
    assert json.loads(parent.data.tags["raysearch.removal_order"]) == result["removal_order"]
    assert parent.data.metrics["loss/pruned"] == result["loss"]
    assert parent.data.metrics["evaluations/computed"] == GREEDY
    path = client.get_metric_history(parent.info.run_id, "path/loss")
    assert [(point.step, point.value) for point in path] == [
        (entry["n_removed"], entry["loss"]) for entry in result["path"]
    ]
    files = folder / "mlruns" / "artifacts" / parent.info.run_id / "artifacts"
    assert yaml.safe_load((files / "config.yaml").read_text())["data"]["path"] == str(world.text)
    rows = list(csv.DictReader(io.StringIO((files / "trials.csv").read_text())))
    losses = {row["mask"]: row["loss"] for row in recorded_there.table()}
    assert {row["mask"]: float(row["loss"]) for row in rows} == pytest.approx(losses, abs=1e-9)
    assert [float(row["loss"]) for row in rows] == [loss for _, loss in sorted(recorded_there.losses().items())]
    children = [child for _, child in sorted(recorded_there.children.items())]
    assert [child.data.metrics["loss/pruned"] for child in children] == [entry["loss"] for entry in result["path"]]
    assert losses["{}"] == pytest.approx(result["dense_loss"], abs=1e-9)


@pytest.mark.slow
def test_two_ray_replicas_find_the_same_bits_as_an_inline_replica(
    run: Run, world: World, recorded: tuple[Path, dict[str, Any]]
) -> None:
    inline = json_answer(run("search", *world.search(**SHARDS, store="inline"), "--json"))
    assert numbers(recorded[1]) == numbers(inline)
    assert recorded[1]["evaluations"] == inline["evaluations"]


def test_the_second_time_nothing_is_run(run: Run, world: World) -> None:
    first = json_answer(run("search", *world.search(), "--json"))
    repeated = json_answer(run("search", *world.search(), "--json"))
    assert repeated["evaluations"] == {"requested": GREEDY, "computed": 0, "cached": GREEDY, "screened": 0}
    assert repeated["layer_forwards"]["computed"] == 0
    assert numbers(repeated) == numbers(first)


def test_another_searcher_runs_only_what_nobody_has(run: Run, world: World) -> None:
    greedy = json_answer(run("search", *world.search(), "--json"))
    beam = json_answer(run("search", *world.search(searcher="beam", searcher__width=3), "--json"))
    singles_pairs = 5 + 4 + 3 + 2
    assert beam["evaluations"]["requested"] <= singles_pairs
    assert beam["evaluations"]["cached"] == GREEDY
    new_pairs = beam["evaluations"]["computed"]
    assert beam["layer_forwards"]["naive_computed"] == new_pairs * (N_LAYERS - 2), "what was known saves nothing here"
    one_shot = json_answer(run("search", *world.search(searcher="one_shot"), "--json"))
    assert one_shot["evaluations"]["cached"] >= N_LAYERS
    assert beam["removal_order"] is None
    assert one_shot["removal_order"] is None
    assert beam["loss"] <= one_shot["loss"]
    separate = json_answer(run("search", *world.search(searcher="beam", searcher__width=1), "--json"))
    assert separate["removal_order"] == greedy["removal_order"], "a beam of one"
    assert separate["loss"] == greedy["loss"], "a beam of one"
    assert separate["search_id"].startswith("beam-m2-")


def test_a_dry_run_shows_the_cost_and_writes_nothing(run: Run, cwd: Path, world: World) -> None:
    cost, seconds, memory = run("search", *world.search(), "--dry-run").out.splitlines()
    assert cost.startswith("9 masks in 2 rounds: about 24 layer-forwards")
    assert re.fullmatch(
        r"Time: about [\d.]+ m?s on 1 replica, measured on \d layers? with random weights; "
        "loading the model comes on top",
        seconds,
    )
    assert re.fullmatch(
        r"Memory: about 1\.\d GB: [\d.]+ kB of shared weights and 1\.\d GB for each of 1 replica", memory
    )
    expected = json_answer(run("search", *world.search(), "--dry-run", "--json"))
    rounds = expected["rounds"]
    pool = expected["pool"]
    assert [costs["masks"] for costs in rounds] == [5, 4]
    assert rounds[0]["naive_layer_forwards"] == 20
    assert 0 < expected["seconds"] < 600
    of_file = sum(file.stat().st_size for file in world.model.glob("*.safetensors"))  # and a header
    assert 0.8 * of_file < pool["shared_bytes"] <= of_file
    assert pool["n_replicas"] == 1
    overrides = ["refine=recover", "refine.steps=7", "refine.recover_with='recovery.max_tokens=32 data.seq_len=32'"]
    refined = run("search", *world.search(), *overrides, "--dry-run")
    assert refined.code == 0, refined.err
    assert "at most; then 3 trainings of 7 steps\n" in refined.out
    assert "loading the model and the trainings come on top" in refined.out
    assert not list(cwd.iterdir())


@pytest.mark.parametrize(
    "changes",
    [
        {"data__seq_len": 10**6},
        {"model__device": "cuda:99"},
        {"store": "file/x"},
        {"data__samples": 10**5},
        {"data": "chat", "data__path": "chats.jsonl"},
        {"data": "multiple_choice", "data__path": "rows.jsonl"},
        {"data__path": "short.txt"},
        {"data": "c4", "data__path": None},
        {"remove": "auto", "objective": "kl", "budget__readout": "10%", "speed__enabled": False},
        {"remove": "auto", "budget__loss": 1, "speed__context_tokens": 64},
        {"refine": "recover"},
    ],
    ids=str,
)
def test_a_dry_run_refuses_what_the_search_would(
    changes: dict[str, object], run: Run, cwd: Path, world: World, sentences: Sentences
) -> None:
    (cwd / "file").touch()
    (cwd / "short.txt").write_text("the of and")
    (cwd / "rows.jsonl").write_text('{"body": "the of"}\n')
    (cwd / "chats.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "the"}, {"role": "assistant", "content": "of"}]}\n' * 9
    )
    before = sorted(cwd.rglob("*"))
    dry = run("search", *world.search(**changes), "--dry-run")
    sentences.refused_command(dry)
    assert sorted(cwd.rglob("*")) == before
    real = run("search", *world.search(**changes))
    assert real.code == 2
    assert dry.err.splitlines()[-1] == real.err.splitlines()[-1]


def test_a_dry_run_loads_no_weights(run: Run, cwd: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysearch.models.loading.load_model", lambda *_: pytest.fail("weights are read"))
    monkeypatch.setattr("raysearch.evaluation.replica.load_model", lambda *_: pytest.fail("weights are read"))
    assert "Time: about" in run("search", *world.search(), "--dry-run").out


def test_a_dry_run_gives_the_reason_for_a_missing_time(run: Run, cwd: Path, world: World) -> None:
    rows = [json.dumps({"question": f"the {word} of", "answer": "the"}) for word in ("law", "war", "navy", "people")]
    (cwd / "items.jsonl").write_text("\n".join(rows))
    writing = {
        "objective": "generation_accuracy",
        "data": "generation",
        "data__path": "items.jsonl",
        "data__samples": 4,
    }
    outcome = run("search", *world.search(**writing), "--dry-run")
    assert "Time: no estimate, since how much the model writes only follows from its weights" in outcome.out, (
        outcome.err
    )


def test_without_tracking_there_is_a_ledger_alone(run: Run, cwd: Path, world: World) -> None:
    result = json_answer(run("search", *world.search(), "--json"))
    assert result["mlflow_run_id"] is None
    assert {path.name for path in (cwd / "mlruns").iterdir()} <= {
        *("ledger.db", "ledger.db.lock", "ledger.db-machine", "converted")
    }


def test_the_users_own_yaml(run: Run, cwd: Path, world: World) -> None:
    config_dir = cwd / "my own, conf"
    (config_dir / "searcher").mkdir(parents=True)
    (config_dir / "data").mkdir()
    (config_dir / "searcher" / "wide.yaml").write_text("type: beam\nwidth: 3\n")
    (config_dir / "data" / "letters.yaml").write_text(
        f"defaults: [file]\npath: {world.text}\nsamples: 8\nseq_len: 16\n"
    )
    command = ["search", f"model={world.model}", "cluster=inline", "tracking=none", "remove=2", "--json"]
    mine = json_answer(run(*command, "searcher=wide", "data=letters", "data.seed=0", "--config-dir", config_dir))
    ours = json_answer(run("search", *world.search(searcher="beam", searcher__width=3), "--json"))
    assert numbers(mine, TIMES | EFFORT | {"search_id"}) == numbers(ours, TIMES | EFFORT | {"search_id"})
    assert mine["search_id"].removeprefix("wide") == ours["search_id"].removeprefix("beam"), (
        "the same search by another name"
    )
    assert ours["evaluations"]["computed"] == 0


def test_paths_may_hold_anything(run: Run, cwd: Path, world: World, subtests: pytest.Subtests) -> None:
    for name in ("two words", "a,b=[c]{1}", "it's", 'say "x"', "é ü 日本", "back\\slash", "#1"):
        shutil.copy(world.text, cwd / f"{name}.txt")
        (cwd / name).symlink_to(world.model)
        (cwd / f"{name} store").mkdir()
        changes = {"data.path": f"{name}.txt", "model": f"./{name}", "store": name + " store", "masks": "[[]]"}
        with subtests.test(name):
            assert json_answer(run("score", *world.overrides(**changes), "--json"))[0]["n_tokens"] == 120
            assert (cwd / f"{name} store" / "ledger.db").is_file()
    assert run("search", *world.search(**{**changes, "masks": None})).code == 0, "nor does a table mind"


def test_scores_are_those_of_the_search(run: Run, world: World) -> None:
    result = json_answer(run("search", *world.search(store="one"), "--json"))
    masks = [result["removed"], [], result["removal_order"][:1], []]
    scores = json_answer(
        run("score", *world.overrides(store="two", masks=json.dumps(masks).replace(" ", "")), "--json")
    )
    assert [score["removed"] for score in scores] == masks
    assert {score["n_tokens"] for score in scores} == {result["n_tokens"]}
    assert (scores[0]["measure"], scores[0]["perplexity"]) == (result["measure"], result["perplexity"])
    assert [scores[0]["loss"], scores[1]["loss"]] == [result["loss"], result["dense_loss"]], "bit for bit"
    assert scores[3] == scores[1]
    readable = run("score", *world.overrides(store="two", masks="[[]]"))
    assert [cell.strip() for cell in table(readable.out)[0]][:2] == ["{}", f"{result['dense_loss']:.4f}"]


def test_a_model_that_computes_nonsense_is_refused(run: Run, cwd: Path, world: World, sentences: Sentences) -> None:
    shutil.copytree(world.model, cwd / "broken")
    weights = load_file(cwd / "broken" / "model.safetensors")
    save_file({name: tensor * torch.nan for name, tensor in weights.items()}, cwd / "broken" / "model.safetensors")
    (cwd / "broken" / "model.safetensors").chmod(0o644)
    outcome = run("score", *world.overrides(model="./broken", masks="[[1]]"), "--json")
    assert outcome.out == ""
    sentences.refused_command(outcome)


def test_loading_from_the_hub_is_announced_before_it_begins(
    run: Run, cwd: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cwd))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    main = cwd / "models--me--tiny" / "refs" / "main"
    main.parent.mkdir(parents=True)
    main.write_text("a" * 40)
    shutil.copytree(world.model, main.parents[1] / "snapshots" / ("a" * 40))
    for name in ("me/tiny", "me/nothing"):
        outcome = run("score", *world.overrides(model=name, masks="[[1]]"))
        first_line, second_line = outcome.err.splitlines()[:2]
        assert first_line == f"reading model={name} from the Hugging Face hub, or its copy on this machine"
        if name == "me/tiny":
            assert second_line == "reading the weights of me/tiny, downloading them if they are new"
        else:
            assert second_line.startswith("error: ")


def test_a_shell_completes_commands_and_options() -> None:
    for typed, expected in {"recom": "recommend", "export --gg": "--gguf"}.items():
        completion = {"COMP_WORDS": f"raysearch {typed}", "COMP_CWORD": str(1 + typed.count(" "))}
        environment = {**os.environ, **completion, "_RAYSEARCH_COMPLETE": "complete_bash"}
        done = subprocess.run([sys.executable, "-c", MAIN], env=environment, capture_output=True, text=True, check=True)
        assert (done.stdout.split(), done.stderr) == ([expected], "")


def test_version(run: Run) -> None:
    outcome = run("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"raysearch {VERSION}\n", "")


def test_a_search_resumes_in_its_dtype_on_a_machine_with_another_default(
    run: Run, cwd: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["search", *world.search(model=write_llama(cwd / "model.gguf"), searcher="one_shot"), "--json"]
    monkeypatch.setattr(source, "has_instructions", lambda dtype: dtype == "bfloat16")
    begun = run(*command)
    assert "remove 2 of 4 layers (0-based) by perplexity on file, in bfloat16\n" in begun.err, begun.err
    monkeypatch.setattr(source, "has_instructions", lambda _: False)
    resumed = json_answer(run("resume", "latest", "--json"))
    assert resumed["search_id"] == json_answer(begun)["search_id"]
    assert resumed["evaluations"]["computed"] == 0
    assert json_answer(run("show", "latest", "--json"))["config"]["model"]["dtype"] == resumed["dtype"] == "bfloat16"
    changed = run(*command)
    assert ", in float32\n" in changed.err
    assert json_answer(changed)["search_id"] != resumed["search_id"]
