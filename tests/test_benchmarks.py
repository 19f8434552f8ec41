"""The benchmark of GPUs runs with torch and transformers alone; that of scaling holds what a search promises."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.documents

ROOT = Path(__file__).resolve().parents[1]


def needed(*names: str) -> set[str]:
    """Packages with all that they need, without their extras."""
    packages: set[str] = set()
    open_ = list(names)
    while open_:
        name = re.sub(r"[-_.]+", "-", open_.pop()).lower()
        try:
            wants = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        if name not in packages:
            packages.add(name)
            open_ += [match[0] for want in wants if "extra ==" not in want and (match := re.match(r"[\w.-]+", want))]
    return packages


def link(names: set[str], folder: Path) -> None:
    """A folder of links to these packages alone."""
    for name in names:
        for file in metadata.files(name) or ():
            top = file.parts[0]
            if top != ".." and not top.endswith(".pth") and not (folder / top).is_symlink():
                (folder / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))


def test_the_benchmark_of_gpus_needs_torch_and_transformers_alone(tmp_path: Path) -> None:
    installed, out = tmp_path / "installed", tmp_path / "out"
    installed.mkdir()
    scipy = {"scipy"}  # which screening needs; other parts do not
    link((needed("torch", "transformers") | scipy) - {"pydantic", "pydantic-core"}, installed)  # not all typers need it
    assert not (installed / "ray").exists()
    environment = {**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    script = [sys.executable, "-S", "experiments/benchmarks/gpu.py", "--device", "cpu", "--out", str(out)]
    done = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

    (file,) = out.glob("*.json")
    parts = json.loads(file.read_text())["parts"]
    assert parts["Walk and plain loop, bit for bit"]["masks with the same bits"] == "4 of 4"
    assert parts["CPU and this device, float32"]["largest relative difference"] == 0
    assert parts["CPU and this device, other work"]["margin of packed choices"] == 0
    assert parts["Several replicas"]["masks with the same bits"] == "4 of 4"
    assert parts["Several replicas"]["replicas"] == 2
    assert parts["One-shot"]["shards measured"] == "8 of 8"
    assert parts["One-shot, screening=confident"]["the unscreened mask"] is True
    assert 0 < parts["One-shot, screening=confident"]["share of the layer-forwards"] <= 1
    assert parts["Layer"]["attention without a mask tensor"]
    assert parts["Head"]["share of the peak"] > 0
    assert "model.fused_head=true" in parts["Head, model.fused_head"]["not here"]
    assert file.with_suffix(".txt").read_text().splitlines()[0] in done.stdout + file.read_text()


def test_a_search_of_few_shards_keeps_eight_replicas_busy() -> None:
    script = [sys.executable, "experiments/benchmarks/scaling.py", "--only", "demo", "--cores", "1,2,8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    table = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]
    assert [line[:4] for line in lines] == [["demo: SmolLM2, 8 x 128", "2", n, n] for n in ("1", "2", "8")]
    shares_of_ideal = [float(line[5]) for line in lines]
    assert all(share > bound for share, bound in zip(shares_of_ideal, (0.97, 0.95, 0.85), strict=True)), shares_of_ideal
    assert int(lines[1][7].partition("%")[0]) <= 5, "of a round is not used by both of two replicas"
