"""A secret in a configuration is refused with the variable to use, and the sentence does not repeat it."""

from __future__ import annotations

from pathlib import Path

import pytest

import raysearch
from raysearch.configuration.compose import compose
from raysearch.errors import UserError

SECRET = "aVery-Secret-Value-7"
TOKEN = "hf_" + "aB3" * 11

#: Overrides of a search, the keys that the sentences name, and the variable.
REFUSED: list[tuple[str, list[str], str]] = [
    (f"tracking.uri=http://me:{SECRET}@host", ["tracking.uri"], "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_P"),
    (f"tracking.uri=postgresql+psycopg2://me:{SECRET}@host/db", ["tracking.uri"], "PGPASSWORD"),
    (f"tracking.uri=mysql://me:{SECRET}/ @host/db", ["tracking.uri"], "MLFLOW_TRACKING_URI to the whole address"),
    (f"tracking.uri=https://h/x?sig={SECRET}", ["tracking.uri"], "MLFLOW_TRACKING_TOKEN"),
    (f"tracking.uri=htp://me:{SECRET}@host", ["tracking.uri"], "MLFLOW_TRACKING_URI"),
    (f"tracking.experiment={TOKEN}", ["tracking.experiment"], "HF_TOKEN"),
    (f"model=./{TOKEN}", ["model.path"], "HF_TOKEN"),
    (f"model.token={SECRET}", ["model.token"], "HF_TOKEN"),
    (f"api_key={SECRET}", ["api_key"], "HF_TOKEN"),
    (f"remove=http://me:{SECRET}@host", ["remove"], "HF_TOKEN"),
    (f"data.path={TOKEN}.txt", ["data.path"], "HF_TOKEN"),
    (f"cluster.address=ray://me:{SECRET}@host:10001", ["cluster.address"], "RAY_AUTH_TOKEN"),
    (f"searcher={{type: {TOKEN}}}", ["searcher.type"], "HF_TOKEN"),
    (f"objective.parts=[{{weight: 1.0, of: 'data=file data.path={TOKEN}'}}]", ["objective.parts.of"], "HF_TOKEN"),
]  # fmt: skip


def refusal(*overrides: str, config_dir: Path | None = None, job: str = "search") -> UserError:
    """Return the error that refuses the overrides."""
    with pytest.raises(UserError) as refused:
        compose(job, overrides, config_dir)
    assert not [secret for secret in (SECRET, TOKEN) if secret in str(refused.value)]
    return refused.value


def test_a_secret_in_an_override_is_refused(subtests: pytest.Subtests) -> None:
    for override, keys, variable in REFUSED:
        with subtests.test(override):
            error = refusal(override, "seed=5")
            assert [sentence.partition(" has ")[0] for sentence in error.sentences] == keys
            assert all(variable in sentence for sentence in error.sentences)


def test_a_secret_in_the_axis_of_a_study_is_refused(subtests: pytest.Subtests) -> None:
    for axis in (f"[{TOKEN}]", f"{{{TOKEN}: data.seed=1}}", f"{{a: data.path={TOKEN}}}"):
        with subtests.test(axis):
            error = refusal(f"study.grid.calibration={axis}", job="study")
            assert str(error).startswith("study.grid.calibration")


def test_a_secret_in_a_value_of_python_is_refused() -> None:
    with pytest.raises(UserError, match=r"^tracking\.uri has a password .*PGPASSWORD$"):
        raysearch.search(tracking={"uri": f"postgresql://me:{SECRET}@host/db"})
    with pytest.raises(UserError, match=r"^model\.path has a password or a token, which would be recorded"):
        raysearch.config(model=Path(TOKEN) / "model")


def test_the_value_of_a_secret_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_TOKEN", SECRET)
    error = refusal("data=file", f"data.path=/data/{SECRET}/x.txt")
    assert str(error).startswith("data.path has the value of TEAM_TOKEN, which would be recorded")


def test_a_secret_in_a_file_of_the_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tracking").mkdir()
    file = tmp_path / "tracking" / "team.yaml"
    monkeypatch.setenv("STORE", f"mysql://me:{SECRET}@host/db")
    for uri in (f"mysql://me:{SECRET}@host/db", "${oc.env:STORE}"):
        file.write_text(f"defaults: [mlflow]\nuri: {uri}\n")
        error = refusal("tracking=team", config_dir=tmp_path)
        assert str(error).startswith("tracking.uri has a password or a token, which would be recorded")
        assert str(error).endswith("MLFLOW_TRACKING_URI to the whole address")
    file.write_text("defaults: [mlflow]\nuri: mysql://me@host/db\n")
    assert compose("search", ["tracking=team"], tmp_path)["tracking"]["uri"] == "mysql://me@host/db"


def test_what_has_no_secret_is_accepted(subtests: pytest.Subtests) -> None:
    for override in (
        "tracking.uri=postgresql://me@host/db",
        "tracking.uri=http://me@host:5000",
        "tracking.uri=http://host:5000/path@v2",
        "tracking.uri=sqlite:////home/me@example.org/x.db",
        "model=me@example.org/model",
        "model=owner/name@main",
        "store=/data/me:x@y",
        "data.path=user@host:/x.json",
        "tracking.experiment=tokens of a password",
        "objective=kl",
    ):
        with subtests.test(override):
            compose("search", ["data=file", "data.path=x.txt", override])
