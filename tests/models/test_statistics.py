"""The statistics of the dense model, compared with plain forwards and plain autograd of the whole model."""

from __future__ import annotations

import contextlib
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch.nn import functional

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.core.site import Sites
from raysearch.core.statistic import Statistic
from raysearch.errors import UnsupportedModelError
from raysearch.models.stack import LayerStack
from raysearch.models.statistics import measure
from tests.cases import assert_each
from tests.models.families import FAMILIES, N_LAYERS, PASSING, STREAMS, VOCABULARY
from tests.sentences import Sentences

TOKENS = np.random.default_rng(7).integers(3, VOCABULARY, size=(3, 9))
REAL = np.arange(9)[None, :] < np.array([[9], [5], [7]])
SCORED = REAL & (np.arange(9)[None, :] > np.array([[0], [1], [0]]))
BATCH = Batch(TOKENS, SCORED, REAL)
NAMES = ["llama", "gemma2", "gpt2", "falcon", "mixtral", "olmo2"]


def measured(statistic, stack, batches=(BATCH,)):
    rows = measure(statistic, stack, batches, PerplexityObjective())
    assert rows.dtype == np.float64
    assert rows.shape[1:] == statistic.shape(Sites.of_equal_layers(N_LAYERS))
    return rows


def plain_losses(model):
    """Return each sample's summed loss in nats, by one plain forward of the model."""
    logits = model(torch.tensor(TOKENS), attention_mask=torch.tensor(REAL).long(), use_cache=False).logits[:, :-1]
    nll = functional.cross_entropy(logits.flatten(0, 1), torch.tensor(TOKENS)[:, 1:].flatten(), reduction="none")
    return (nll.view(3, -1) * torch.tensor(SCORED[:, 1:])).sum(1)


@contextlib.contextmanager
def watched(stack, gates=None):
    """Record the states before and after each layer in a plain forward. Gates [B, N] scale what a layer adds."""
    states = {}

    def watch(index):
        def hook(layer, args, output):
            after = output if torch.is_tensor(output) else output[0]
            states[index] = args[0].detach().clone(), after.detach().clone()
            if gates is None:
                return None
            gates_of_rows = gates[:, index].view(-1, *[1] * (after.ndim - after.shape.index(len(gates)) - 1))
            gated = args[0] + gates_of_rows * (after - args[0])
            return gated if torch.is_tensor(output) else (gated, *output[1:])

        return hook

    with contextlib.ExitStack() as hooks:
        for index, layer in enumerate(stack.layers):
            hooks.callback(layer.register_forward_hook(watch(index)).remove)
        yield states


def test_block_influence_is_that_of_plain_hidden_states():
    def check(family):
        stack = LayerStack(FAMILIES[family]())
        with watched(stack) as states:
            plain_losses(stack.model)
        rows = measured(Statistic.BLOCK_INFLUENCE, stack)
        for layer, (before, after) in states.items():
            for sample in range(3):
                x = before[sample][REAL[sample]].double().numpy()
                y = after[sample][REAL[sample]].double().numpy()
                cosines = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
                assert rows[sample, layer] == pytest.approx(1 - cosines.mean(), rel=1e-4, abs=1e-6)

    assert_each(NAMES, check)


def test_the_streams_of_a_token_are_one_vector():
    def check(family, rows_axis):
        stack = LayerStack(STREAMS[family]())
        with watched(stack) as states_by_layer:
            plain_losses(stack.model)
        inputs = [before for before, _ in states_by_layer.values()]
        states = [
            state.movedim((rows_axis, rows_axis + 1), (0, 1)).flatten(2).double()
            for state in [*inputs, states_by_layer[N_LAYERS - 1][1]]
        ]
        influences = measured(Statistic.BLOCK_INFLUENCE, stack)
        angles = measured(Statistic.ANGULAR_DISTANCE_LAST, stack)
        for sample, length in enumerate(REAL.sum(1)):
            vectors = [state[sample, :length] for state in states]
            for layer in range(N_LAYERS):
                cosines = functional.cosine_similarity(vectors[layer], vectors[layer + 1], dim=-1)
                assert influences[sample, layer] == pytest.approx(float(1 - cosines.mean()), rel=1e-4, abs=1e-6)
                angle = float(cosines[-1].arccos()) / np.pi
                assert angles[sample, layer, layer + 1] == pytest.approx(angle, rel=1e-4, abs=1e-6)

    check("deepseek_v4", 0)
    check("gemma3n_text", 1)


