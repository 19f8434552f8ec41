"""Each value of a configuration is shown with its origin: the command line, or a file."""

from __future__ import annotations

from pathlib import Path

from raysearch.configuration.compose import compose
from raysearch.configuration.origins import settings_of
from raysearch.errors import UserError
from tests.sentences import Sentences


def test_values_have_their_origins() -> None:
    overrides = ["searcher=beam", "searcher.width=3", "calibration=paper_margin", "data.path=x.json", "seed=7"]
    settings = {setting.key: setting for setting in settings_of("search", overrides)}
    origins = {
        "searcher.width": (3, "command line"),
        "searcher.ties": ("earlier", "searcher/beam.yaml"),
        "data.samples": (64, "calibration/paper_margin.yaml"),
        "data.path": ("x.json", "command line"),
        "data.type": ("commonsense170k", "data/commonsense170k.yaml"),
        "data.seed": (7, "data/commonsense170k.yaml, as seed: command line"),
        "remove": (5, "search.yaml"),
        "store": ("mlruns", "evaluation.yaml"),
    }
    assert {key: (settings[key].value, settings[key].origin) for key in origins} == origins
    assert not [setting for setting in settings.values() if setting.origin == "computed"]


def test_data_of_a_weighted_objective_have_their_origin() -> None:
    settings = {setting.key: setting for setting in settings_of("search", ["objective=weighted", "data=c4"])}
    assert settings["data.samples"].origin == "data/c4.yaml"
    assert settings["objective.normalise"].origin == "objective/weighted.yaml"


def test_a_later_file_wins() -> None:
    origins = {setting.key: setting.origin for setting in settings_of("recover", ["recovery=paper"])}
    assert origins["assess.speed.enabled"] == "recover.yaml"
    assert origins["assess.speed.repeats"] == "assess/offline.yaml"
    assert origins["assess.shots"] == "assess/none.yaml", "the file that assess/offline.yaml includes"
    assert origins["recovery.top_k"] == "recovery/default.yaml"
    assert origins["assess.texts.sotu.part"] == "assess/offline.yaml", "the file whose text sets it"
    assert origins["data.samples"] == "recovery/paper.yaml"


def test_all_values_are_listed(tmp_path: Path) -> None:
    (tmp_path / "searcher").mkdir()
    (tmp_path / "searcher" / "wide.yaml").write_text("defaults: [beam]\nwidth: 9\n")
    overrides = ["model=owner/name", "searcher=wide"]
    settings = {setting.key: setting for setting in settings_of("search", overrides, tmp_path)}
    assert settings["searcher.width"].origin == "searcher/wide.yaml"
    assert settings["searcher.ties"].origin == "searcher/beam.yaml"
    assert (settings["model.path"].value, settings["model.path"].origin) == ("owner/name", "command line")
    whole = compose("search", overrides, tmp_path)
    assert {key.partition(".")[0] for key in settings} == whole.keys() - {"choices"}


def test_mistakes_are_those_of_the_command(sentences: Sentences) -> None:
    with sentences.refused(UserError):
        settings_of("search", ["searcher=beem"])


def test_a_section_given_by_an_override_is_from_the_command_line_and_a_chosen_file_is_not(tmp_path: Path) -> None:
    file = tmp_path / "searcher" / "{z}.yaml"
    file.parent.mkdir()
    file.write_text("type: beam\nwidth: 7\nties: earlier\n", encoding="utf-8")
    for override, width, origin in (
        ("searcher={z}", 7, "searcher/{z}.yaml"),
        ("searcher={type: beam, width: 3}", 3, "command line"),
    ):
        settings = {setting.key: setting for setting in settings_of("search", [override], tmp_path)}
        assert (settings["searcher.width"].value, settings["searcher.width"].origin) == (width, origin)
