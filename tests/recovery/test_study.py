"""Recovery as a stage of a study: each mask by each method, the dense model as a control, and a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysearch.configuration import build
from raysearch.recovery import recover, training
from raysearch.reporting import write
from raysearch.studies.plan import plan_study
from tests.assessment.conftest import items
from tests.cli.conftest import Run, World
from tests.cli.studies import small_study
from tests.recovery.conftest import done
from tests.sentences import Sentences

__all__ = ["items"]  # a fixture

WITH = (
    "cluster=inline data=file data.path={} data.part=all data.seq_len=16 data.samples=12 recovery.loss=tokens "
    "recovery.max_steps=2 recovery.max_tokens=48 recovery.checkpoint_steps=1 recovery.batch_size=4 "
    "recovery.micro_batch_size=4"
)


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray", "blank_report")
def test_a_study_recovers_its_masks_and_the_dense_model_once(
    run: Run,
    world: World,
    cwd: Path,
    items: Path,
    other_text: Path,
    assessed_by: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overrides = [
        *small_study(world, "searcher=[one_shot]", f"model={{tiny: model={world.model}}}", model=None),
        *("remove=2", *assessed_by, f"study.recover_with={WITH.format(other_text)}"),
        "study.recover.plain=recovery.method=lora",
    ]
    spec = build.study_spec(overrides)
    assert plan_study(spec).trainings == 2
    assert spec.recoveries["plain"].cluster.backend == "inline", "a cluster of its own wins over the study's"
    value = done(run, "study", *overrides)
    recovered = value["recovered"]
    assert [(entry["found_by"], entry["remove"]) for entry in recovered] == [(["dense"], 0), (["one_shot"], 2)]
    assert [entry["record"]["way"] for entry in recovered] == ["plain"] * 2
    control = next(entry["record"] for entry in recovered if entry["remove"] == 0)
    assert {control["settings"][key] for key in ("choices.data", "recovery.loss")} == {"file", "tokens"}
    (number,) = control["numbers"]
    assert number["dense"] == number["pruned"] != number["recovered"]
    report = Path(value["report"])
    page = report.read_text(encoding="utf-8")
    assert "What training gave back" in page
    assert "loss by tokens of training" in page
    costs = (report.parent / "tables/recovery_costs.csv").read_text().splitlines()
    assert len(costs) == 1 + len(recovered)
    assert "Tokens" in costs[0]
    models = [folder for folder in (cwd / "mlruns/recoveries").glob("*/*") if folder.name in ("pruned", "recovered")]
    assert models == [], "a study keeps no models"
    leftover = cwd / "mlruns/recoveries" / control["recovery_id"] / "recovered"
    leftover.mkdir()  # as a command does that is killed before it tidies up
    with monkeypatch.context() as patch:
        patch.setattr(recover, "_recover", pytest.fail)
        patch.setattr(write, "write_report", lambda results, out: [report])  # the same figures again
        assert done(run, "study", *overrides)["recovered"] == recovered
    assert not leftover.exists()
    monkeypatch.setattr(training, "make_trainer", pytest.fail)
    for entry in done(run, "study", *overrides, "assess.tasks=[piqa]", f"assess.data_dir={items}")["recovered"]:
        assert [number["metric"]["name"] for number in entry["record"]["numbers"]] == ["mine", "piqa"]


def test_rows_longer_than_the_model_takes_are_refused_before_any_search(
    run: Run, world: World, cwd: Path, sentences: Sentences
) -> None:
    with_long_rows = WITH.format(world.text).replace("max_tokens=48", "max_tokens=1024")
    overrides = [
        *small_study(world, "searcher=[one_shot]", f"model={{tiny: model={world.model}}}", model=None),
        *("remove=2", f"study.recover_with={with_long_rows}", "study.recover.plain=recovery.method=lora"),
    ]
    sentences.refused_command(run("study", *overrides))
    assert not (cwd / "mlruns/ledger.db").exists()
