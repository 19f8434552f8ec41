"""Recovery as a stage of a study: each mask in each way, the dense model as a control, and a report of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysearch.config import build
from raysearch.recovery import recover, training
from raysearch.study.plan import plan_study
from tests.assessment.conftest import items
from tests.cli.conftest import Run, World, here, run, world
from tests.cli.studies import small_study

__all__ = ["here", "items", "run", "world"]  # fixtures

pytest.importorskip("trl")

WITH = (
    "cluster=inline data=file data.path={} data.part=all data.seq_len=16 data.samples=12 recovery.loss=tokens "
    "recovery.max_steps=2 recovery.max_tokens=48 recovery.checkpoint_steps=1 recovery.batch_size=4 "
    "recovery.micro_batch_size=4"
)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers for it
@pytest.mark.slow
def test_a_study_recovers_its_masks_and_the_dense_model_once(
    run: Run, world: World, here: Path, items: Path, one_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = here / "other.txt"
    other.write_text(" ".join(reversed(world.text.read_text().split())))
    text = f"assess.texts.mine=data=file data.path={world.text} data.samples=all data.sampling=sequential"
    words = [
        *small_study(world, "searcher=[one_shot]", f"model={{tiny: model={world.model}}}", model=None),
        *("remove=2", "assess=none", text, "assess.seq_len=16", "assess.limit=4"),
        f"study.recover_with={WITH.format(other)}",
        "study.recover.plain=recovery.method=lora",
    ]
    spec = build.study_spec(words)
    assert plan_study(spec).trainings == 2
    assert spec.recoveries["plain"].cluster.backend == "inline", "a cluster of its own wins over the study's"
    done = run("study", *words, "--json")
    assert done.code == 0, done.err
    value = json.loads(done.out)
    recovered = value["recovered"]
    assert [(one["found_by"], one["remove"]) for one in recovered] == [(["dense"], 0), (["one_shot"], 2)]
    assert [one["record"]["way"] for one in recovered] == ["plain"] * 2
    control = next(one["record"] for one in recovered if one["remove"] == 0)
    (number,) = control["numbers"]
    assert number["dense"] == number["pruned"] != number["recovered"]
    report = Path(value["report"])
    page = report.read_text(encoding="utf-8")
    assert "What training gave back" in page and "loss by tokens of training" in page
    costs = (report.parent / "tables/recovery_costs.csv").read_text().splitlines()
    assert len(costs) == 1 + len(recovered) and "Tokens" in costs[0]
    kept = [folder for folder in (here / "mlruns/recoveries").glob("*/*") if folder.name in ("pruned", "recovered")]
    assert kept == [], "a study keeps no models"
    left = here / "mlruns/recoveries" / control["recovery_id"] / "recovered"
    left.mkdir()  # as a command does that is killed before it tidies up
    with monkeypatch.context() as patch:
        patch.setattr(recover, "_recover", pytest.fail)
        again = run("study", *words, "--json")
    assert again.code == 0, again.err
    assert not left.exists()
    assert json.loads(again.out)["recovered"] == recovered
    monkeypatch.setattr(training, "make_trainer", pytest.fail)
    more = run("study", *words, "assess.tasks=[piqa]", f"assess.data_dir={items}", "--json")
    assert more.code == 0, more.err
    for one in json.loads(more.out)["recovered"]:
        assert [number["metric"]["name"] for number in one["record"]["numbers"]] == ["mine", "piqa"]


def test_rows_longer_than_the_model_takes_are_refused_before_any_search(run: Run, world: World, here: Path) -> None:
    with_long_rows = WITH.format(world.text).replace("max_tokens=48", "max_tokens=1024")
    words = [
        *small_study(world, "searcher=[one_shot]", f"model={{tiny: model={world.model}}}", model=None),
        *("remove=2", f"study.recover_with={with_long_rows}", "study.recover.plain=recovery.method=lora"),
    ]
    refused = run("study", *words)
    assert refused.code == 2 and "recovery.max_tokens=1024 is longer than the 64 positions of the model" in refused.err
    assert not (here / "mlruns/ledger.db").exists()
