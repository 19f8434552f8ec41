"""The model card and the recipes of an exported checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import transformers
import yaml

from raysearch.checkpoints.card import Evidence, Pruned, gguf_card, mergekit_yaml, model_card, verified_text
from raysearch.checkpoints.gguf_pruning import GGUFExport
from raysearch.checkpoints.runtimes import LLAMA_CPP, MLX, VLLM, Reading
from raysearch.core.mask import Mask
from raysearch.core.measure import PERPLEXITY, Measure
from raysearch.core.site import Sites
from raysearch.models.export_proof import NO_MEMORY

EVIDENCE = Evidence(
    model="tiny",
    searcher="beam(width=5)",
    objective="perplexity",
    calibration="32 samples of 256 tokens of sotu",
    measure=PERPLEXITY,
    dense_loss=3.0,
    loss=3.25,
    delta_error=0.04,
    evaluations=1234,
    layer_forwards=56789,
    search_s=12.5,
    search_id="beam-m3-3fa2c1d0",
    version="0.1.0",
)
PRUNED = Pruned(Mask.of(1, 2, 5), Sites.of_equal_layers(8), 1000, 625, "bfloat16", "owner/name")


GGUF = GGUFExport(Path("pruned.gguf"), Path("dense.gguf"), 7, 8, 10, "llama", EVIDENCE.search_id)


def test_the_mergekit_recipe_keeps_the_same_layers() -> None:
    for removed, ranges in (((1, 2, 5), [[0, 1], [3, 5], [6, 8]]), ((), [[0, 8]]), ((0, 7), [[1, 7]])):
        recipe = yaml.safe_load(mergekit_yaml(replace(PRUNED, mask=Mask(removed))))
        assert (recipe["merge_method"], recipe["dtype"]) == ("passthrough", "bfloat16")
        parts = [{"sources": [{"model": "owner/name", "layer_range": layer_range}]} for layer_range in ranges]
        assert recipe["slices"] == parts


def test_the_card_carries_the_evidence() -> None:
    readings = [
        Reading("vllm"),
        Reading("llama.cpp", misread="computes a tiny of 8 layers differently from one of 5"),
        Reading("mlx", ran="12 tokens a second"),
    ]
    verified = verified_text(0.0, None)
    card = model_card(PRUNED, EVIDENCE, "pruned", tokenizer=False, verified=verified, was_run=True, readings=readings)
    for part in (
        "`{1,2,5}`** (0-based",
        "| layers | 8 | 5 |",
        "| parameters | 1,000 | 625 (62.5%) |",
        "| loss (nats per token) | 3.0000 | 3.2500 |",
        "| loss over dense, ± its standard error |  | +0.2500 ± 0.0400 |",
        "| perplexity | 20.0855 | 25.7903 |",
        "- Objective: perplexity",
        EVIDENCE.calibration,
        EVIDENCE.searcher,
        f"- Search: {EVIDENCE.search_id}",
        'AutoModelForCausalLM.from_pretrained("pruned")',
        "`raysearch export beam-m3-3fa2c1d0 --gguf pruned.gguf --from model-Q4_K_M.gguf`",
        "\n█··██·██   layers 0 to 7: █ kept, · removed\n",
        f"| transformers {transformers.__version__} | run | as above |",
        f"| {VLLM.text} | its rules | `vllm serve ./pruned` |",
        f"| {MLX.text} | run: 12 tokens a second | `mlx_lm.generate --model ./pruned --prompt 'Once upon a time'` |",
        f"\n{LLAMA_CPP.text} would run another model: it computes a tiny of 8 layers differently from one of 5.\n",
        "`raysearch recover beam-m3-3fa2c1d0 --remove 3 --out pruned-healed`",
    ):
        assert part in card
    assert "Ollama" not in card
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "transformers"


def test_the_card_shows_the_readout_of_the_loss() -> None:
    for measure, readout in (
        (Measure("errors per item", "sample", "accuracy"), ["| accuracy | 0.5000 | 0.4250 |"]),
        (Measure("nats per answer token", "sample", "margin"), ["| margin | -0.5000 | -0.5750 |"]),
        (Measure("nats per token", "token"), []),
    ):
        evidence = replace(EVIDENCE, objective="another", measure=measure, dense_loss=0.5, loss=0.575, delta_error=None)
        verified = verified_text(None, NO_MEMORY)
        card = model_card(PRUNED, evidence, "pruned", tokenizer=True, verified=verified, was_run=False, readings=())
        assert f"| transformers {transformers.__version__} | its files | as above |" in card
        rows = [f"| loss ({measure.unit}) | 0.5000 | 0.5750 |", *readout, ""]
        assert card.partition("| parameters |")[2].splitlines()[1 : len(rows) + 1] == rows


def test_the_card_of_a_gguf_file_names_the_build_that_reads_it() -> None:
    for build, head in ((None, "| llama.cpp"), (11040, "| llama.cpp, build b11040 or newer")):
        card = gguf_card(Mask.of(1), Sites.of_equal_layers(8), EVIDENCE, replace(GGUF, build=build))
        assert f"\n{head} | the rules of {LLAMA_CPP.version} | `llama-cli -m pruned.gguf` |\n" in card
        assert ("| Ollama |" in card, "Older builds of llama.cpp" in card) == (build is None, build is not None)


def test_the_card_of_a_gguf_file_tells_which_halves_are_in_it() -> None:
    export = replace(GGUF, architecture="deci", changes=("The rows have another order.",))
    card = gguf_card(Mask.of("1m", "2a", "4a"), Sites.of_equal_layers(8), EVIDENCE, export)
    for part in (
        "# tiny without 3 of the 16 halves of its layers, as a GGUF file",
        "**`{1m,2a,4a}`** (0-based; a number with `a` is the attention",
        "in dense.gguf. The rows have another order. The terms of use",
        "| 1 | 1 | 2 |\n| 3 | none | 4 |\n\n",
        "| layers | 8 | 7 |",
        "| llama.cpp, architecture deci, since December 2024 | the rules of",
    ):
        assert part in card, part
    assert "| Ollama |" not in card
