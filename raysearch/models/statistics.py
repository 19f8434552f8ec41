"""Computes the statistics of `raysearch.core.statistic` on the layers of any decoder.

Gradients are computed layer by layer: a forward pass keeps the hidden state before each layer, and the backward pass
runs each layer, and each slice of the logits, once more. So memory holds N + 1 hidden states, and the activations of
one layer or slice at a time. The same is done with halves of layers, of which there are 2 N.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.base import Objective, StateObjective
from raysearch.core.mask import PARTS
from raysearch.core.site import Run
from raysearch.core.statistic import Statistic
from raysearch.errors import UnsupportedModelError
from raysearch.models.layers import State
from raysearch.models.stack import Captured, LayerStack, predicting

_TOKENS_AT_ONCE = 64  # their N + 1 hidden states are in memory in float64


def measure(
    statistic: Statistic, stack: LayerStack, batches: Sequence[Batch], objective: Objective
) -> npt.NDArray[np.float64]:
    """Compute a statistic of the dense model.

    Args:
        statistic: The statistic.
        stack: The layers of the model.
        batches: The samples: any of them for a statistic by sample, otherwise all.
        objective: The objective, for statistics of gradients.

    Returns:
        The statistic's rows, float64, [samples or 1, …].
    """
    halves = statistic.is_of_halves
    match statistic.of_layers:
        case Statistic.BLOCK_INFLUENCE:
            rows = [block_influence(stack, batch, halves) for batch in batches]
        case Statistic.ANGULAR_DISTANCE_LAST:
            rows = [angular_distance(stack, batch, _last_token(batch), halves) for batch in batches]
        case Statistic.ANGULAR_DISTANCE_ALL:
            rows = [angular_distance(stack, batch, _real_tokens(batch), halves) for batch in batches]
        case Statistic.NORM_RATIO:
            rows = [norm_ratio(stack, batch, halves) for batch in batches]
        case Statistic.GATE_GRADIENTS:
            rows = [gate_gradients(stack, batch, objective, halves) for batch in batches]
        case Statistic.MAGNITUDE_L1:
            rows = [magnitude(stack, 1, halves)]
        case Statistic.MAGNITUDE_L2:
            rows = [magnitude(stack, 2, halves)]
        case Statistic.TAYLOR:
            rows = [taylor(stack, batches, objective, halves)]
    return torch.cat(rows).numpy()


def block_influence(stack: LayerStack, batch: Batch, halves: bool = False) -> Tensor:
    """Return 1 - cos(h_i, h_{i+1}), the mean over each sample's tokens: float64 [B, N], or [B, 2 N] for halves.

    The vector of a token has all streams of its hidden state.

    Args:
        stack: The layers of the dense model.
        batch: The samples.
        halves: Whether the statistic is that of halves of layers.

    Returns:
        The statistic, on the CPU.
    """
    states = _hidden_states(stack, batch, halves)
    tokens = _real_tokens(batch)
    rows = []
    for before, after in itertools.pairwise(states):
        vectors = before.to(after.device).flatten(2).float()
        cosines = functional.cosine_similarity(vectors, after.flatten(2).float(), dim=-1).double()
        rows.append(((1 - cosines) * tokens.to(after.device)).sum(1).to(states[-1].device))
    return _by_sample(batch, torch.stack(rows, dim=1)) / _by_sample(batch, tokens.sum(1, keepdim=True))


def angular_distance(stack: LayerStack, batch: Batch, tokens: Tensor, halves: bool = False) -> Tensor:
    """Return arccos(cos(h_a, h_b)) / pi at all depths, the mean over tokens of each sample: float64 [B, N + 1, N + 1].

    With halves, there are 2 N + 1 depths. The vector of a token has all streams of its hidden state.

    Args:
        stack: The layers of the dense model.
        batch: The samples.
        tokens: The tokens of the mean, bool [R, T], at least one in each row.
        halves: Whether the depths are also those between the halves of layers.

    Returns:
        The statistic, on the CPU.

    Source: Gromov et al. 2024 (arXiv 2403.17887), equation 7.
    """
    states = _hidden_states(stack, batch, halves)
    states = [state.to(states[-1].device) for state in states]
    totals = torch.zeros(len(tokens), len(states), len(states), dtype=torch.float64)
    for places in tokens.nonzero().to(states[-1].device).split(_TOKENS_AT_ONCE):
        rows, positions = places.unbind(1)
        vectors = torch.stack([state[rows, positions].flatten(1) for state in states], dim=1)  # [tokens, N + 1, d]
        vectors = functional.normalize(vectors.double(), dim=-1)
        angles = (vectors @ vectors.mT).clamp(-1, 1).arccos() / torch.pi
        totals.index_add_(0, rows.cpu(), angles.cpu())
    totals.diagonal(dim1=1, dim2=2).zero_()  # arccos would magnify rounding errors where the cosine is 1
    return _by_sample(batch, totals) / _by_sample(batch, tokens.sum(1)[:, None, None])


def norm_ratio(stack: LayerStack, batch: Batch, halves: bool = False) -> Tensor:
    """Return |h_b| / |h_a| at all depths a and b, the mean over each sample's tokens: float64 [B, N + 1, N + 1].

    With halves, there are 2 N + 1 depths. The vector of a token has all streams of its hidden state.

    Args:
        stack: The layers of the dense model.
        batch: The samples.
        halves: Whether the depths are also those between the halves of layers.

    Returns:
        The statistic, on the CPU.
    """
    states = _hidden_states(stack, batch, halves)
    tokens = _real_tokens(batch)
    norms = torch.stack([state.flatten(2).double().norm(dim=-1).cpu() for state in states], dim=-1)  # [R, T, N + 1]
    totals = torch.stack(
        [
            (norms_of_row[real, None, :] / norms_of_row[real, :, None]).sum(0)
            for norms_of_row, real in zip(norms, tokens, strict=True)
        ]
    )
    return _by_sample(batch, totals) / _by_sample(batch, tokens.sum(1)[:, None, None])


def gate_gradients(stack: LayerStack, batch: Batch, objective: Objective, halves: bool = False) -> Tensor:
    """Return d loss_s / d a_i at a_i = 1 of gates h <- h + a_i * (layer_i(h) - h): float64 [B, N], or [B, 2 N].

    Gates on the outputs of a layer's attention and MLP would give the same model at both ends (1: dense, 0: removed).

    Args:
        stack: The layers of the dense model.
        batch: The samples.
        objective: The objective whose loss is differentiated.
        halves: Whether each half of a layer has a gate of its own.

    Returns:
        The derivatives, on the CPU.
    """
    runs = _runs(stack, halves)
    rows = torch.zeros(len(batch.input_ids), len(runs), dtype=torch.float64)
    for step in _backward(stack, batch, objective, runs):
        added = (step.after - step.before.to(step.after.device)).float()
        rows[:, step.index] = (step.gradient.float() * added).flatten(1).sum(1, dtype=torch.float64).cpu()
    tokens = torch.from_numpy(batch.scored_per_sample).clamp_min(1)
    return _by_sample(batch, rows) / (tokens[:, None] if objective.measure.per == "token" else 1)


def magnitude(stack: LayerStack, power: int, halves: bool = False) -> Tensor:
    """Return sum |W|^power over the weights of each layer: float64 [1, N]; or of each half: [1, 2 N].

    Args:
        stack: The layers of the dense model.
        power: The exponent.
        halves: Whether the sums are over halves of layers.

    Returns:
        The sums.
    """
    sums = []
    for run in _runs(stack, halves):
        sums.append(_sum(weight.float().abs().pow(power) for weight in _weights(stack, run).values()))
    return torch.stack(sums)[None]


def taylor(stack: LayerStack, batches: Sequence[Batch], objective: Objective, halves: bool = False) -> Tensor:
    """Return sum |W * d loss / d W| over the weights of each layer: float64 [1, N]; or of each half: [1, 2 N].

    The gradients are summed over all samples in float32 before the magnitude is taken. This needs as much memory as the
    layers' weights in float32.

    Args:
        stack: The layers of the dense model.
        batches: All samples.
        objective: The objective whose loss is differentiated.
        halves: Whether the scores are those of halves of layers.

    Returns:
        The scores, divided by the number of scored tokens or samples.
    """
    runs = _runs(stack, halves)
    weights_of_runs = [_weights(stack, run) for run in runs]
    totals = [
        {name: torch.zeros_like(weight, dtype=torch.float32) for name, weight in weights.items()}
        for weights in weights_of_runs
    ]
    for batch in batches:
        for step in _backward(stack, batch, objective, runs, through_weights=True):
            for name, gradient in step.weight_gradients.items():
                totals[step.index][name] += gradient
    scores = []
    for weights, gradients in zip(weights_of_runs, totals, strict=True):
        scores.append(_sum((weight * gradients[name]).abs() for name, weight in weights.items()))
    n_scored = sum(batch.n_scored for batch in batches)
    n_samples = sum(batch.n_samples for batch in batches)
    return torch.stack(scores)[None] / objective.measure.divisor(n_scored, n_samples)


@dataclass(frozen=True)
class _BackwardStep:
    """The backward pass through one layer or half. Gradients are those of the summed loss."""

    index: int  #: of the layer or half among all
    before: Tensor  #: the state that enters it
    after: Tensor  #: the state that leaves it
    gradient: Tensor  #: with respect to `after`
    weight_gradients: dict[str, Tensor]  #: with respect to its weights, by name


def _backward(
    stack: LayerStack, batch: Batch, objective: Objective, runs: Sequence[Run], through_weights: bool = False
) -> Iterator[_BackwardStep]:
    """Run the backward pass of the objective's summed loss through the layers or halves, the last one first."""
    captured, states = _forward(stack, batch, runs)
    _check_gradients(stack, states)
    assert isinstance(objective, StateObjective), "only these objectives have gradients"
    with torch.enable_grad():
        final = states[-1].hidden.detach().requires_grad_()
        losses = objective.losses(predicting(final, batch.inputs), batch, stack, None)
        (gradient,) = torch.autograd.grad(losses.sum(), final)
    for index, run in reversed([*enumerate(runs)]):
        weights = _weights(stack, run) if through_weights else {}
        with torch.enable_grad(), _differentiable(weights.values()):
            before = states[index].hidden.detach().requires_grad_()
            state = replace(states[index], hidden=before).clone()  # a layer may write into its input
            after = stack.run(run, state, captured).hidden
            inputs = [before, *weights.values()]
            into_run, *into_weights = torch.autograd.grad(after, inputs, gradient, allow_unused=True)
        weight_gradients = {name: grad for name, grad in zip(weights, into_weights, strict=True) if grad is not None}
        yield _BackwardStep(index, before.detach(), after.detach(), gradient, weight_gradients)
        gradient = into_run


