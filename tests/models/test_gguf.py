"""A GGUF file is dequantised once. Its copy as safetensors is the same model, bit for bit."""

from __future__ import annotations

import errno
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gguf as library
import pytest
import torch
from transformers import PreTrainedModel

from raysearch.checkpoints.gguf_reader import read_fast
from raysearch.errors import UserError
from raysearch.models.description import describe
from raysearch.models.file_cache import FileCache
from raysearch.models.gguf import MAX_COPIES, is_whole
from raysearch.models.loading import fingerprint, load_model, load_tokenizer, tokenizer_fingerprint
from raysearch.models.source import locate
from raysearch.models.spec import LocatedModel, ModelSpec, label_of
from tests.models.conftest import split, write_llama
from tests.sentences import Sentences


def spec(file: Path, cache: Path | None, dtype: str = "float32") -> ModelSpec:
    return ModelSpec("tiny", str(file), dtype, device="cpu", cache=cache)


def model_of(file: Path, cache: Path | None, dtype: str = "float32") -> LocatedModel:
    return locate(spec(file, cache, dtype))


def same(model: PreTrainedModel, reference: PreTrainedModel) -> bool:
    weights = model.state_dict()
    expected = reference.state_dict()
    return weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in weights)


def test_fast_reading_gives_the_same_values(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "kinds": ["a", "", "ö"],
        "numbers": [1, -2],
        "flags": [True, False],
        "nested": [[1, 2], [3]],
        "one": 7,
    }
    with pytest.MonkeyPatch.context() as patch:
        for order in library.GGUFEndian:
            writer = partial(library.GGUFWriter, endianess=order)
            patch.setattr(library, "GGUFWriter", writer)
            file = write_llama(tmp_path / f"{order.name}.gguf", **more)
    for file in tmp_path.iterdir():
        plain = library.GGUFReader(file)
        with read_fast():
            fast = library.GGUFReader(file)
        for name, field in plain.fields.items():
            assert (fast.fields[name].types, fast.fields[name].data) == (field.types, field.data), name
            for fast_part, part in zip(fast.fields[name].parts, field.parts, strict=True):
                assert fast_part.dtype == part.dtype, name
                assert fast_part.tolist() == part.tolist(), name