@pytest.mark.parametrize("family", NAMES[:3])
@pytest.mark.parametrize("statistic", [Statistic.ANGULAR_DISTANCE_LAST, Statistic.ANGULAR_DISTANCE_ALL])
def test_angular_distances_are_those_of_plain_hidden_states(family, statistic):
    stack = LayerStack(FAMILIES[family]())
    with watched(stack) as states_by_layer:
        plain_losses(stack.model)
    states = [states_by_layer[0][0], *(after for _, after in states_by_layer.values())]
    rows = measured(statistic, stack)
    for sample, length in enumerate(REAL.sum(1)):
        tokens = [length - 1] if statistic is Statistic.ANGULAR_DISTANCE_LAST else range(length)
        for a in range(N_LAYERS + 1):
            for b in range(N_LAYERS + 1):
                x = states[a][sample, list(tokens)].double().numpy()
                y = states[b][sample, list(tokens)].double().numpy()
                cosines = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
                expected = 0.0 if a == b else np.mean(np.arccos(cosines) / np.pi)
                assert rows[sample, a, b] == pytest.approx(expected, abs=1e-6)


def test_gate_gradients_are_those_of_autograd_through_the_whole_model():
    families = FAMILIES | STREAMS | {"hy_v4": PASSING["hy_v4"]}

    def check(family):
        stack = LayerStack(families[family]())
        gates = torch.ones(3, N_LAYERS, requires_grad=True)
        with watched(stack, gates):
            (expected,) = torch.autograd.grad(plain_losses(stack.model).sum(), gates)
        expected /= torch.tensor(SCORED.sum(1))[:, None]
        rows = measured(Statistic.GATE_GRADIENTS, stack)
        np.testing.assert_allclose(rows, expected.numpy(), rtol=1e-3, atol=1e-6 * float(expected.abs().max()) + 1e-7)

    assert_each(families, check)


def test_gradients_through_other_numbers_between_layers_are_refused(sentences: Sentences):
    with sentences.refused(UnsupportedModelError):
        measured(Statistic.GATE_GRADIENTS, LayerStack(PASSING["zaya"]()))


@pytest.mark.parametrize("family", NAMES)
def test_taylor_is_that_of_autograd_through_the_whole_model(family):
    stack = LayerStack(FAMILIES[family]())
    model = deepcopy(stack.model).requires_grad_(True)
    plain_losses(model).sum().backward()
    expected = [
        sum(
            (weight * weight.grad).abs().sum().item() if weight.grad is not None else 0.0
            for weight in layer.parameters()
        )
        / SCORED.sum()
        for layer in LayerStack(model).layers
    ]
    scores = measured(Statistic.TAYLOR, stack)
    np.testing.assert_allclose(scores[0], expected, rtol=1e-3)
    halves = measured(Statistic.TAYLOR, stack, [BATCH.samples(0, 1), BATCH.samples(1, 3)])
    np.testing.assert_allclose(halves, scores, rtol=1e-4)  # gradients are summed before the magnitude is taken
    assert not any(weight.requires_grad or weight.grad is not None for weight in stack.model.parameters())


def test_magnitudes_are_sums_over_all_weights_of_a_layer():
    stack = LayerStack(FAMILIES["llama"]())
    sizes = [torch.cat([w.flatten() for w in layer.parameters()]).double() for layer in stack.layers]
    assert all(len(size) == len(sizes[0]) > 2 * 32 for size in sizes)
    l1 = measured(Statistic.MAGNITUDE_L1, stack)
    l2 = measured(Statistic.MAGNITUDE_L2, stack)
    np.testing.assert_allclose(l1[0], [size.abs().sum().item() for size in sizes], rtol=1e-9)
    np.testing.assert_allclose(l2[0], [size.square().sum().item() for size in sizes], rtol=1e-6)