def _runs(stack: LayerStack, halves: bool) -> list[Run]:
    """Return what a forward of the dense model runs: its layers, or their halves one by one."""
    parts = PARTS if halves else (None,)
    return [Run(layer, part) for layer in range(len(stack.layers)) for part in parts]


def _hidden_states(stack: LayerStack, batch: Batch, halves: bool) -> list[Tensor]:
    """Return the hidden states of the dense model before, between and after its layers or halves."""
    _, states = _forward(stack, batch, _runs(stack, halves))
    return [state.hidden for state in states]


def _check_gradients(stack: LayerStack, states: Iterable[State]) -> None:
    """Refuse a model whose loss also depends on other numbers that go from layer to layer."""
    if any(state.has_further_numbers for state in states):
        raise UnsupportedModelError(
            f"{stack.kind} passes more numbers from layer to layer than the hidden state, and gradients through them "
            "are not computed; use a searcher without gradients"
        )


def _forward(stack: LayerStack, batch: Batch, runs: Iterable[Run]) -> tuple[Captured, list[State]]:
    """Run the dense model and keep the states of all depths."""
    with torch.no_grad():
        captured = stack.capture(batch.inputs)
        states = [captured.embedded]
        for run in runs:
            states.append(stack.run(run, states[-1].clone(), captured))  # a layer may write into its input
    return captured, states


