"""The device of a model. There is one here, so hooks are put on modules as they would be over several."""

import copy

import numpy as np
import pytest
import torch
from accelerate import dispatch_model
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.base import token_log_probs
from raysearch.calibration.objectives.hidden_cosine import HiddenCosineObjective
from raysearch.calibration.objectives.kl import KLObjective
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.mask import Mask
from raysearch.core.statistic import Statistic
from raysearch.errors import UserError
from raysearch.evaluation.costs import plan_of
from raysearch.evaluation.replica import Replica
from raysearch.models import statistics
from raysearch.models.devices import check_device, emulates, resolve_device
from raysearch.models.loading import spread
from raysearch.models.stack import LayerStack, predicting
from raysearch.models.statistics import measure
from tests.models.families import FAMILIES

BATCH = Batch(np.full((2, 5), 3), np.arange(5) > np.zeros((2, 5)))


def test_layers_with_hooks_walk_like_those_without():
    for family in ("llama", "gemma2", "gpt2", "mixtral"):
        plain = FAMILIES[family]()
        hooked = dispatch_model(copy.deepcopy(plain), {"": "cpu"}, force_hooks=True)
        assert hasattr(hooked, "_hf_hook")
        LayerStack(hooked).verify()
        inputs = torch.arange(8)[None]
        with LayerStack(plain).bypassed(Mask.of(1)) as one, LayerStack(hooked).bypassed(Mask.of(1)) as other:
            assert torch.equal(one(inputs).logits, other(inputs).logits), family


@pytest.fixture
def on_two_devices(monkeypatch):
    """A stack with its upper half on a device without data, from which nothing but the results is taken."""
    model = FAMILIES["llama"]()
    stack = LayerStack(model)
    captured = stack.capture(BATCH.inputs)
    embed, norm = model.get_input_embeddings(), model.get_submodule("model.norm")
    for module in (*stack.layers[2:], norm, model.get_output_embeddings()):
        add_hook_to_module(module.to("meta"), AlignDevicesHook("meta"))
    add_hook_to_module(model, AlignDevicesHook(io_same_device=True))
    embed.register_forward_pre_hook(lambda _, args: (torch.zeros(args[0].shape, dtype=torch.int64),))
    monkeypatch.setattr(stack, "capture", lambda inputs: captured)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: torch.zeros_like(tensor, device="cpu"))
    return stack


def test_no_index_is_moved_away_from_the_states_that_it_is_of():
    """accelerate moves tensors among a model's arguments to its first device."""
    model, given = FAMILIES["llama"](), {}
    stack = LayerStack(model)
    model.register_forward_pre_hook(lambda _, args, kwargs: given.update(kwargs), with_kwargs=True)
    stack.capture(BATCH.inputs)
    assert given["logits_to_keep"] == [0]


def test_masks_of_a_model_on_two_devices_are_scored_on_the_second(on_two_devices):
    replica = Replica.__new__(Replica)  # no check of the losses, which have no data
    replica.stack = stack = on_two_devices
    with torch.no_grad():
        states = predicting(stack.walk(stack.capture(BATCH.inputs), Mask.of(1)), BATCH.inputs)
        assert {states.device.type, token_log_probs(states, BATCH, stack).device.type} == {"meta"}
    masks = [Mask(), Mask.of(0), Mask.of(2, 3)]
    for objective in (PerplexityObjective(), KLObjective(), HiddenCosineObjective()):
        plan = plan_of(objective, masks, stack.n_layers)
        assert set(replica._walk(plan, masks, BATCH, BATCH.inputs, objective)) == set(masks)


def test_statistics_of_a_model_on_two_devices(on_two_devices, monkeypatch):
    for statistic in (Statistic.BLOCK_INFLUENCE, Statistic.ANGULAR_DISTANCE_ALL):
        measure(statistic, on_two_devices, [BATCH], PerplexityObjective())
    before, after = torch.zeros(2, 5, 32), torch.zeros(2, 5, 32, device="meta")
    step = statistics._BackwardStep(2, before, after, after, {})  # autograd would take the gradient back
    monkeypatch.setattr(statistics, "_backward", lambda *_: [step])
    measure(Statistic.GATE_GRADIENTS, on_two_devices, [BATCH], PerplexityObjective())


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_model_that_no_gpu_holds_is_refused():
    with pytest.raises(UserError, match="model=tiny does not fit on 0 GPUs; give more with cluster.gpus_per_replica"):
        spread(FAMILIES["llama"](), "tiny")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="model.device=cuda:0 asks for a GPU, .*; use model.device=cpu"):
        check_device("cuda:0")
    assert resolve_device("auto") == "cpu"


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="torch tells it of x86")
def test_the_dtypes_that_a_cpu_has_instructions_for_are_those_that_torch_sees():
    assert emulates("bfloat16") is not torch.cpu._is_avx512_bf16_supported()
    assert emulates("float32") is False