def sum_of_weights(file: Path, cache: Path) -> float:
    return float(sum(each.double().abs().sum() for each in load_model(model_of(file, cache)).state_dict().values()))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The GGUF files that are read, once for each reading."""
    files: list[Path] = []

    class Reader(library.GGUFReader):
        def __init__(self, path: Any, *arguments: Any) -> None:
            files.append(Path(path))
            super().__init__(path, *arguments)

    monkeypatch.setattr(library, "GGUFReader", Reader)
    return files


def test_a_file_is_read_once_and_its_copy_is_the_same_model(gguf: Path, tmp_path: Path, reads: list[Path]) -> None:
    plain = model_of(gguf, None)
    cache = tmp_path / "converted"
    dense = load_model(plain)
    tokenizer = load_tokenizer(plain)
    sizes = describe(spec(gguf, None))
    waiting = model_of(gguf, cache)
    assert same(load_model(model_of(gguf, cache)), dense)
    reads.clear()
    assert same(load_model(waiting), dense), "the copy of the other call is read"
    located_copy = model_of(gguf, cache)
    copy = load_model(located_copy)
    changed_by_saving = {"_name_or_path": "", "architectures": None}
    assert same(copy, dense)
    assert copy.config.to_dict() | changed_by_saving == dense.config.to_dict() | changed_by_saving
    for model in (dense, copy):
        assert model.generation_config is not None
        assert model.generation_config.eos_token_id == dense.config.eos_token_id
    assert tokenizer_fingerprint(load_tokenizer(located_copy)) == tokenizer_fingerprint(tokenizer)
    assert fingerprint(located_copy) == fingerprint(plain)
    assert replace(describe(spec(gguf, cache)), model=plain) == replace(sizes, model=plain)
    assert not reads


def test_each_part_names_the_model_of_all_parts(tmp_path: Path, sentences: Sentences) -> None:
    whole = write_llama(tmp_path / "tiny.gguf")
    parts = split(whole, small_first_part=True)
    dense = load_model(model_of(whole, None))
    tokenizer = tokenizer_fingerprint(load_tokenizer(model_of(whole, None)))
    sizes = describe(spec(whole, None))
    for part in parts:
        model = model_of(part, tmp_path / "cache")
        assert same(load_model(model), dense)
        assert tokenizer_fingerprint(load_tokenizer(model_of(part, None))) == tokenizer
        assert replace(describe(spec(part, None)), model=sizes.model) == sizes
        assert fingerprint(model) == fingerprint(model_of(parts[0], None))
        assert label_of(str(part), str(part)) == "tiny"
    assert len(list((tmp_path / "cache").glob("*/model.safetensors"))) == 1
    parts[2].unlink()
    for part in parts[1:]:
        with sentences.refused(UserError):
            model_of(part, None)
    for part in (parts[0], parts[1], parts[3]):
        part.unlink()
    with sentences.refused(UserError):
        model_of(parts[1], None)


def test_each_dtype_and_each_content_has_its_copy(gguf: Path, tmp_path: Path) -> None:
    cache = tmp_path / "converted"
    other_file = tmp_path / "other.gguf"
    other_file.write_bytes(gguf.read_bytes() + b"\0")
    for file, dtype in ((gguf, "float32"), (gguf, "bfloat16"), (other_file, "float32")):
        for _ in range(2):
            assert load_model(model_of(file, cache, dtype)).dtype == getattr(torch, dtype)
    assert len(list(cache.glob("*/model.safetensors"))) == 3


def test_a_damaged_copy_is_replaced(gguf: Path, tmp_path: Path) -> None:
    dense = load_model(model_of(gguf, tmp_path))
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (file,) = tmp_path.glob(f"*/{name}")
        content = file.read_bytes()
        for damaged in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            assert same(load_model(model_of(gguf, tmp_path)), dense)
            assert file.read_bytes() == content


def test_an_incomplete_copy_of_a_killed_process_is_not_used(gguf: Path, tmp_path: Path) -> None:
    dense = load_model(model_of(gguf, tmp_path))
    (folder,) = (file.parent for file in tmp_path.glob("*/config.json"))
    (folder / "checksums.json").unlink()
    unfinished = folder.rename(folder.with_name(f"{folder.name}.unfinished"))
    (unfinished / "model.safetensors").write_bytes(b"half")
    assert same(load_model(model_of(gguf, tmp_path)), dense)
    assert is_whole(folder, FileCache(None))
    assert not unfinished.exists()


def test_two_processes_read_the_same_model_at_once(gguf: Path, tmp_path: Path) -> None:
    context = get_context("forkserver")  # imports torch and transformers once for both processes
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(2, context) as processes:
        sums = list(processes.map(sum_of_weights, [gguf] * 2, [tmp_path] * 2))
    assert sums[0] == sums[1]
    assert model_of(gguf, tmp_path).gguf is None, "there is a copy"


def test_the_last_used_copies_stay(gguf: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.gguf" for number in range(MAX_COPIES + 1)]
    for number, file in enumerate(files):
        file.write_bytes(gguf.read_bytes() + bytes(number))
        load_model(model_of(file, tmp_path))
        load_model(model_of(files[0], tmp_path))
    has_copy = [model_of(file, tmp_path).gguf is None for file in files]
    assert sum(has_copy) == MAX_COPIES
    assert has_copy[0]
    assert not has_copy[1]


def test_the_file_is_read_if_no_copy_can_be_written(
    gguf: Path, tmp_path: Path, monkeypatch: Any, sentences: Sentences
) -> None:
    (tmp_path / "converted").write_text("a file")
    with pytest.warns(UserWarning) as caught:
        assert load_model(model_of(gguf, tmp_path / "converted")).dtype == torch.float32
    sentences.check(str(caught[0].message))

    def full(file: Path) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    # The digests are computed last, after the model was written.
    monkeypatch.setattr("raysearch.models.gguf.sha256", full)
    with pytest.warns(UserWarning) as caught:
        assert load_model(model_of(gguf, tmp_path / "full")).dtype == torch.float32
    sentences.check(str(caught[0].message))
    assert [file.name for file in (tmp_path / "full").iterdir()] == [".lock"]
