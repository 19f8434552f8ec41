from raysearch.core.json import from_json, to_record
from raysearch.core.mask import Half, Mask
from raysearch.core.site import Block, Run, Site, Sites

SITES = Sites.of_layers([100, 100, 120, 100])


def test_a_site_is_a_whole_layer():
    site = Site("2", (Half(2, "attention"), Half(2, "mlp")), 120, 1, kind=1)
    assert SITES[2] == site
    assert [site.label for site in SITES] == ["0", "1", "2", "3"]
    assert (len(SITES), SITES.n_layers, SITES.layer_parameters) == (4, 4, (100, 100, 120, 100))
    assert SITES.singles == (Mask.of(0), Mask.of(1), Mask.of(2), Mask.of(3))


def test_a_mask_removes_parameters_and_cost():
    mask = Mask.of(1, 2)
    assert SITES.kept_layers(mask) == (0, 3)
    assert (SITES.parameters(mask), SITES.parameters(Mask())) == (220, 0)
    assert (SITES.total_cost, SITES.cost(mask), SITES.remaining_cost(mask)) == (4, 2, 2)


def test_sites_of_layers():
    assert SITES.in_layers([0, 3]) == {0, 3}
    assert SITES.with_halves([Half(1, "mlp")]) == {1}


def test_masks_of_as_many_layers_of_each_kind_are_equally_fast():
    equal = Sites.of_equal_layers(5)
    assert equal.of_same_speed(Mask.of(0, 2)) == equal.of_same_speed(Mask.of(1, 3)) == Mask.of(3, 4)
    assert SITES.of_same_speed(Mask.of(0, 2)) == SITES.of_same_speed(Mask.of(2, 3)) == Mask.of(2, 3)
    assert SITES.of_same_speed(Mask.of(0, 1)) == Mask.of(1, 3), "layer 2 is larger"
    windows = Sites.of_layers([100] * 4, kinds=[0, 1, 0, 1])
    assert windows.of_same_speed(Mask.of(0, 1)) == Mask.of(2, 3)
    assert windows.of_same_speed(Mask.of(0, 2)) == Mask.of(0, 2), "layers of one size may have different windows"
    assert windows.by_kind([3, 0, 2]) == {1: [3], 0: [0, 2]}


def test_masks_of_as_many_halves_of_each_kind_are_equally_fast():
    equal = Sites.of_equal_layers(5)
    assert equal.of_same_speed(Mask.of("1m", "2a")) == equal.of_same_speed(Mask.of(1)) == Mask.of(4)
    assert equal.of_same_speed(Mask.of("0a", 1, "3a")) == equal.of_same_speed(Mask.of(0, "2a", "3a"))
    assert equal.of_same_speed(Mask.of("0a", 1, "3a")) == Mask.of("2a", "3a", 4)
    windows = Sites.of_layers([100] * 4, kinds=[0, 1, 0, 1], attention_parameters=[25] * 4)
    assert (
        windows.of_same_speed(Mask.of("0m", "1a")) == windows.of_same_speed(Mask.of("0m", "3a")) == Mask.of("2m", "3a")
    )


def test_a_mask_of_halves_removes_their_parameters_and_cost():
    sites = Sites.of_layers([100, 200], attention_parameters=[25, 100])
    mask = Mask.of("0a", "1m")
    assert [(part.label, part.parameters, part.cost) for part in sites.parts] == [
        ("0a", 25, 0.25),
        ("0m", 75, 0.75),
        ("1a", 100, 0.5),
        ("1m", 100, 0.5),
    ]
    assert (sites.parameters(mask), sites.cost(mask), sites.remaining_cost(mask)) == (125, 0.75, 1.25)
    assert [*sites.runs(mask)] == [Run(0, "mlp"), Run(1, "attention")]
    assert sites.run_cost(Run(0, "mlp")) == 0.75
    assert sites.run_cost(Run(1)) == 1
    assert sites.kept_layers(mask) == (0, 1)


def test_an_attention_and_the_next_mlp_make_a_block():
    sites = Sites.of_equal_layers(4)
    assert sites.blocks(Mask.of(1)) == (Block(0, 0), Block(2, 2), Block(3, 3))
    assert sites.blocks(Mask.of("0m", "1a")) == (Block(0, 1), Block(2, 2), Block(3, 3))
    assert sites.blocks(Mask.of("0m", 1, "2a")) == (Block(0, 2), Block(3, 3))
    assert sites.blocks(Mask.of("1a", "3m")) == (Block(0, 0), Block(None, 1), Block(2, 2), Block(3, None))


def test_texts():
    assert SITES.text(Mask.of(1, 3)) == "{1,3} of 4 layers (0-based)"
    picture = Sites.of_equal_layers(12).picture(Mask.of(0, 11))
    assert picture == "·█████████ █·   layers 0 to 11: █ kept, · removed"
    picture = Sites.of_equal_layers(4).picture(Mask.of("1a", "2m", 3))
    assert picture == "█▄▀·   layers 0 to 3: █ kept, ▀ attention kept, ▄ MLP kept, · removed"


def test_record_round_trip():
    assert from_json(Sites, to_record(SITES)) == SITES