def test_samples_are_independent():
    stack = LayerStack(FAMILIES["llama"]())
    for statistic in (statistic for statistic in Statistic if statistic.by_sample):
        halves = measured(statistic, stack, [BATCH.samples(0, 1), BATCH.samples(1, 3)])
        np.testing.assert_allclose(halves, measured(statistic, stack), rtol=1e-4)


#: The modules of the two halves of a layer of Gemma 2 whose outputs are added to the hidden state.
LAST_MODULES = ("post_attention_layernorm", "post_feedforward_layernorm")


@contextlib.contextmanager
def gated_halves(layers, gates):
    """Scale what each half adds by a gate, in layers whose modules are known; gates are [B, 2 N]."""
    with contextlib.ExitStack() as hooks:
        for index, layer in enumerate(layers):
            for place, name in enumerate(LAST_MODULES):
                gate = gates[:, 2 * index + place, None, None]
                module = layer.get_submodule(name)
                hooks.callback(module.register_forward_hook(lambda *call, gate=gate: gate * call[2]).remove)
        yield


def test_statistics_of_halves_are_those_of_plain_hidden_states_and_autograd():
    """In a model of which the test knows the halves: between them is the input of the norm before the MLP."""
    stack = LayerStack(FAMILIES["gemma2"]())
    states = []
    with contextlib.ExitStack() as hooks:
        for layer in stack.layers:
            for name in ("input_layernorm", "pre_feedforward_layernorm"):
                module = layer.get_submodule(name)
                hook = module.register_forward_pre_hook(lambda module, args: states.append(args[0].double()))
                hooks.callback(hook.remove)
        norm = stack.model.get_submodule("model.norm")
        hooks.callback(norm.register_forward_pre_hook(lambda module, args: states.append(args[0].double())).remove)
        plain_losses(stack.model)
    influence = measured(Statistic.BLOCK_INFLUENCE_HALVES, stack)
    distances = measured(Statistic.ANGULAR_DISTANCE_LAST_HALVES, stack)
    layer_distances = measured(Statistic.ANGULAR_DISTANCE_LAST, stack)
    for sample, length in enumerate(REAL.sum(1)):
        for index in range(2 * N_LAYERS):
            before, after = (state[sample, :length] for state in states[index : index + 2])
            cosines = functional.cosine_similarity(before, after, dim=-1)
            assert influence[sample, index] == pytest.approx(float(1 - cosines.mean()), rel=1e-4, abs=1e-6)
            angle = float(cosines[-1].arccos()) / np.pi
            assert distances[sample, index, index + 1] == pytest.approx(angle, rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(distances[:, ::2, ::2], layer_distances, atol=1e-12)

    gates = torch.ones(3, 2 * N_LAYERS, requires_grad=True)
    with gated_halves(stack.layers, gates):
        (expected,) = torch.autograd.grad(plain_losses(stack.model).sum(), gates)
    expected /= torch.tensor(SCORED.sum(1))[:, None]
    gradients = measured(Statistic.GATE_GRADIENTS_HALVES, stack)
    np.testing.assert_allclose(gradients, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))


def test_sums_over_the_weights_of_halves_add_up_to_those_of_layers():
    stack = LayerStack(FAMILIES["gemma2"]())
    for statistic in (Statistic.MAGNITUDE_L1, Statistic.MAGNITUDE_L2, Statistic.TAYLOR):
        of_halves = measured(statistic.of_halves, stack)
        np.testing.assert_allclose(of_halves.reshape(1, N_LAYERS, 2).sum(2), measured(statistic, stack), rtol=1e-4)
    attention = [*stack.layers[0].get_submodule("self_attn").parameters()]
    norms = [
        stack.layers[0].get_parameter(f"{name}.weight") for name in ("input_layernorm", "post_attention_layernorm")
    ]
    expected = sum(float(weight.double().abs().sum()) for weight in [*attention, *norms])
    assert measured(Statistic.MAGNITUDE_L1_HALVES, stack)[0, 0] == pytest.approx(expected, rel=1e-6)
