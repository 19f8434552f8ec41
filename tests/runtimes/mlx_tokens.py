"""Prints the tokens that mlx-lm generates greedily for several checkpoints, as JSON. It runs in its own environment.

python mlx_tokens.py '{"folders": ["pruned"], "prompt": [1, 2, 3], "n_tokens": 16}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    for folder in request["folders"]:
        try:
            model, _ = load_model(Path(folder))
            model.set_dtype(mx.float32)
            steps = generate_step(mx.array(request["prompt"]), model, max_tokens=request["n_tokens"])
            tokens: list[int] | str = [int(token) for token, _ in steps]
        except Exception as error:  # the other models still run
            tokens = f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps({"folder": folder, "tokens": tokens}) + "\n")
