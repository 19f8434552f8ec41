"""Secrets in every option, variable and name of a file are in nothing that any command prints or writes."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.cli.conftest import Run, World, run_separately

pytestmark = [pytest.mark.slow, pytest.mark.faults]

_MARK = b"Zq9Planted"  # in every part of every secret
_NUMBERS = itertools.count(10**12)


def _planted(*between: str) -> str:
    """A new secret, with these characters between its parts."""
    parts = [f"{_MARK.decode()}{next(_NUMBERS)}" for _ in range(len(between) + 1)]
    return parts[0] + "".join(sign + part for sign, part in zip(between, parts[1:], strict=True))


def _leaks(folder: Path) -> list[str]:
    """What stands around every secret in the files of a folder."""
    return [
        f"{file.relative_to(folder)}: {content[max(0, match.start() - 60) : match.end()]!r}"
        for file in folder.rglob("*")
        if file.is_file() and not file.is_symlink()
        for content in [file.read_bytes()]
        for match in re.finditer(_MARK, content)
    ]


def test_no_secret_is_in_what_commands_print_or_write(
    run: Run, world: World, cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_PASSWORD", "TEAM_TOKEN", "OPENAI_API_KEY", "PGPASSWORD"):
        monkeypatch.setenv(name, _planted())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", _planted("/", "+"))
    monkeypatch.setenv("HF_TOKEN", f"hf_{_planted()}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://u:{_planted(chr(39), '/')}@127.0.0.1:9")
    monkeypatch.setenv("SAS_URL", f"https://x.blob.core.windows.net/c?sig={_planted('%2B')}&se=2")
    prose = tmp_path / "prose"
    prose.mkdir()
    shutil.copy(world.text, prose / f"prose-glpat-{_planted()}.txt")  # the name of a file that no override names
    calibration = ["data=file", f"data.path={prose}", "data.samples=8", "data.seq_len=16"]
    plain = [f"model={world.model}", *calibration, "cluster=inline"]
    search = ["search", *plain, "remove=2", "searcher=one_shot"]
    text = f"data=file data.path={prose} data.samples=4 data.sampling=sequential"
    texts = ["assess=none", f"assess.texts.own='{text}'", "assess.seq_len=16", "assess.probe.enabled=false"]
    recovery = ["recovery.responses=data", "recovery.max_tokens=48", "recovery.max_steps=2", "recovery.top_k=8"]
    axes = ["study.grid.searcher=[one_shot]", "study.grid.remove=[2]"]
    study = ["study", *plain[:-1], *axes]
    model = tmp_path / f"hf_{_planted()}" / "model"
    shutil.copytree(world.model, model)
    inputs = tmp_path / "inputs"
    searcher = f"hf_{_planted()}"
    (inputs / "searcher").mkdir(parents=True)
    (inputs / "searcher" / f"{searcher}.yaml").write_text("type: one_shot\n")
    (inputs / "searcher" / "mine.yaml").write_text(f"type: hf_{_planted()}\n")
    printed = []
    for expected, arguments in (
        (2, [*search, f"model={model}"]),
        (2, [*search, f"searcher={searcher}", "--config-dir", inputs]),
        (2, [*search, "searcher=mine", "--config-dir", inputs]),
        (2, [*search, f"data.path=hf_{_planted()}"]),
        (2, [*search, f"tracking.experiment=glpat-{_planted()}"]),
        (2, [*search, f"tracking.uri=//u:{_planted(chr(39))}@host"]),
        (2, [*search, f"tracking.uri=https://127.0.0.1:9/x?sv=1&sig={_planted('%2B')}&se=3"]),
        (2, [*search, f"tracking.uri=htp://u:{_planted('$', '/', '@')}@host"]),
        (2, [*search, f"tracking.url={_planted()}", f"data.path=hf_{_planted()}"]),
        (2, [*search, "cluster=elastic", f"cluster.address=ray://u:{_planted('/')}@127.0.0.1:9"]),
        (2, ["config", *search[1:], f"tracking.uri=http://u:{_planted(chr(39), '/')}@h/p"]),
        (2, [*study, f"study.name=glpat-{_planted()}"]),
        (2, [*study, f"study.grid.calibration={{'a hf_{_planted()}': data.seed=1}}"]),
        (0, [*search, "tracking.uri=http://u@127.0.0.1:9"]),  # the same address with its password is in the environment
        (0, ["config", *search[1:]]),
        (0, ["score", *plain, "masks=[[1]]", "--json"]),
        (0, ["data", *plain]),
        (0, ["sweep", *plain, "--also", "objective=kl", "--out", "sweep"]),
        (0, search),
        (0, ["show", "latest", "--json"]),
        (2, ["show", "latest", "--gap"]),
        (0, ["recommend", "latest", "budget.loss=9"]),
        (0, ["export", "latest", "--out", "pruned", "--prompt", f"the hf_{_planted()} of"]),
        (2, ["export", "latest", "--out", "pushed", "--push", f"me/hf_{_planted()}"]),
        (0, ["assess", "latest", *texts]),
        (2, ["assess", "latest", "assess=none", f"assess.texts.hf_{_planted()}='{text}'"]),
        (2, ["assess", "latest", *texts, f"assess.server=http://u:{_planted('.')}@127.0.0.1:9/v1"]),
        (2, ["assess", "latest", *texts, f"assess.server=http://127.0.0.1:9/v1?api_key={_planted()}"]),
        (0, ["recover", "latest", *calibration, *texts, *recovery, "--dry-run"]),
        (0, ["resume", "latest"]),
        (2, ["resume", "latest", f"tracking.uri=http://u:{_planted(' ')}@127.0.0.1:9"]),
        (0, ["sync", "latest"]),
        (2, ["sync", "latest", "tracking.uri=http://u@127.0.0.1:9"]),
        (2, ["sync", "latest", f"tracking.uri=mssql+pyodbc:///?odbc_connect={quote('PWD=' + _planted(';', '/'))}"]),
        (2, ["ui", "--uri", f"mssql+pyodbc:///?odbc_connect={quote('PWD={' + _planted(';', '}}') + '};UID=u')}"]),
        (0, ["ledger", "check", "--json"]),
        (0, ["ledger", "export", "--out", "tables"]),
        (0, ["ledger", "clean", "latest"]),
    ):
        done = run(*arguments)
        assert done.code == expected, (arguments, done)
        printed.append((arguments[0], done.out + done.err))
    for arguments in (
        [*study, "study.grid.calibration={a: data.seed=1}", *texts[1:], "cluster.replicas=1"],
        ["report", "latest"],
    ):
        done = run_separately(*arguments)
        assert done.code == 0, done
        printed.append((arguments[0], done.out + done.err))
    assert not [(name, text) for name, text in printed if _MARK.decode() in text]
    assert len(list(cwd.rglob("*"))) > 60, "reports, artifacts, tables, a sweep and an export"
    assert json.loads((cwd / "pruned" / "raysearch.json").read_text())["mask"]
    assert not _leaks(cwd)
