"""Rearranged weights give the same results as plain ones, whichever rows are computed together."""

import copy

import pytest
import torch
from torch import nn

from raysearch.models import weight_layout
from raysearch.models.weight_layout import rearrange_weights

pytestmark = pytest.mark.skipif(
    not weight_layout._has_kernel(torch.zeros(1, dtype=torch.bfloat16)), reason="this processor has no such kernel"
)
WIDTHS = ((64, 200), (576, 192), (576, 1536))  # from, to


def layers(inputs, outputs, dtype):
    """Return a linear layer, and a copy that computes from rearranged weights."""
    torch.manual_seed(0)
    plain = nn.Linear(inputs, outputs, bias=False).to(dtype).requires_grad_(False)
    laid_out = nn.Sequential(copy.deepcopy(plain))
    rearrange_weights(laid_out)
    return plain, laid_out


@torch.no_grad()
def test_products_agree():
    for widths in WIDTHS:
        states = torch.randn(3, 50, widths[0])
        plain, laid_out = layers(*widths, torch.float32)
        exact = states.double() @ plain.weight.double().mT
        assert (laid_out(states) - exact).abs().max() <= 1e-6 * exact.abs().max()
        plain, laid_out = layers(*widths, torch.bfloat16)
        assert torch.equal(laid_out(states.bfloat16()), plain(states.bfloat16()))
        transposed = states.transpose(0, 1)
        assert torch.equal(laid_out(transposed.bfloat16()), plain(transposed.bfloat16()))


@torch.no_grad()
def test_a_row_does_not_depend_on_the_other_rows():
    for dtype in (torch.float32, torch.bfloat16):
        for widths in WIDTHS:
            states = torch.randn(512, widths[0]).to(dtype)
            _, laid_out = layers(*widths, dtype)
            all_rows = laid_out(states)
            for size in (16, 100, 128, 256):
                assert torch.equal(laid_out(states[size : 2 * size]), all_rows[size : 2 * size]), (dtype, widths, size)


def test_gradients_go_through_the_weights_themselves():
    _, laid_out = layers(64, 200, torch.float32)
    laid_out.requires_grad_(True)
    laid_out(torch.randn(3, 64)).sum().backward()
    assert laid_out[0].weight.grad is not None


def test_a_layer_with_a_bias_is_not_changed():
    model = nn.Sequential(nn.Linear(8, 8))
    rearrange_weights(model)
    assert "forward" not in vars(model[0])


def test_the_weights_of_a_large_model_are_not_copied(monkeypatch):
    monkeypatch.setattr(weight_layout, "MAX_COPIED_BYTES", 10)
    _, laid_out = layers(64, 200, torch.float32)
    assert "forward" not in vars(laid_out[0])