def _weights(stack: LayerStack, run: Run) -> dict[str, Tensor]:
    """Return the weights and biases of a layer or a half by name, norms included."""
    weights: dict[str, Tensor] = {
        name: weight for name, weight in stack.layers[run.layer].named_parameters() if weight.is_floating_point()
    }
    if run.part is None:
        return weights
    return {name: weights[name] for name in stack.halves[run.layer].names(weights, run.part)}


@contextlib.contextmanager
def _differentiable(weights: Collection[Tensor]) -> Iterator[None]:
    try:
        for weight in weights:
            weight.requires_grad_()
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(False)


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of all elements of all tensors, float64, on the CPU."""
    return torch.stack([tensor.sum(dtype=torch.float64).cpu() for tensor in tensors]).sum()


def _by_sample(batch: Batch, rows: Tensor) -> Tensor:
    """Return the sums over each sample's rows, [R, …] to [B, …], float64, on the CPU."""
    totals = torch.zeros(batch.n_samples, *rows.shape[1:], dtype=torch.float64)
    return totals.index_add_(0, torch.from_numpy(batch.sample_of_row), rows.double().cpu())


def _real_tokens(batch: Batch) -> Tensor:
    """Return True for each token that is not padding, bool [R, T]."""
    return torch.from_numpy(np.ones_like(batch.scored) if batch.attention_mask is None else batch.attention_mask)


def _last_token(batch: Batch) -> Tensor:
    """Return True for the last token of each row that is not padding, bool [R, T]."""
    return functional.one_hot(torch.from_numpy(batch.lengths) - 1, batch.input_ids.shape[1]).bool()
