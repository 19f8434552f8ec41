"""A GGUF file is dequantised once: kept as safetensors, it is the same model to the bit."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gguf as library
import pytest
import torch
from transformers import PreTrainedModel

from raysearch.models import gguf as keeper
from raysearch.models.loading import describe, fingerprint, load_model, load_tokenizer, tokenizer_fingerprint
from raysearch.models.source import locate
from raysearch.models.spec import LocatedModel, ModelSpec


def model_of(file: Path, cache: Path | None, dtype: str = "float32") -> LocatedModel:
    return locate(ModelSpec("tiny", str(file), dtype, device="cpu", cache=cache))


def same(one: PreTrainedModel, other: PreTrainedModel) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def read_by_another(file: Path, cache: Path) -> float:
    return float(sum(each.double().abs().sum() for each in load_model(model_of(file, cache)).state_dict().values()))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The GGUF files that are read, one for each time."""
    files: list[Path] = []

    class Reader(library.GGUFReader):
        def __init__(self, path: Any, *rest: Any) -> None:
            files.append(Path(path))
            super().__init__(path, *rest)

    monkeypatch.setattr(library, "GGUFReader", Reader)
    return files


def test_a_file_is_read_once_and_is_the_same_then(gguf: Path, tmp_path: Path, reads: list[Path]) -> None:
    plain, model = model_of(gguf, None), model_of(gguf, tmp_path / "converted")
    dense, tokenizer = load_model(plain), load_tokenizer(plain)
    assert same(load_model(model), dense)
    reads.clear()
    again = load_model(model)
    written = {"_name_or_path": "", "architectures": None}  # by every save_pretrained
    assert same(again, dense) and again.config.to_dict() | written == dense.config.to_dict() | written
    assert tokenizer_fingerprint(load_tokenizer(model)) == tokenizer_fingerprint(tokenizer)
    assert fingerprint(model) == fingerprint(plain)
    sizes = [
        vars(describe(ModelSpec("tiny", str(gguf), "float32", "cpu", cache=cache))) for cache in (None, model.cache)
    ]
    assert sizes[0] | {"model": None} == sizes[1] | {"model": None}
    assert len(reads) == 1, "describe without a cache alone reads the file"


def test_each_dtype_and_each_content_is_kept_by_itself(gguf: Path, tmp_path: Path) -> None:
    cache, other = tmp_path / "converted", tmp_path / "other.gguf"
    other.write_bytes(gguf.read_bytes() + b"\0")
    for model in (model_of(gguf, cache), model_of(gguf, cache, "bfloat16"), model_of(other, cache)):
        assert load_model(model).dtype == load_model(model).dtype == getattr(torch, model.dtype)
    assert len(list(cache.glob("*/model.safetensors"))) == 3


def test_a_damaged_file_is_made_anew(gguf: Path, tmp_path: Path) -> None:
    model = model_of(gguf, tmp_path)
    dense = load_model(model)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (file,) = tmp_path.glob(f"*/{name}")
        content = file.read_bytes()
        for damaged in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            assert same(load_model(model), dense)
            assert file.read_bytes() == content


def test_what_a_killed_process_left_is_not_used(gguf: Path, tmp_path: Path) -> None:
    model = model_of(gguf, tmp_path)
    dense = load_model(model)
    (folder,) = (file.parent for file in tmp_path.glob("*/config.json"))
    (folder / "checksums.json").unlink()
    unfinished = folder.rename(folder.with_name(f"{folder.name}.unfinished"))
    (unfinished / "model.safetensors").write_bytes(b"half")
    assert keeper.kept(model) is None
    assert same(load_model(model), dense)
    assert keeper.kept(model, weights=True) == folder and not unfinished.exists()


def test_two_processes_at_once_read_the_same(gguf: Path, tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        sums = list(processes.map(read_by_another, [gguf] * 2, [tmp_path] * 2))
    assert sums[0] == sums[1]
    assert keeper.kept(model_of(gguf, tmp_path), weights=True) is not None


def test_the_last_used_stay(gguf: Path, tmp_path: Path) -> None:
    models = []
    for number in range(keeper.MOST + 1):
        file = tmp_path / f"{number}.gguf"
        file.write_bytes(gguf.read_bytes() + bytes(number))
        models.append(model_of(file, tmp_path / "converted"))
        load_model(models[-1])
        load_model(models[0])
    there = [keeper.kept(model) is not None for model in models]
    assert sum(there) == keeper.MOST and there[0] and not there[1]


def test_where_nothing_can_be_kept_the_file_is_read(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "converted").write_text("a file")
    with pytest.warns(UserWarning, match="is not kept as safetensors"):
        assert load_model(model_of(gguf, tmp_path / "converted")).dtype == torch.float32
