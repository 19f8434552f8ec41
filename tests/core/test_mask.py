from raysearch import Mask, UserError
from tests.sentences import Sentences


def test_text_round_trip():
    mask = Mask.of(25, 21, 22)
    assert str(mask) == "{21,22,25}"
    assert Mask.parse(" {21, 22,25} ") == mask
    assert str(Mask()) == "{}"
    assert Mask.parse("{}") == Mask()


def test_equal_masks_hash_alike_and_order_by_layers():
    assert {Mask.of(2, 1), Mask.of(1, 2)} == {Mask((1, 2))}
    assert sorted([Mask.of(2), Mask.of(1, 3), Mask.of(1, 2), Mask()]) == [
        Mask(),
        Mask.of(1, 2),
        Mask.of(1, 3),
        Mask.of(2),
    ]


def test_set_algebra():
    a = Mask.of(1, 2, 3)
    b = Mask.of(3, 4)
    assert (a | b, a & b, a - b, a ^ b) == (Mask.of(1, 2, 3, 4), Mask.of(3), Mask.of(1, 2), Mask.of(1, 2, 4))
    assert a | [7] == Mask.of(1, 2, 3, 7)


def test_masks_of_smaller_models_have_the_numbers_of_the_larger_one():
    layers = [*"abcdefgh"]
    for first, later in [({}, {0, 7}), ({0, 1}, {0, 5}), ({3, 4, 6}, {2, 3, 4}), ({7}, {})]:
        left = [layer for index, layer in enumerate(layers) if index not in first]
        expected = [layer for index, layer in enumerate(left) if index not in later]
        mask = Mask.of(*first).then(Mask.of(*later))
        assert [layer for index, layer in enumerate(layers) if index not in mask] == expected


def test_jaccard():
    assert Mask.of(1, 2, 3).jaccard(Mask.of(2, 3, 4)) == 0.5
    assert Mask.of(1).jaccard(Mask.of(2)) == 0
    assert Mask().jaccard(Mask()) == 1


def test_bad_text_is_refused(sentences: Sentences):
    texts = ["21,22", "{a}", "{1,}", "{-1}", "{1.5}", "", "{1}{2}", "{1b}", "{m1}"]
    sentences.refused_each(Mask.parse, texts)


def test_impossible_masks_are_refused(sentences: Sentences):
    with sentences.refused(UserError):
        Mask.of(-1)
    with sentences.refused(UserError):
        Mask.of(3, 3)
    with sentences.refused(UserError):
        Mask((3, 2))
