import numpy as np

from raysearch.calibration.batch import Batch, Choices
from raysearch.generation.answer import Answer

ROWS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
SCORED = [[False, True, True], [False, True], [False, False, True, True]]


def test_rows_of_any_length_are_padded():
    batch = Batch.of(ROWS, SCORED)
    assert batch.input_ids.tolist() == [[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 9]]
    assert batch.lengths.tolist() == [3, 2, 4]
    assert batch.scored_per_row.tolist() == batch.scored_per_sample.tolist() == [2, 1, 2]
    assert (batch.n_samples, batch.n_scored, batch.n_tokens) == (3, 5, 9)
    assert batch.targets.tolist() == [2, 3, 5, 8, 9]
    assert batch.row_of_token.tolist() == [0, 0, 1, 2, 2]
    assert batch.inputs.predictors.tolist() == [0, 1, 4, 9, 10]


def test_rows_of_one_length_need_no_mask():
    assert Batch.of([[1, 2], [3, 4]], [[False, True]] * 2).attention_mask is None


def test_a_slice_of_samples_has_no_padding_that_none_of_them_needs():
    first_two = Batch.of(ROWS, SCORED, answers=(Answer("a"), Answer("b"), Answer("c"))).samples(0, 2)
    assert first_two.input_ids.tolist() == [[1, 2, 3], [4, 5, 0]]
    assert first_two.attention_mask is not None
    assert first_two.attention_mask.tolist() == [[True] * 3, [True, True, False]]
    assert first_two.answers == (Answer("a"), Answer("b"))
    assert Batch.of(ROWS, SCORED).samples(2, 3).attention_mask is None


def test_items_are_taken_whole():
    choices = Choices(np.array([0, 1, 1]), np.array([True, False, True]), np.array([1, 2, 3]))
    batch = Batch.of(ROWS, SCORED, choices)
    assert batch.n_samples == 2
    assert batch.scored_per_sample.tolist() == [2, 3]
    last = batch.samples(1, 2)
    assert last.choices is not None
    assert last.input_ids.tolist() == [[4, 5, 0, 0], [6, 7, 8, 9]]
    assert last.choices.item.tolist() == [0, 0]
    assert last.choices.gold.tolist() == [False, True]
    assert last.choices.characters.tolist() == [2, 3]
