"""What llama.cpp would run in place of a pruned checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from raysearch.checkpoints.llama_cpp import misread_by_llama_cpp
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from tests.models.families import FAMILIES, N_LAYERS


def misread(folder: Path, mask: Mask, n_layers: int) -> str | None:
    return misread_by_llama_cpp(folder, mask, Sites.of_equal_layers(n_layers))


def test_properties_that_llama_cpp_derives_from_places(tmp_path: Path) -> None:
    windows = "derives which layers attend to a window only from their places, which have changed"
    cases = [("llama", Mask.of(1), None), ("gemma2", Mask.of(0, 1), None), ("gemma2", Mask.of(2), windows)]
    cases += [("gpt_oss", Mask.of(0), windows), ("gemma3", Mask.of(1), None), ("gemma4_text", Mask.of(1), None)]
    cases += [("olmo2", Mask.of(1), None), ("exaone4", Mask.of(3), None)]
    for family, mask, expected in cases:
        FAMILIES[family]().save_pretrained(tmp_path / family)
        assert misread(tmp_path / family, mask, N_LAYERS) == expected, (family, mask)
    wording = "computes a gemma2 of 46 layers differently from one of 4"
    assert misread(tmp_path / "gemma2", Mask.of(*range(4, 46)), 46) == wording
    (lite := tmp_path / "lite").mkdir()
    (lite / "config.json").write_text(json.dumps({"model_type": "deepseek_v2"}))
    assert misread(lite, Mask.of(5), 27) is None, "DeepSeek-V2-Lite is computed in the same way with 26 layers"
    assert misread(lite, Mask.of(5, 6), 27)
    assert misread(lite, Mask.of(5, 6, 7), 30)
