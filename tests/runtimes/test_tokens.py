"""The real runtimes load exported checkpoints, and generate the tokens that transformers generates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import pytest

from raysearch.checkpoints.gguf_pruning import prune_gguf
from raysearch.checkpoints.runtimes import readings
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.models.description import describe
from raysearch.models.spec import ModelSpec
from tests.runtimes.environments import by_python, convert
from tests.runtimes.llama_cpp_tokens import llama_cpp_tokens
from tests.runtimes.models import (
    MODELS,
    N_TOKENS,
    PROMPT,
    RUNTIMES,
    SMOLLM2,
    SMOLLM2_MASK,
    by_transformers,
    export,
    write_model,
)

pytestmark = [pytest.mark.runtimes, pytest.mark.slow]

#: Masks of models with windows that move layers, of which a runtime derives the kind from the place.
FLIPPED = {"gpt_oss": Mask.of(1), "gemma3_text": Mask.of(0)}


@dataclass(frozen=True)
class Checkpoints:
    """The exported checkpoints of all models, and the tokens of transformers.

    Args:
        sources: The dense models as they were before the export, by kind.
        expected: The tokens of transformers, by folder. The name of a folder is ``KIND-dense``, ``KIND-pruned`` or
            ``KIND-flipped``.
    """

    sources: dict[str, Path]
    expected: dict[Path, list[int]]

    def folder(self, name: str) -> Path:
        """Return the checkpoint of a name."""
        (folder,) = [folder for folder in self.expected if folder.name == name]
        return folder

    def folders(self, runtime: str) -> list[Path]:
        """Return the folders of the models that a runtime runs as transformers does, unless windows are flipped."""
        return [folder for folder in self.expected if runtime in _runtimes(folder)]


def _runtimes(folder: Path) -> tuple[str, ...]:
    """Return the runtimes that run a checkpoint as transformers does, unless windows are flipped."""
    kind, _ = folder.name.split("-")
    return MODELS[kind].runtimes if kind in MODELS else RUNTIMES


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    root = tmp_path_factory.mktemp("checkpoints")
    sources, expected = {}, {}
    models = [("smollm2", SMOLLM2, {"dense": Mask(), "pruned": SMOLLM2_MASK})]
    for kind, model in MODELS.items():
        sources[kind] = write_model(root / kind, kind)
        masks = {"dense": Mask(), "pruned": Mask.of(*model.removed)}
        masks |= {"flipped": FLIPPED[kind]} if kind in FLIPPED else {}
        models.append((kind, ModelSpec(kind, str(sources[kind]), dtype="float32"), masks))
    for kind, spec, masks in models:
        for variant, mask in masks.items():
            folder = export(spec, mask, root / f"{kind}-{variant}")
            expected[folder] = by_transformers(folder)
            assert len(set(expected[folder])) > 1, folder.name
        assert expected[root / f"{kind}-dense"] != expected[root / f"{kind}-pruned"], kind
    return Checkpoints(sources, expected)


@pytest.fixture(scope="module")
def vllm_tokens_of(checkpoints: Checkpoints) -> dict[Path, list[int] | str]:
    return by_python("vllm", checkpoints.folders("vllm"))


@pytest.fixture(scope="module")
def mlx_tokens_of(checkpoints: Checkpoints) -> dict[Path, list[int] | str]:
    return by_python("mlx", checkpoints.folders("mlx"))


@pytest.fixture(scope="module")
def llama_cpp_tokens_of(checkpoints: Checkpoints) -> dict[Path, list[int] | str]:
    tokens: dict[Path, list[int] | str] = {}
    for folder in checkpoints.folders("llama_cpp"):
        file = convert(folder, folder.with_suffix(".gguf"))
        tokens[folder] = llama_cpp_tokens(file, PROMPT, N_TOKENS)
    return tokens


def assert_runs_all(runtime: str, checkpoints: Checkpoints, tokens: dict[Path, list[int] | str]) -> None:
    """Assert that a runtime gives the tokens of transformers for all models whose windows are not flipped.

    Args:
        runtime: The name of the runtime.
        checkpoints: The checkpoints.
        tokens: The runtime's tokens by folder.
    """
    folders = [folder for folder in checkpoints.folders(runtime) if not folder.name.endswith("-flipped")]
    assert len({folder.name.split("-")[0] for folder in folders}) >= 6
    others = {folder.name: (tokens[folder], checkpoints.expected[folder]) for folder in folders}
    assert not {name: pair for name, pair in others.items() if pair[0] != pair[1]}


def test_vllm_generates_the_tokens_of_transformers(
    checkpoints: Checkpoints, vllm_tokens_of: dict[Path, list[int] | str]
) -> None:
    assert_runs_all("vllm", checkpoints, vllm_tokens_of)


def test_llama_cpp_generates_the_tokens_of_transformers_after_the_conversion(
    checkpoints: Checkpoints, llama_cpp_tokens_of: dict[Path, list[int] | str]
) -> None:
    assert_runs_all("llama_cpp", checkpoints, llama_cpp_tokens_of)
    for kind, n_heads in (("glm4_moe", 1), ("qwen3_5_text", 1), ("deepseek_v3", 0)):
        fields = gguf.GGUFReader(checkpoints.folder(f"{kind}-pruned").with_suffix(".gguf")).fields
        counts = [field.contents() for name, field in fields.items() if name.endswith("nextn_predict_layers")]
        assert sum(counts) == n_heads, "the heads for further tokens are in the file, except for DeepSeek"


def test_mlx_generates_the_tokens_of_transformers(
    checkpoints: Checkpoints, mlx_tokens_of: dict[Path, list[int] | str]
) -> None:
    assert_runs_all("mlx", checkpoints, mlx_tokens_of)


def flipped_folder(checkpoints: Checkpoints, kind: str) -> Path:
    """Return the checkpoint of a model whose windows are flipped.

    Args:
        checkpoints: The checkpoints.
        kind: The name of the model.
    """
    (folder,) = [folder for folder in checkpoints.expected if folder.name == f"{kind}-flipped"]
    return folder


def fits(runtime: str, kind: str, folder: Path, mask: Mask) -> bool:
    """Return whether a runtime's rules say that it runs a pruned checkpoint as it is.

    Args:
        runtime: The name of the runtime in a config.
        kind: The name of the model.
        folder: The pruned checkpoint.
        mask: The removed layers.
    """
    sites = Sites.of_equal_layers(MODELS[kind].settings["num_hidden_layers"])
    (reading,) = [reading for reading in readings(folder, mask, sites) if reading.runtime == runtime]
    return reading.fits


@pytest.mark.parametrize(
    ("runtime", "kind", "command"),
    [
        ("vllm", "gpt_oss", "vllm serve"),
        ("llama.cpp", "gpt_oss", "llama-cli"),
        ("llama.cpp", "gemma3_text", "llama-cli"),
        ("mlx", "gemma3_text", "mlx_lm.generate"),
    ],
)
def test_a_runtime_runs_another_model_if_windows_are_flipped_and_the_card_says_so(
    runtime: str, kind: str, command: str, checkpoints: Checkpoints, request: pytest.FixtureRequest
) -> None:
    folder = checkpoints.folder(f"{kind}-flipped")
    tokens = request.getfixturevalue(f"{runtime.replace('.', '_')}_tokens_of")[folder]
    assert isinstance(tokens, list), tokens
    assert tokens != checkpoints.expected[folder]
    assert not fits(runtime, kind, folder, FLIPPED[kind])
    assert command not in (folder / "README.md").read_text("utf-8")
    pruned = checkpoints.folder(f"{kind}-pruned")
    assert fits(runtime, kind, pruned, Mask.of(*MODELS[kind].removed))
    assert command in (pruned / "README.md").read_text("utf-8")


def test_vllm_reads_the_list_of_windows_of_gemma(
    checkpoints: Checkpoints, vllm_tokens_of: dict[Path, list[int] | str]
) -> None:
    folder = checkpoints.folder("gemma3_text-flipped")
    assert vllm_tokens_of[folder] == checkpoints.expected[folder]
    assert "vllm serve" in (folder / "README.md").read_text("utf-8")


@pytest.mark.parametrize("kind", FLIPPED)
def test_llama_cpp_runs_the_same_mask_of_a_gguf_file_that_raysearch_prunes(
    kind: str, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """The pruned file lists the windows, which a converted one does not."""
    source = checkpoints.sources[kind]
    dense = convert(source, tmp_path / "dense.gguf")
    sizes = describe(ModelSpec(kind, str(source))).sizes
    pruned = prune_gguf(dense, FLIPPED[kind], tmp_path / "pruned.gguf", sizes=sizes, search_id="greedy-m1")
    expected = checkpoints.expected[checkpoints.folder(f"{kind}-flipped")]
    assert llama_cpp_tokens(pruned.out, PROMPT, N_TOKENS) == expected
