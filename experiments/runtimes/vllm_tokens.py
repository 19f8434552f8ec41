"""Prints the tokens that vLLM generates greedily, as JSON. It runs in vLLM's own environment.

python vllm_tokens.py FOLDER '{"prompt": [1, 2, 3], "n_tokens": 16, "dtype": "float32"}'
"""

from __future__ import annotations

import json
import sys

from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, request = sys.argv[1], json.loads(sys.argv[2])
    model = LLM(folder, dtype=request["dtype"], enforce_eager=True, max_model_len=256, max_num_seqs=1)
    sampling = SamplingParams(temperature=0, max_tokens=request["n_tokens"], ignore_eos=True)
    (answer,) = model.generate({"prompt_token_ids": request["prompt"]}, sampling)
    print(json.dumps(list(answer.outputs[0].token_ids)))
