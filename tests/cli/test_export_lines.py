"""The closing lines of an export name what runs it, and what would run another model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raysearch.cli.export_lines import checkpoint_lines
from raysearch.models.export import ExportResult


def test_vllm_is_named_where_it_runs_the_same_model() -> None:
    done = ExportResult(Path("pruned"), 3, 10, 20, 0.0, None, None, None, "greedy-m1-3fa2c1d0")
    assert "vLLM: vllm serve pruned" in checkpoint_lines(done, Path("pruned"), None, False)
    reason = "tells which layers have experts from their places, which have changed"
    lines = checkpoint_lines(replace(done, misread_by_vllm=reason), Path("pruned"), None, False)
    assert f"vLLM would run another model: it {reason}." in lines
    assert not any("vllm serve" in line for line in lines)
