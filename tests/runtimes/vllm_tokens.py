"""Prints the tokens that vLLM generates greedily for several checkpoints, as JSON. It runs in vLLM's own environment.

python vllm_tokens.py '{"folders": ["pruned"], "prompt": [1, 2, 3], "n_tokens": 16}'
"""

from __future__ import annotations

import gc
import json
import sys

from vllm import LLM, SamplingParams

if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    sampling = SamplingParams(temperature=0, max_tokens=request["n_tokens"], ignore_eos=True)
    for folder in request["folders"]:
        try:
            options = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "max_num_seqs": 1}
            model = LLM(folder, trust_remote_code=True, **options)
            (answer,) = model.generate({"prompt_token_ids": request["prompt"]}, sampling, use_tqdm=False)
            tokens: list[int] | str = list(answer.outputs[0].token_ids)
        except Exception as error:  # the other models still run
            tokens = f"{type(error).__name__}: {error}"
        model = None
        gc.collect()
        sys.stdout.write(json.dumps({"folder": folder, "tokens": tokens}) + "\n")
