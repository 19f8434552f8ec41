"""Speed and memory of masks and of the dense model in the runtime that is to run them, measured in turn.

A server of the dense model and one of a pruned model are up at once. They are timed alternately, each after one
warm-up, and the one that waits is stopped. Each prompt is new, so that no server finds it in a cache. Prefill is the
time until all requests have their first new token; decoding is the time from there to the last token of all.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from raysearch.assessment.context import AssessContext, Assessed
from raysearch.assessment.serving.client import RequestTimes
from raysearch.assessment.serving.results import serve_results, summary_of
from raysearch.assessment.serving.served_model import ServedModel, served
from raysearch.assessment.serving.serving import Serving
from raysearch.assessment.speed import LOW_TOKENS, machine
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.text.redaction import redact


def measure_serving(context: AssessContext) -> Assessed:
    """Return the speed and memory of the masks in a runtime, if one is named."""
    serving = context.plan.serving
    if serving is None:
        return {mask: {} for mask in context.masks}, 0
    summaries, measured = serve_speeds(context, serving, context.masks)
    title = serving.runtime.title
    return {mask: serve_results(title, serving.name, summaries.get(mask)) for mask in context.masks}, measured


def serve_speeds(
    context: AssessContext, serving: Serving, masks: Sequence[Mask]
) -> tuple[dict[Mask, dict[str, Any]], int]:
    """Return the speed and memory of masks in a runtime; those that the ledger has are not measured again.

    Args:
        context: The plan with the dense model, the ledger, and who is told of the progress.
        serving: The runtime.
        masks: The masks.

    Returns:
        By mask, also for the dense one unless only `ServeOptions.url` is given: the medians; each repeat as
        ``prefill_s``, ``decode_s``, ``latency_s`` and ``first_token_s``; the same numbers of the dense model timed next
        to it as ``dense``, which is None without one; ``peak_memory_bytes`` and ``kv_cache_bytes``, which are None if
        they are not known; and the runtime and the machine. Besides, the number of models that were measured now.

    Raises:
        UserError: A server cannot be started, or does not answer.
    """
    plan = context.plan
    options = serving.options
    pruned_masks = [mask for mask in dict.fromkeys(masks) if mask]
    if serving.urls and len(pruned_masks) != 1:
        raise UserError(f"serve.url={options.url} serves one checkpoint, so it is for one search; name that")
    name = plan.named(
        {"serve": serving.name, "version": serving.version, "machine": _place(context, serving), **options.identity}
    )
    has_dense = options.url is None or options.dense_url is not None
    models = [Mask(), *pruned_masks] if has_dense else pruned_masks
    summaries = plan.recorded(context.ledger, name, models)
    measured = 0
    if set(models) - set(summaries):  # measure all of them, since only speeds of one run are comparable
        summaries = _measure(context, serving, models)
        context.record(name, summaries)
        measured = len(models)
    return summaries, measured


def _measure(context: AssessContext, serving: Serving, models: Sequence[Mask]) -> dict[Mask, dict[str, Any]]:
    """Measure models, each pruned one in turn with the dense one."""
    info = context.plan.info
    options = serving.options
    draw = random.Random(0)
    most_tokens = min(info.vocab_size, LOW_TOKENS)
    times: dict[Mask, list[RequestTimes]] = {mask: [] for mask in models}
    times_of_dense: dict[Mask, list[RequestTimes]] = {}
    sizes: dict[Mask, Mapping[str, Any]] = {}

    def time(model: ServedModel) -> RequestTimes:
        prompts = [[draw.randrange(most_tokens) for _ in range(options.context_tokens)] for _ in range(options.batch)]
        return model.time(prompts, options.new_tokens)

    with ExitStack() as stack:
        pair = {}
        if Mask() in models:
            pair[Mask()] = stack.enter_context(served(Mask(), info, serving, context.on_progress))
        for mask in [mask for mask in models if mask] or [Mask()]:
            with ExitStack() as pruned_stack:
                if mask:
                    pair[mask] = pruned_stack.enter_context(served(mask, info, serving, context.on_progress))
                for model in pair.values():  # as a warm-up
                    time(model)
                    model.reset_peak()
                n_earlier = len(times.get(Mask(), ()))
                for repeat in range(options.repeats):
                    context.on_progress(f"{serving.runtime.title}: repeat {repeat + 1} of {options.repeats}")
                    for key, model in pair.items():
                        times[key].append(time(model))
                sizes |= {key: model.sizes() for key, model in pair.items()}
                times_of_dense[mask] = times.get(Mask(), [])[n_earlier:]
            if mask:
                del pair[mask]
    times_of_dense[Mask()] = times.get(Mask(), [])
    summaries = {}
    for mask in models:
        dense = None
        if times_of_dense[mask]:
            dense = summary_of(times_of_dense[mask], sizes[Mask()], options)
        summaries[mask] = {
            **summary_of(times[mask], sizes[mask], options),
            "dense": dense,
            "measured_on": str(mask),
            "serve": serving.name,
            "runtime": serving.title,
            "arguments": options.arguments,
            "machine": _place(context, serving),
        }
    return summaries


def _place(context: AssessContext, serving: Serving) -> str:
    """Return the addresses of the servers that are up; without them, the names of this host and its processor."""
    return redact(" ".join(serving.urls.values())) or machine(torch.device(context.plan.info.model.device))
