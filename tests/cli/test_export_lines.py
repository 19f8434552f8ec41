"""The closing lines of an export name what runs it, and what would run another model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raysearch.checkpoints.runtimes import LLAMA_CPP, MLX, VLLM, Reading
from raysearch.cli.export_lines import checkpoint_lines
from raysearch.models.export import ExportResult

DONE = ExportResult(Path("pruned"), 3, 10, 20, 0.0, None, None, None, "greedy-m1-3fa2c1d0")


def runtime_lines(*readings: Reading) -> list[str]:
    return checkpoint_lines(replace(DONE, readings=readings), Path("my pruned"), None, False)[2:]


def test_runtimes_are_named_where_they_run_the_same_model() -> None:
    gguf = "'my pruned.gguf'"
    assert runtime_lines(Reading("vllm"), Reading("llama.cpp"), Reading("mlx")) == [
        "Not run, but by their rules these run the same model:",
        f"  {VLLM.text}: vllm serve 'my pruned'",
        f"  {LLAMA_CPP.text}: convert_hf_to_gguf.py 'my pruned' --outfile {gguf} && llama-cli -m {gguf}",
        f"  {MLX.text}: mlx_lm.generate --model 'my pruned' --prompt 'Once upon a time'",
    ]


def test_a_runtime_that_would_run_another_model_is_not_offered() -> None:
    reason = "derives which layers have experts from their places, which have changed"
    unknown = "the model type slug"
    assert runtime_lines(Reading("vllm", misread=reason), Reading("mlx", unknown=unknown)) == [
        f"{VLLM.text} would run another model: it {reason}.",
        f"{MLX.text} has no code for {unknown}.",
    ]


def test_a_runtime_that_has_run_the_model_is_told_apart() -> None:
    assert runtime_lines(Reading("vllm", ran="12 tokens a second")) == [
        f"{VLLM.text} ran it (12 tokens a second): vllm serve 'my pruned'"
    ]
