"""Of which families of transformers do the layers have two halves, an attention and an MLP that can be removed alone?

    PYTHONPATH=. python experiments/half_layers/families.py [FAMILY …]

For each family, this makes a tiny random model, runs its layers, and prints what `raysearch.models.halves` finds.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter

from transformers.utils import logging

from experiments.families.checkpoints import families, tiny_model
from raysearch.models.halves import LayerHalves
from raysearch.models.stack import LayerStack

HALVES = "has two halves"


def layers_of(family: str) -> Counter[str]:
    """Return what the layers of a family are, with the number of layers.

    Raises:
        UnsupportedModelError: The model cannot be run layer by layer.
    """
    stack = LayerStack(tiny_model(family))
    return Counter(HALVES if isinstance(halves, LayerHalves) else halves for halves in stack.find_halves())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help="the model types; all of transformers without one")
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    counts: Counter[str] = Counter()
    print("| family | layers |\n|---|---|")
    for family in parser.parse_args().families or families():
        try:
            kinds = layers_of(family)
        except Exception as error:  # whatever the code of a family raises
            lines = str(error).strip().splitlines() or [""]
            print(f"| {family} | not run: {type(error).__name__}: {lines[0][:160]} |", flush=True)
            counts["not run"] += 1
            continue
        text = "; ".join(kind if len(kinds) == 1 else f"{number} of 8: {kind}" for kind, number in kinds.items())
        print(f"| {family} | {text} |", flush=True)
        counts[HALVES if [*kinds] == [HALVES] else "some or all layers have none"] += 1
    print(f"\n{dict(counts)}")


if __name__ == "__main__":
    main()
