"""The map that stands for removed layers solves the weighted, regularised least squares of its docstring."""

from __future__ import annotations

import numpy as np
import pytest

from raysearch.recovery.linear_map import CutSums, LinearMap, solve, solve_constant

N_TOKENS = 200
WIDTH = 6


def random_tokens(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what a half adds, what the removed layers add, and the weights of tokens."""
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(N_TOKENS, WIDTH))
    targets = inputs @ draw.normal(size=(WIDTH, WIDTH)) + 3 + draw.normal(size=(N_TOKENS, WIDTH))
    return inputs, targets, draw.uniform(0.5, 2, size=(N_TOKENS, 1))


def sums_of(inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> CutSums:
    with_ones = np.hstack([inputs, np.ones((len(inputs), 1))])
    squares = float((weights * targets**2).sum())
    return CutSums((weights * with_ones).T @ with_ones, (weights * with_ones).T @ targets, squares, 1.0, len(inputs))


@pytest.mark.parametrize("with_constant", [False, True])
def test_the_map_is_that_of_numpys_least_squares_with_rows_for_the_ridge(with_constant: bool) -> None:
    inputs, targets, weights = random_tokens(0)
    sums = sums_of(inputs, targets, weights)
    ridge = 0.3
    fitted = solve(sums, ridge, with_constant)
    roots = np.sqrt(weights)
    scale = (weights * inputs**2).sum() / WIDTH
    columns = [inputs, np.ones((N_TOKENS, 1))] if with_constant else [inputs]
    rows = roots * np.hstack(columns)
    penalty = np.sqrt(ridge * scale) * np.eye(WIDTH, rows.shape[1])
    expected, *_ = np.linalg.lstsq(np.vstack([rows, penalty]), np.vstack([roots * targets, np.zeros((WIDTH, WIDTH))]))
    np.testing.assert_allclose(fitted.matrix, expected[:WIDTH], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fitted.constant, expected[WIDTH] if with_constant else 0, rtol=1e-9, atol=1e-9)


def test_the_error_on_other_tokens_is_that_of_their_predictions() -> None:
    fitted = solve(sums_of(*random_tokens(0)), 0.1, with_constant=True)
    inputs, targets, weights = random_tokens(1)
    wrong = inputs @ fitted.matrix + fitted.constant - targets
    expected = (weights * wrong**2).sum() / (weights * targets**2).sum()
    assert sums_of(inputs, targets, weights).error(fitted) == pytest.approx(expected)


def test_a_constant_alone_is_the_weighted_mean() -> None:
    inputs, targets, weights = random_tokens(0)
    constant = solve_constant(sums_of(inputs, targets, weights))
    np.testing.assert_allclose(constant.constant, (weights * targets).sum(0) / weights.sum())
    assert not constant.matrix.any()


def test_sums_of_parts_add_up() -> None:
    inputs, targets, weights = random_tokens(0)
    halves = [sums_of(inputs[part], targets[part], weights[part]) for part in (slice(0, 50), slice(50, None))]
    total = CutSums.total(halves)
    whole = sums_of(inputs, targets, weights)
    nothing = LinearMap(np.zeros((WIDTH, WIDTH)), np.zeros(WIDTH))
    np.testing.assert_allclose(total.inputs, whole.inputs)
    np.testing.assert_allclose(total.products, whole.products)
    assert (total.n_tokens, total.mean_growth) == (N_TOKENS, 2 / N_TOKENS)
    assert total.error(nothing) == pytest.approx(1)
