"""The tokens of llama.cpp, which runs in the process of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xllamacpp


def llama_cpp_tokens(file: Path, prompt: list[int], n_tokens: int) -> list[int]:
    """Return the tokens that llama.cpp generates greedily.

    Args:
        file: The GGUF file.
        prompt: The token ids of the prompt.
        n_tokens: The number of tokens to generate.
    """
    # Not those of the log-probabilities, which leave out tokens that end within a character.
    return _completion(file, prompt, n_predict=n_tokens, return_tokens=True, verbose=True)["__verbose"]["tokens"]


def llama_cpp_log_probs(file: Path, prompt: list[int], n_probs: int) -> dict[int, float]:
    """Return the log-probabilities of the most probable next tokens in llama.cpp, by token id.

    Args:
        file: The GGUF file.
        prompt: The token ids of the prompt.
        n_probs: The number of tokens.
    """
    answer = _completion(file, prompt, n_predict=1, n_probs=n_probs)
    (next_token,) = answer["choices"][0]["logprobs"]["content"]
    return {token["id"]: token["logprob"] for token in next_token["top_logprobs"]}


def _completion(file: Path, prompt: list[int], **options: Any) -> Any:
    """Return the answer of llama.cpp to a request, computed in float32."""
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx = 256
    params.warmup = False
    params.verbosity = 0
    params.cpuparams.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    return server.handle_completions({"prompt": prompt, "temperature": 0.0, "ignore_eos": True, **options})
