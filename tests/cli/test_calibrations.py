"""Objectives and data from the command line: searches, inspection, comparison, and refusals."""

from __future__ import annotations

import csv
import json
from typing import Any

import numpy as np
import pytest

from raysearch.searching import notices
from tests.cli.answers import json_answer
from tests.cli.conftest import N_LAYERS, prose
from tests.cli.refusals import refuses
from tests.sentences import Sentences


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    """Questions with three choices in the words that the tiny model knows."""
    words = prose(400).replace(".", "").split()
    rng = np.random.default_rng(0)
    rows = [
        {
            "question": " ".join(rng.choice(words, size=6)),
            "choices": [" ".join(rng.choice(words, size=size)) for size in (1, 2, 3)],
            "answer": int(rng.integers(3)),
        }
        for _ in range(12)
    ]
    path = tmp_path_factory.mktemp("items") / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def overrides(world, items):
    """Return the overrides of a quick search on the items; ``__`` stands for a dot."""

    def make(**changes):
        chosen = {"data": "multiple_choice", "data__path": items, "data__seq_len": 40, "objective": "task_margin"}
        return world.search(**{**chosen, **changes})

    return make


@pytest.mark.parametrize(
    ("objective", "readout"),
    [
        ("perplexity", "perplexity"),
        ("task_margin", "margin"),
        ("task_accuracy", "accuracy"),
        ("kl", None),
        ("hidden_cosine", "cosine"),
        ("generation_accuracy", "accuracy"),
    ],
)
def test_every_objective_on_items(run, overrides, objective, readout):
    extra = {"objective__max_new_tokens": 2} if objective == "generation_accuracy" else {}
    changes = {"objective": objective, "searcher": "one_shot", **extra}
    result = json_answer(run("search", *overrides(**changes), "--json"))
    assert len(result["removed"]) == 2
    assert result["measure"]["readout"] == readout
    assert readout is None or readout in result
    assert result["layer_tokens"]["packed"] is (True if objective.startswith("task") else None)
    table = run("search", *overrides(**changes))
    assert result["measure"]["unit"] in table.out
    assert " 0 computed, " in table.out
    assert "cached, each on" in table.out


PARTS = '[{weight: 1, of: "objective=perplexity"}, {weight: 2, of: "objective=task_margin data.samples=4"}]'


def test_a_weighted_search(run, overrides, sentences: Sentences):
    for normalise in ("dense", "none", "spread"):
        weighted = [f"objective.parts={PARTS}", f"objective.normalise={normalise}"]
        result = json_answer(run("search", *overrides(objective="weighted"), *weighted, "--json"))
        assert result["measure"] == {"unit": "weighted sum", "per": "set", "readout": None}
        assert result["n_samples"] == 8 + 4
        assert result["delta_error"] is None
    shown = run("show", result["search_id"])
    assert "loss of perplexity on multiple_choice" in " ".join(shown.out.split())
    assert json_answer(run("resume", result["search_id"], "--json"))["removed"] == result["removed"]
    sentences.refused_command(run("show", result["search_id"], "--gap"))


def test_a_weighted_search_shares_the_ledger_with_its_parts(run, overrides):
    run("search", *overrides(objective="perplexity", searcher="one_shot"))
    parts = f"objective.parts={PARTS.split('},')[0]}}}]"
    done = run("search", *overrides(objective="weighted", searcher="one_shot"), parts, "--json")
    assert json.loads(done.out)["evaluations"]["computed"] == 0


def test_data_shows_what_the_model_will_see(run, overrides, items):
    arguments = [word for word in overrides() if not word.startswith(("tracking", "remove"))]
    out = run("data", *arguments, "--samples", "1").out
    first = json.loads(items.read_text().splitlines()[0])
    assert "⟦" in out
    assert "[right, " in out
    assert "[wrong, " in out
    assert "dense margin" in out
    assert "fingerprint" in out
    assert "duplicates" in out
    assert "evaluated on" in out
    assert "8 items" in out
    [inspected] = json.loads(run("data", *arguments, "--json", "--samples", "12", "--no-loss").out)
    assert inspected["dense_loss"] is None
    assert len(inspected["shown"]) == 8
    rows = inspected["shown"][0]["rows"]
    assert [row["gold"] for row in rows].count(True) == 1
    assert len(rows) == len(first["choices"])
    scored = [piece["text"].split() for row in rows for piece in row["spans"] if piece["scored"]]
    assert sorted(map(len, scored)) == [1, 2, 3]


def test_data_without_the_loss_leaves_nothing_behind(run, cwd, overrides):
    arguments = [word for word in overrides() if not word.startswith(("tracking", "remove"))]
    assert run("data", *arguments, "--no-loss").code == 0
    assert list(cwd.iterdir()) == []


def test_a_sweep_by_answers_shows_diagnostics_of_the_texts_without_each_layer(run, cwd, overrides):
    arguments = overrides(objective="generation_accuracy", objective__max_new_tokens=2)
    done = run("sweep", *(word for word in arguments if not word.startswith(("tracking", "remove"))))
    assert done.code == 0, done.err
    assert "the texts without one layer" in done.out
    assert "cut off (%)" in " ".join(done.out.split())
    with (cwd / "sweep" / "texts.csv").open(newline="") as file:
        dense, *layers = csv.DictReader(file)
    assert dense["layer"] == "-1"
    assert len(layers) == N_LAYERS
    assert all(float(row["tokens"]) <= 2 and 0 <= float(row["cut_off"]) <= 1 for row in layers)


