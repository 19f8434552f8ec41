"""vLLM and MLX run checkpoints of masks with halves, and generate the tokens of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysearch.core.mask import Mask
from raysearch.models.spec import ModelSpec
from tests.runtimes.environments import by_python
from tests.runtimes.models import SMOLLM2, WIDTHS, TinyModel, by_transformers, export, write_model

pytestmark = [pytest.mark.runtimes, pytest.mark.slow]

#: A pair, attentions, and both halves of different layers.
MASKS = [Mask.of("16m", "17a", 24), Mask.of("17a", "21a", 23), Mask.of("3m", "17a", "20m")]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, list[int]]:
    """The tokens of transformers for exports of SmolLM2 and of a tiny Qwen 2, by folder."""
    root = tmp_path_factory.mktemp("halves")
    folder = write_model(root / "qwen2", "qwen2", TinyModel({**WIDTHS, "intermediate_size": 256}))
    qwen2 = ModelSpec("qwen2", str(folder), dtype="float32")
    folders = [export(SMOLLM2, mask, root / f"smollm2-{number}") for number, mask in enumerate(MASKS)]
    folders.append(export(qwen2, Mask.of("2a", "5m"), root / "qwen2-halves"))
    tokens = {folder: by_transformers(folder) for folder in folders}
    assert all(len(set(values)) > 1 for values in tokens.values())
    return tokens


def test_vllm_runs_layers_without_a_half(expected: dict[Path, list[int]]) -> None:
    assert by_python("vllm", list(expected)) == expected
    assert all("`vllm serve" in (folder / "README.md").read_text("utf-8") for folder in expected)


def test_mlx_runs_layers_without_a_half(expected: dict[Path, list[int]]) -> None:
    """It has no attentions with the biases of Qwen 2, and the card says so."""
    (qwen2,) = [folder for folder in expected if folder.name.startswith("qwen2")]
    folders = [folder for folder in expected if folder != qwen2]
    assert by_python("mlx", folders) == {folder: expected[folder] for folder in folders}
    assert all("`mlx_lm.generate" in (folder / "README.md").read_text("utf-8") for folder in folders)
    assert isinstance(by_python("mlx", [qwen2])[qwen2], str)
    assert "`mlx_lm.generate" not in (qwen2 / "README.md").read_text("utf-8")


def test_vllm_needs_an_attention_in_the_first_layer_and_the_card_says_so(tmp_path: Path) -> None:
    folder = export(SMOLLM2, Mask.of("0a"), tmp_path / "pruned")
    assert isinstance(by_python("vllm", [folder])[folder], str)
    assert "`vllm serve" not in (folder / "README.md").read_text("utf-8")
