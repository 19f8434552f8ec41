"""The tokens of llama.cpp, which runs in the process of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xllamacpp


def llama_cpp_tokens(file: Path, prompt: list[int], n_tokens: int, n_probs: int = 1) -> list[Any]:
    """Return the greedy tokens of llama.cpp in float32, each with its most probable alternatives.

    Args:
        file: The GGUF file.
        prompt: The token ids of the prompt.
        n_tokens: The number of tokens to generate.
        n_probs: The number of alternatives for each token.

    Returns:
        One dictionary for each token, with its ``id`` and its ``top_logprobs``.
    """
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx = 256
    params.warmup = False
    params.verbosity = 0
    params.cpuparams.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    request = {"prompt": prompt, "n_predict": n_tokens, "n_probs": n_probs, "temperature": 0.0, "ignore_eos": True}
    answer: Any = server.handle_completions(request)
    return answer["choices"][0]["logprobs"]["content"]