def test_sweep_lays_calibrations_side_by_side(run, cwd, overrides):
    arguments = [word for word in overrides(objective="perplexity") if not word.startswith(("tracking", "remove"))]
    also = ["--also", "objective=kl", "--also", "objective=task_margin data.samples=4"]
    swept = json_answer(run("sweep", *arguments, *also, "--remove", "2", "--json"))
    names = [profile["calibration"] for profile in swept["calibrations"]]
    assert names == [f"{name} on multiple_choice items.jsonl" for name in ("perplexity", "kl", "task_margin")]
    assert all(sorted(profile["ranking"]) == list(range(N_LAYERS)) for profile in swept["calibrations"])
    assert len(swept["agreements"]) == 3
    with (cwd / "sweep" / "sweep.csv").open(newline="") as file:
        header, dense, *layers = csv.reader(file)
    assert header[1::2] == names
    assert dense[0] == "dense"
    assert len(layers) == N_LAYERS
    assert (cwd / "sweep" / "sweep.png").stat().st_size > 10_000
    for place, profile in enumerate(swept["calibrations"]):
        assert [float(row[2 * place + 1]) for row in layers] == profile["losses"]
        assert [float(row[2 * place + 2]) for row in layers] == profile["standard_errors"]
    scored = run("score", *arguments, "masks=[[],[3]]", "--json")  # answered: the sweep has it
    assert [score["cached"] for score in json.loads(scored.out)] == [True, True]
    assert [score["loss"] for score in json.loads(scored.out)] == [float(dense[1]), float(layers[3][1])]
    repeated = run("sweep", *arguments, *also)
    assert "Spearman" in repeated.out
    assert "Wrote sweep/sweep.png" in repeated.out.replace("\n", "")


def test_an_evaluation_split_must_be_allowed_and_is_reported(run, cwd, overrides, items, sentences: Sentences):
    held_out = cwd / "test.jsonl"
    held_out.write_text(items.read_text())
    sentences.refused_command(run("search", *overrides(data__path=held_out)))
    allowed = run("search", *overrides(data__path=held_out, data__allow_evaluation_split="true"))
    warning = "Warning: these samples are of an evaluation split (data.allow_evaluation_split=true): report no results"
    assert allowed.code == 0
    assert warning in allowed.out
    assert warning in run("show", "latest").out


NONSENSE: list[dict[str, Any]] = [
    {"data": "file", "data__path": None, "objective": "task_margin"},
    {"data": "file", "data__path": None, "objective": "generation_accuracy"},
    {"searcher": "taylor", "objective": "kl"},
    {"searcher": "cbo_gradient", "objective": "task_accuracy"},
    {"searcher": "taylor", "objective": "generation_accuracy"},
    {"searcher": "taylor", "objective": "weighted", "objective__parts": PARTS},
    {"objective": "kl", "objective__direction": "both"},
    {"objective": "generation_accuracy", "objective__max_new_tokens": 0},
    {"objective": "weighted", "objective__parts": "[]"},
    {"objective": "weighted", "objective__parts": "[{weight: 1}]"},
    {"objective": "weighted", "objective__parts": '[{weight: -1, of: "objective=kl"}]'},
    {"objective": "weighted", "objective__parts": '[{weight: 1e308, of: "objective=kl"}]'},
    {"objective": "weighted", "objective__parts": '[{weight: a, of: "objective=kl"}]'},
    {"objective": "weighted", "objective__parts": '[{weight: 1, of: "objective=weighted"}]'},
    {"objective": "weighted", "objective__parts": '[{weight: 1, of: "objective=ppl"}]'},
    {"data__samples": 13},
    {"data__seq_len": 3},
    {"data__seq_len": 65},
]


def test_senseless_values_are_refused(run, cwd, overrides, world, subtests, sentences: Sentences):
    for changes in NONSENSE:
        case = ", ".join(f"{key}={value}" for key, value in changes.items())
        if changes.get("data") == "file":
            changes = {**changes, "data__path": world.text}
        with subtests.test(case):
            refuses(run("search", *overrides(**changes)), sentences, case)


def test_text_that_is_unknown_to_the_tokenizer_is_reported_once(run, world, cwd):
    foreign = cwd / "foreign.txt"
    foreign.write_text("xyzzy plugh " * 300)
    warning = f"warning: 100% of the tokens of {foreign} are unknown to the model's tokenizer, so losses say little; "
    arguments = world.overrides(data__path=foreign)
    search = world.search(data__path=foreign, searcher="one_shot")
    text = f"assess.texts.mine='data=file data.path={foreign} data.samples=4 data.sampling=sequential'"
    for command in (
        ["search", *search],
        ["search", *search],  # all of whose numbers are known
        ["score", *arguments, "masks=[[3]]"],
        ["sweep", *arguments, "--also", "objective=kl"],
        ["data", *arguments, "--also", "data.samples=4"],
        ["assess", "latest", "assess=none", text, "assess.seq_len=16", "assess.probe.enabled=false"],
    ):
        done = run(*command)
        assert done.code == 0, (command, done)
        assert done.err.count(warning) == 1, (command, done)
    assert "unknown to the model's" not in run("score", *world.overrides(), "masks=[[3]]").err


def test_a_dtype_without_instructions_is_reported_once(run, world, monkeypatch):
    monkeypatch.setattr(notices, "has_instructions", lambda dtype: dtype != "bfloat16")
    warning = "warning: this machine's CPU has no instructions for bfloat16 and takes longer than in float32; "
    for command in (world.search(model__dtype="bfloat16"), world.search(model__dtype="bfloat16", searcher="one_shot")):
        done = run("search", *command)
        assert done.code == 0, done
        assert done.err.count(warning) == 1, done
    assert "no instructions" not in run("search", *world.search()).err
