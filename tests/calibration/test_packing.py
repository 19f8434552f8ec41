import numpy as np

from raysearch.calibration.batch import Batch, Choices
from raysearch.calibration.packing import pack, packed_lengths


def batch_of(*items, scored_from=2):
    """Items as lists of rows, of which the tokens from some place on are scored."""
    rows = [row for item in items for row in item]
    number = np.repeat(np.arange(len(items)), [len(item) for item in items])
    scored = [[place >= scored_from for place in range(len(row))] for row in rows]
    return Batch.of(rows, scored, Choices(number, np.diff(number, prepend=-1) > 0, np.ones(len(rows), np.int64)))


def packed_items(*items, scored_from=2, together=False):
    """Packed, with positions and what each token attends to."""
    packed = pack(batch_of(*items, scored_from=scored_from), together)
    assert packed.position_ids is not None
    assert packed.attention_mask is not None
    return packed, packed.position_ids, packed.attention_mask


def test_an_item_by_hand():
    packed, positions, attends = packed_items([[1, 2, 3], [1, 2, 4, 5]])
    assert packed.input_ids.tolist() == [[1, 2, 3, 4, 5]]
    assert positions.tolist() == [[0, 1, 2, 2, 3]]
    assert attends.astype(int).tolist() == [
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]
    ]
    assert packed.predictors.tolist() == [1, 1, 3]  # of 3, of 4, and of 5


def test_shorter_items_are_padded_with_what_sees_itself_alone():
    packed, _, attends = packed_items([[1, 2, 3], [1, 2, 4, 5]], [[6, 7, 8]])
    assert packed.input_ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]]
    assert attends[1, 3:].astype(int).tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert packed.predictors.tolist() == [1, 1, 3, 5 + 1]


def test_items_that_share_rows_do_not_see_each_other():
    items = [[[1, 2, 3], [1, 2, 4, 5]], [[6, 7]], [[8, 9, 10]], [[11, 12], [11, 13]]]
    packed, positions, attends = packed_items(*items, scored_from=1, together=True)
    assert packed.input_ids.tolist() == [[1, 2, 3, 4, 5], [8, 9, 10, 6, 7], [11, 12, 13, 0, 0]]
    assert positions.tolist() == [[0, 1, 2, 2, 3], [0, 1, 2, 0, 1], [0, 1, 1, 0, 0]]
    assert attends[1].astype(int).tolist() == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]
    ]  # fmt: skip
    assert attends[2, 3:].astype(int).tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert packed.predictors.tolist() == [0, 1, 0, 1, 3, 8, 5, 6, 10, 10]


def test_rows_that_items_share_have_next_to_no_padding():
    lengths = np.random.default_rng(0).geometric(1 / 60, size=100) + 2
    batch = batch_of(*([[*range(length - 1), 500], [*range(length - 1), 501]] for length in lengths))
    packed = pack(batch, together=True)
    assert sum(packed_lengths(batch)) <= packed.n_tokens <= 1.05 * sum(packed_lengths(batch)) < pack(batch).n_tokens / 3
    assert packed.input_ids.shape[1] == max(packed_lengths(batch))


def test_whatever_rows_begin_with_in_common_is_shared_also_a_choice_that_begins_another():
    packed = pack(batch_of([[1, 2, 9, 3], [1, 2, 9, 4]], scored_from=1))
    assert packed.input_ids.tolist() == [[1, 2, 9, 3, 4]]
    assert packed.predictors.tolist() == [0, 1, 2, 0, 1, 2]  # scored tokens that are shared count for each choice
    packed = pack(batch_of([[1, 2, 3], [1, 2, 3, 4]]))
    assert packed.input_ids.tolist() == [[1, 2, 3, 4]]
    assert packed.predictors.tolist() == [1, 1, 2]


def test_nothing_in_common():
    packed, positions, attends = packed_items([[1, 2, 3], [4, 5]], scored_from=1)
    assert packed.input_ids.tolist() == [[1, 2, 3, 4, 5]]
    assert positions.tolist() == [[0, 1, 2, 0, 1]]
    assert not attends[0, 3:, :3].any()
    assert packed.predictors.tolist() == [0, 1, 3]


def test_lengths_of_items_are_those_of_their_packed_rows():
    batch = batch_of([[1, 2, 3], [1, 2, 4, 5]], [[6, 7, 8]], [[1, 2, 3], [4, 5], [1, 6]])
    assert packed_lengths(batch) == [pack(batch.samples(item, item + 1)).n_tokens for item in range(3)] == [5, 3, 7]
    assert packed_lengths(Batch.of([[1, 2], [3]], [[False, True], [False]])) == [2, 1]


def test_saves_the_prompts():
    prompt = list(range(40))
    batch = batch_of([[*prompt, 50, choice] for choice in range(4)], scored_from=40)
    assert pack(batch).n_tokens == 40 + 1 + 4
    assert batch.n_tokens == 4 * 42
