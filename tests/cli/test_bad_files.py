"""Broken files are refused in one sentence: models, tokenizers, data and YAML."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run, World
from tests.cli.refusals import refuses, refuses_cleanly
from tests.sentences import Sentences

Spoil = Callable[[Path], object]


def config(**values: object) -> Spoil:
    """Return a function that changes values of a model's config."""

    def spoil(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return spoil


def write(name: str, content: str | bytes) -> Spoil:
    """Return a function that replaces a file of a model."""
    whole = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(whole)


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def dangle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("gone")


def index(*shards: object) -> Spoil:
    """Return a function that writes an index with these shards."""

    def spoil(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "one.safetensors")
        whole = {"metadata": {}, "weight_map": {str(number): shard for number, shard in enumerate(shards)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(whole))

    return spoil


def no_words(folder: Path) -> None:
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] = {}
    file.write_text(json.dumps(content))


def panic(folder: Path) -> None:
    file = folder / "tokenizer.json"
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "zz", "type_id": 0}}], "pair": []}
    content = json.loads(file.read_text()) | {"post_processor": template | {"special_tokens": {}}}
    file.write_text(json.dumps(content))


def no_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


MODELS: dict[str, Spoil] = {
    "truncated weights": truncate,
    "empty weights": write("model.safetensors", b""),
    "weights elsewhere": dangle,
    "missing shard": index("one.safetensors", "two.safetensors"),
    "shard that is a number": index(7),
    "index of something else": lambda folder: (index()(folder), write("model.safetensors.index.json", "[]")(folder)),
    "layers in words": config(num_hidden_layers="five"),
    "no kind": config(model_type=None),
    "unknown kind": config(model_type="nonesuch"),
    "own code": config(model_type="mine", auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}),
    "architectures that are a number": config(architectures=7),
    "unknown dtype": config(dtype="float99"),
    "unknown activation": config(hidden_act="nope"),
    "config that is a list": write("config.json", "[]"),
    "config in UTF-16": lambda folder: write("config.json", "{}".encode("utf-16"))(folder),
    "no tokenizer": no_tokenizer,
    "tokenizer without a vocabulary": no_words,
    "tokenizer that is a number": write("tokenizer.json", "7"),
    "tokenizer of bytes": write("tokenizer.json", b"\xff\xfe\x00"),
}

#: A searcher's YAML that cannot be used.
YAML = {
    "UTF-16": "type: beam\n".encode("utf-16"),
    "key twice": b"type: beam\nwidth: 2\nwidth: 3\n",
    "tag that runs": b"type: !!python/object/apply:os.system ['true']\n",
    "number alone": b"7\n",
    "reference to nothing": b"type: beam\nwidth: ${nope}\n",
    "key left open": b"type: beam\nwidth: ???\n",
    "in no section": b"# @package _global_\nremove: 2\n",
    "key that is a number": b"1: 2\ntype: beam\nwidth: 2\n",
    "infinity": b"type: beam\nwidth: .inf\n",
    "no type": b"width: 2\n",
    "list": b"- type\n",
    "unknown key": b"type: beam\ndepth: 2\n",
    "nest": b"type: {a: b}\n",
}


def test_broken_models_are_refused(
    run: Run, cwd: Path, world: World, tmp_path: Path, subtests: pytest.Subtests, sentences: Sentences
) -> None:
    for place, (wrong, spoil) in enumerate(MODELS.items()):
        folder = tmp_path / str(place) / "m"
        shutil.copytree(world.model, folder)
        spoil(folder)
        with subtests.test(wrong):
            refuses_cleanly(run, ["search", *world.search(model=folder)], sentences, wrong, cwd, folder.parent)


def test_weights_that_do_not_fit_show_when_they_are_read(
    run: Run, world: World, tmp_path: Path, sentences: Sentences
) -> None:
    spoiled = {"width": config(hidden_size=64), "tokenizer": panic, "layers": config(num_hidden_layers=7)}
    for name, spoil in spoiled.items():
        folder = tmp_path / name
        shutil.copytree(world.model, folder)
        spoil(folder)
        sentences.refused_command(run("search", *world.search(model=folder)), name)


def test_gguf_files_that_cannot_be(
    run: Run, cwd: Path, world: World, tmp_path: Path, subtests: pytest.Subtests, sentences: Sentences
) -> None:
    file = tmp_path / "models" / "m.gguf"
    file.parent.mkdir()
    endless = struct.pack("<4sIQQQcIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 0, 2**40)  # a list of so many bytes
    rubbish = b"GGUF" + b"\xff" * 60
    for wrong, content in {"empty": b"", "cut short": b"GGUF", "rubbish": rubbish, "endless": endless}.items():
        file.write_bytes(content)
        with subtests.test(wrong):
            arguments = ["search", *world.search(model=file)]
            refuses_cleanly(run, arguments, sentences, wrong, cwd, file.parent)


def test_data_that_is_no_file(
    run: Run, world: World, tmp_path: Path, subtests: pytest.Subtests, sentences: Sentences
) -> None:
    (tmp_path / "dangling.txt").symlink_to("gone")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    for kind in ("loop", "dangling", "pipe"):
        with subtests.test(kind):
            refuses(run("search", *world.search(data__path=tmp_path / f"{kind}.txt")), sentences, kind)


def test_yaml_that_cannot_be(
    run: Run, cwd: Path, world: World, tmp_path: Path, subtests: pytest.Subtests, sentences: Sentences
) -> None:
    file = tmp_path / "conf" / "searcher" / "mine.yaml"
    file.parent.mkdir(parents=True)
    for kind, content in YAML.items():
        file.write_bytes(content)
        with subtests.test(kind):
            arguments = ["search", *world.search(searcher="mine"), "--config-dir", tmp_path / "conf"]
            refuses_cleanly(run, arguments, sentences, kind, cwd, tmp_path / "conf")


@pytest.mark.parametrize("ending", ["txt", "jsonl", "json"])
def test_what_editors_add_does_no_harm(run: Run, world: World, tmp_path: Path, ending: str) -> None:
    text = world.text.read_text()
    rows = [{"text": line} for line in text.splitlines()]
    contents = {"txt": text, "jsonl": "\r\n".join(map(json.dumps, rows)), "json": json.dumps(rows)}
    losses = []
    for encoding in ("utf-8", "utf-8-sig"):
        file = tmp_path / f"a.{ending}"
        file.write_bytes(contents[ending].encode(encoding))
        yaml = tmp_path / "conf" / "searcher" / "mine.yaml"
        yaml.parent.mkdir(parents=True, exist_ok=True)
        yaml.write_bytes("type: one_shot\r\n".encode(encoding))
        arguments = world.search(data__path=file, searcher="mine", store=f"a store of {encoding} é")
        outcome = run("search", *arguments, "--config-dir", yaml.parents[1], "--json")
        assert outcome.code == 0, outcome.err
        losses.append(json.loads(outcome.out)["loss"])
    assert losses[0] == losses[1]


def test_a_tokenizer_without_special_tokens_will_do(run: Run, world: World, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(world.model, folder)
    file = folder / "tokenizer_config.json"
    settings = {key: value for key, value in json.loads(file.read_text()).items() if not key.endswith("_token")}
    file.write_text(json.dumps(settings))
    outcome = run("search", *world.search(model=folder, searcher="one_shot"))
    assert outcome.code == 0, outcome.err
