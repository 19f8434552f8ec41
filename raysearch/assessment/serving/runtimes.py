"""The runtimes that can be measured, by their names as values of ``assess.serve`` and ``speed.serve``."""

from __future__ import annotations

from collections.abc import Mapping

from raysearch.assessment.serving.llama_cpp import LlamaCpp
from raysearch.assessment.serving.runtime import Runtime
from raysearch.assessment.serving.vllm import VLLM
from raysearch.searching.serve_options import Serve

RUNTIMES: Mapping[Serve, Runtime] = {"vllm": VLLM(), "llama.cpp": LlamaCpp()}
