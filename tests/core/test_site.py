from raysearch.core.json import from_json, to_record
from raysearch.core.mask import Mask
from raysearch.core.site import Half, Site, Sites

SITES = Sites.of_layers([100, 100, 120, 100])


def test_a_site_is_a_whole_layer():
    site = Site("2", (Half(2, "attention"), Half(2, "mlp")), 120, 1, kind=1)
    assert SITES[2] == site
    assert [site.label for site in SITES] == ["0", "1", "2", "3"]
    assert (len(SITES), SITES.n_layers, SITES.layer_parameters) == (4, 4, (100, 100, 120, 100))
    assert SITES.singles == (Mask.of(0), Mask.of(1), Mask.of(2), Mask.of(3))


def test_a_mask_removes_parameters_and_cost():
    mask = Mask.of(1, 2)
    assert SITES.remaining(mask) == SITES.kept_layers(mask) == (0, 3)
    assert (SITES.parameters(mask), SITES.parameters(Mask())) == (220, 0)
    assert (SITES.total_cost, SITES.cost(mask), SITES.remaining_cost(mask)) == (4, 2, 2)


def test_sites_of_layers():
    assert SITES.in_layers([0, 3]) == {0, 3}
    assert SITES.last(2) == Mask.of(2, 3)
    assert SITES.last(0) == Mask()


def test_masks_of_as_many_layers_of_each_kind_are_equally_fast():
    equal = Sites.of_equal_layers(5)
    assert equal.of_same_speed(Mask.of(0, 2)) == equal.of_same_speed(Mask.of(1, 3)) == Mask.of(3, 4)
    assert SITES.of_same_speed(Mask.of(0, 2)) == SITES.of_same_speed(Mask.of(2, 3)) == Mask.of(2, 3)
    assert SITES.of_same_speed(Mask.of(0, 1)) == Mask.of(1, 3), "layer 2 is larger"
    windows = Sites.of_layers([100] * 4, kinds=[0, 1, 0, 1])
    assert windows.of_same_speed(Mask.of(0, 1)) == Mask.of(2, 3)
    assert windows.of_same_speed(Mask.of(0, 2)) == Mask.of(0, 2), "layers of one size may have different windows"
    assert windows.by_kind([3, 0, 2]) == {1: [3], 0: [0, 2]}


def test_sites_of_halves_run_in_order():
    """Of halves, a layer stays while one of its halves does."""
    attentions = [Site(f"{layer}a", (Half(layer, "attention"),), 1, 0.25) for layer in range(2)]
    mlps = [Site(f"{layer}m", (Half(layer, "mlp"),), 3, 0.75) for layer in range(2)]
    halves = Sites((attentions[0], mlps[0], attentions[1], mlps[1]))
    assert (halves.n_layers, halves.total_cost, halves.layer_parameters) == (2, 2, (4, 4))
    assert halves.kept_layers(Mask.of(0)) == (0, 1)
    assert halves.kept_layers(Mask.of(0, 1)) == (1,)
    assert halves.in_layers([1]) == {2, 3}
    assert halves.remaining_cost(Mask.of(1, 2)) == 1


def test_texts():
    assert SITES.text(Mask.of(1, 3)) == "{1,3} of 4 layers (0-based)"
    picture = Sites.of_equal_layers(12).picture(Mask.of(0, 11))
    assert picture == "·█████████ █·   layers 0 to 11: █ kept, · removed"


def test_record_round_trip():
    assert from_json(Sites, to_record(SITES)) == SITES
