"""The runtimes that can be measured, by their names as values of ``assess.serve`` and ``speed.serve``."""

from __future__ import annotations

from collections.abc import Mapping

from raysearch.assessment.serving.llama_cpp import LlamaCpp
from raysearch.assessment.serving.runtime import ServingRuntime
from raysearch.assessment.serving.vllm import VLLM
from raysearch.searching.serve_options import Serve

SERVING_RUNTIMES: Mapping[Serve, ServingRuntime] = {"vllm": VLLM(), "llama.cpp": LlamaCpp()}
