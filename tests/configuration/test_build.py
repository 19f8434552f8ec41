"""All mistakes of a command are reported together, each with its own sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from raysearch.configuration import build, tree
from raysearch.configuration.compose import compose
from raysearch.errors import Mistakes, UserError
from tests.sentences import Sentences

#: Overrides of a command with several mistakes, and how each sentence begins.
SEVERAL: list[tuple[Callable[[Sequence[str]], object], str, int]] = [
    (
        build.search_spec,
        "remov=3 seed=-1 remove=two searcher=beam searcher.width=0 data.samples=-1 data.seq_len=1 cluster.replicas=0",
        7,
    ),
    (  # the keys of an unknown choice cannot be checked
        build.search_spec,
        "searcher=gredy searcher.widht=3 data=sotuu data.path=x.txt remove=1,2",
        3,
    ),
    (build.score_spec, "data=file seed=x", 3),
    (
        build.search_spec,
        "objective=weighted objective.parts=[{weight:1,of:'objective=klx'},3] seed=-1",
        3,
    ),
    (
        build.study_spec,
        "study.grid.searcher=[gredy,greedy,bream] study.retries=-1 remov=3 seed=-1 assess=offline assess.limit=0",
        6,
    ),
    (
        lambda overrides: build.evaluation_spec(overrides, ["objective=klx", "data.seq_len=1"]),
        "data.samples=-1 store=7",
        4,
    ),
]


def test_all_mistakes_are_reported_together(subtests: pytest.Subtests, sentences: Sentences) -> None:
    for build_spec, overrides, n_mistakes in SEVERAL:
        with subtests.test(overrides):
            with pytest.raises(UserError) as caught:
                build_spec(overrides.split())
            assert len(caught.value.sentences) == n_mistakes
            assert str(caught.value).splitlines() == list(caught.value.sentences)
            sentences.check(str(caught.value), overrides)


def test_a_single_mistake_is_one_sentence_and_raised_as_it_is() -> None:
    error = UserError("seed=-1 should be greater than or equal to 0")
    mistakes = Mistakes()
    for repeated in (error, UserError(str(error))):
        with mistakes:
            raise repeated
    with pytest.raises(UserError) as caught:
        mistakes.raise_if_any()
    assert caught.value is error


def test_other_errors_are_not_taken_for_mistakes() -> None:
    with pytest.raises(KeyError), Mistakes():
        raise KeyError("x")


def test_a_recorded_search_needs_training_and_tracking_only_to_be_resumed(
    monkeypatch: pytest.MonkeyPatch,
    sentences: Sentences,
) -> None:
    config = compose("search", ["refine=recover"])
    config["tracking"]["uri"] = "nowhere"
    monkeypatch.setattr(tree, "find_spec", lambda name: None)
    assert build.recorded_search(config).refiner is None
    with sentences.refused(UserError):
        build.recorded_search(config, goes_on=True)
    with sentences.refused(UserError):
        build.tracking_options(config)


def test_a_search_that_another_version_recorded_is_refused_in_a_sentence(sentences: Sentences) -> None:
    config = compose("search", [])
    build.recorded_search(config)
    del config["screening"]
    with sentences.refused(UserError):
        build.recorded_search(config)


def test_searches_that_were_recorded_without_later_keys_are_read() -> None:
    config = compose("search", [])
    for key in ("space", "repair", "budget", "speed", "serve", "refine", "schedule", "heal"):
        del config[key]
    for goes_on in (False, True):
        recorded = build.recorded_search(config, goes_on=goes_on)
        assert replace(recorded, config={}) == replace(build.search_spec([]), config={})


def test_a_key_with_a_default_may_be_missing_in_a_recorded_search(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class LaterConfig(tree.SearchConfig):
        note: str | None = None

    config = compose("search", [])
    monkeypatch.setattr(build, "SearchConfig", LaterConfig)
    assert build.recorded_search(config, goes_on=True) == build.search_spec([])


def test_seeds_of_a_searcher_without_random_numbers_are_one_search():
    overrides = ["study.grid.searcher=[greedy,random]", "study.grid.seed=[0,1,2]", "study.grid.draw=[0,1]", "remove=2"]
    spec = build.study_spec(overrides)
    seeds_of: dict[tuple[str, str], list[int]] = {(cell.searcher, cell.draw): [] for cell in spec.cells}
    for cell in spec.cells:
        seeds_of[cell.searcher, cell.draw].append(cell.search.seed)
    assert seeds_of["greedy", "0"] == seeds_of["greedy", "1"] == [0]
    first = seeds_of["random", "0"]
    second = seeds_of["random", "1"]
    for draw_seeds in (first, second):
        assert draw_seeds[1:] == [draw_seeds[0] + 1, draw_seeds[0] + 2]
    assert not {*first} & {*second}, "other random numbers in each draw"
    (note,) = spec.notes
    assert note == "no random numbers decide what greedy finds, so one seed is run and 4 searches are left out"
    once = "each calibration is drawn once, so what other samples would give is not measured; study.grid.draw=[0,1,2] d"
    assert [note.startswith(once) for note in build.study_spec(overrides[:1]).notes] == [True]
    assert build.study_spec(["study.grid.searcher=[greedy]", "study.grid.remove=[2,3]"]).notes == []
    more = "study.include=[{searcher: random, objective: kl, draw: 1}]"
    (note,) = build.study_spec(
        ["study.grid.searcher=[random]", "study.grid.objective=[kl,perplexity]", "study.grid.draw=[0]", more]
    ).notes
    assert note.startswith("perplexity is drawn once, so what other samples would give is not measured")


def random_seeds(*overrides: str) -> dict[tuple[str, str], int]:
    """Return the seed of each random search of a study, by calibration and draw."""
    cells = build.study_spec(["study.grid.searcher=[greedy,random]", "remove=2", *overrides]).cells
    assert {cell.search.seed for cell in cells if cell.searcher == "greedy"} <= {0, 7}
    return {(cell.calibration, cell.draw): cell.search.seed for cell in cells if cell.searcher == "random"}


def test_a_searcher_has_other_random_numbers_on_each_set_of_samples():
    whole = random_seeds("study.grid.objective=[perplexity,kl]", "study.grid.draw=[0,1,2]")
    assert len({*whole.values()}) == len(whole) == 6
    part = random_seeds("study.grid.objective=[kl]", "study.grid.draw=[2,0]")
    assert part.items() < whole.items(), "the same searches, whatever else the study has"
    based = random_seeds("study.grid.objective=[kl]", "study.grid.draw=[2,0]", "seed=7")
    assert based == {place: seed + 7 for place, seed in part.items()}
    assert [*random_seeds("seed=7").values()] == [7], "one set of samples"
    named = random_seeds("study.grid.draw={x: data.part=rest, y: data.part=held_out}")
    assert len({*named.values()}) == 2


def test_overrides_of_an_axis_give_a_searcher_the_same_random_numbers_in_all_draws():
    same = random_seeds("study.grid.draw={3: data.seed=3 seed=7, 4: data.seed=4 seed=7}")
    assert [*same.values()] == [7, 7]


def test_all_searchers_have_the_same_samples_whatever_their_seeds():
    cells = build.study_spec(["study=two_calibrations", "study.grid.remove=[5]", "study.grid.draw=[0,1]"]).cells
    by_samples = {(cell.calibration, cell.draw): cell.search.evaluation.calibrations for cell in cells}
    assert all(cell.search.evaluation.calibrations == by_samples[cell.calibration, cell.draw] for cell in cells)
    assert [cell.search.config["data"]["seed"] for cell in cells] == [int(cell.draw) for cell in cells]
    axis = ["study.grid.objective=[perplexity,kl]", "study.grid.searcher=[random]", "remove=2"]
    assert [cell.search.config["data"]["seed"] for cell in build.study_spec(axis).cells] == [0, 0]


def test_a_list_of_an_axis_keeps_those_labels_of_the_file() -> None:
    for searchers, labels in (("[GA,greedy]", {"GA", "greedy"}), ("[genetic]", {"genetic"})):
        spec = build.study_spec(["study=two_calibrations", f"study.grid.searcher={searchers}"])
        assert {cell.searcher for cell in spec.cells} == labels  # genetic is no label of the file, so a searcher
    assert {cell.calibration for cell in spec.cells} == {"perplexity", "task margin"}


@pytest.mark.parametrize(
    ("overrides", "screening"),
    [
        ([], ["off"]),
        (["screening=confident"], ["confident"]),
        (["study.grid.screening=[off,confident]"], ["off", "confident"]),
    ],
)
def test_the_searches_of_a_study_evaluate_every_mask_in_full_by_default(overrides, screening):
    spec = build.study_spec(["study.grid.searcher=[greedy]", "study.grid.remove=[2]", *overrides])
    assert [cell.search.config["choices"]["screening"] for cell in spec.cells] == screening


def test_files_and_folders_of_the_user_may_have_any_name(tmp_path: Path) -> None:
    names = ["m'é", 'a "b"', "日本", "x,y", "p=q", "{z}", "[w]", "$v", "null", "1", "a#b", "a\\b", "new\nline", "~x"]
    for name in names:
        file = tmp_path / f"of {name}" / "searcher" / f"{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text("type: beam\nwidth: 7\n", encoding="utf-8")
        spec = build.search_spec([f"searcher={name}", "remove=2"], file.parents[1])
        assert (spec.searcher_name, spec.config["searcher"]["width"]) == (name, 7), name
        assert re.fullmatch(r"\w[\w-]*-m2-[0-9a-f]{8}", spec.search_id("")), name


@pytest.mark.parametrize("key", ["remove", "seed", "store", "protect", "data.path"])
def test_a_value_that_is_left_open_is_required(key: str, sentences: Sentences) -> None:
    with sentences.refused(UserError):
        build.search_spec(["data=file", "data.path=x.txt", f"{key}=???"])


def test_an_unfinished_quotation_in_a_recovery_is_reported_with_its_key(sentences: Sentences) -> None:
    with sentences.refused(UserError):
        build.study_spec(["study.grid.remove=[2]", 'study.recover.mine="recovery.method=\'full"'])


def test_a_file_of_the_user_that_has_changed_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "searcher").mkdir()
    for width in (2, 13):
        (tmp_path / "searcher" / "wide.yaml").write_text(f"type: beam\nwidth: {width}\n", encoding="utf-8")
        assert build.search_spec(["searcher=wide"], tmp_path).config["searcher"]["width"] == width


@pytest.mark.parametrize(
    ("overrides", "also"),
    [
        ([], ["objective=mine"]),
        (["objective=weighted", "objective.parts=[{weight: 1, of: 'objective=mine'}]"], []),
    ],
)
def test_a_chosen_file_that_does_not_set_its_section_is_refused(
    tmp_path: Path, overrides: list[str], also: list[str], sentences: Sentences
) -> None:
    (tmp_path / "objective").mkdir()
    (tmp_path / "objective" / "mine.yaml").write_text("# @package _global_\nseed: 2\n", encoding="utf-8")
    with sentences.refused(UserError):
        build.evaluation_spec(overrides, also, tmp_path)


def test_recover_names_the_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose("recover", ["recovery.method=qlora"])
    for missing, sentence in {
        ("peft", "trl"): "recover needs peft and trl; install with: pip install peft trl",
        ("trl",): "recover needs trl; install with: pip install trl",
        ("bitsandbytes",): "recovery.method=qlora needs bitsandbytes; install it with: pip install bitsandbytes",
    }.items():
        monkeypatch.setattr(
            tree, "find_spec", lambda name, missing=missing: None if name in missing else find_spec(name)
        )
        with pytest.raises(UserError) as refusal:
            build.recover_spec(config)
        assert str(refusal.value) == sentence


def test_a_path_of_data_chooses_the_data_of_files(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text("The text.")
    for path in ("notes.txt", "rows.JSONL", str(tmp_path / "texts")):
        spec = build.search_spec([f"data={path}", "data.samples=2"])
        assert spec.config["choices"]["data"] == "file"
        assert spec.config["data"]["path"] == path
        assert spec.evaluation.calibrations[0].name == f"perplexity on file {Path(path).name}"


def test_models_of_a_study_are_named_without_their_folders_if_the_names_differ() -> None:
    for paths, models in {
        ("a/tiny.gguf", "b/other.gguf"): {"tiny", "other"},
        ("a/tiny.gguf", "b/tiny.gguf"): {"a/tiny.gguf", "b/tiny.gguf"},
    }.items():
        cells = build.study_spec([f"study.grid.model=[{','.join(paths)}]", "study.grid.remove=[1]"]).cells
        assert {cell.model for cell in cells} == models
