"""Speed and memory of masks and of the dense model in the runtime that is to run them, measured in turn.

A server of the dense model and one of a pruned model are up at once. They are timed alternately, each after one
warm-up, and the one that waits is stopped. Each prompt is new, so that no server finds it in a cache. Prefill is the
time until all requests have their first new token; decoding is the time from there to the last token of all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from raysearch.assessment.context import AssessContext, Assessed
from raysearch.assessment.serving.client import Client, RequestTimes
from raysearch.assessment.serving.process import ServerProcess, free_port, started
from raysearch.assessment.serving.results import MEMORY, serve_results, summary_of
from raysearch.assessment.serving.serving import Serving
from raysearch.assessment.speed import machine
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.text.redaction import redact

_LOW_TOKENS = 1000  # as assess.speed: special tokens mostly have the highest ids
_MEMORY_SOURCE = "VmHWM summed over the server's processes, each with what it shares"


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

    Masks of the same speed are measured as one mask, see `Sites.of_same_speed`.

    Args:
        context: The plan with the dense model, the ledger, and who is told of the progress.
        serving: The runtime.
        masks: The masks, also the dense one.

    Returns:
        By mask, also for the dense one unless only `ServeOptions.url` is given: the medians; each repeat as
        ``prefill_s``, ``decode_s``, ``latency_s`` and ``first_token_s``; the same numbers of the dense model timed next
        to it as ``dense``, which is None without one; ``peak_memory_bytes`` and ``kv_cache_bytes``, which are None if
        they are not known; and the runtime, the machine and the mask that was measured. Besides, the number of models
        that were measured now.

    Raises:
        UserError: A server cannot be started, or does not answer.
    """
    plan = context.plan
    options = serving.options
    pruned_masks = [mask for mask in masks if mask]
    if serving.urls and len(pruned_masks) != 1:
        raise UserError(f"serve.url={options.url} serves one checkpoint, so it is for one search; name that")
    stand_ins = {mask: mask if serving.urls else plan.info.sites.of_same_speed(mask) for mask in masks}
    place = redact(" ".join(serving.urls.values())) or machine(torch.device(plan.info.model.device))
    identity = {name: value for name, value in vars(options).items() if name not in ("timeout_s", "converter")}
    name = plan.named({"serve": serving.name, "version": serving.version, "machine": place, **identity})
    models = list(dict.fromkeys(stand_ins.values()))
    if options.url is not None and options.dense_url is None:
        models.remove(Mask())
    summaries = plan.recorded(context.ledger, name, models)
    measured = 0
    if set(models) - set(summaries):  # measure all of them, since only speeds of one run are comparable
        summaries = _measure(context, serving, models, place)
        context.record(name, summaries)
        measured = len(models)
    return {mask: summaries[stand_in] for mask, stand_in in stand_ins.items() if stand_in in summaries}, measured


@dataclass(frozen=True)
class _Model:
    """A model on a server.

    Args:
        client: A client of the server.
        name: The name of the model there.
        process: The server; None for one that raysearch has not started.
        kv_cache: What the server tells of its KV cache.
    """

    client: Client
    name: str
    process: ServerProcess | None
    kv_cache: Mapping[str, Any]

    def time(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RequestTimes:
        """Time requests while the server may run."""
        if self.process is None:
            return self.client.time(self.name, prompts, new_tokens)
        with self.process.running():
            try:
                return self.client.time(self.name, prompts, new_tokens)
            except UserError as error:
                raise UserError(f"{error}; its log says: {self.process.cause}") from error


def _measure(
    context: AssessContext, serving: Serving, models: Sequence[Mask], place: str
) -> dict[Mask, dict[str, Any]]:
    """Measure models, each pruned one in turn with the dense one."""
    info = context.plan.info
    options = serving.options
    draw = random.Random(0)
    most_tokens = min(info.vocab_size, _LOW_TOKENS)

    def time(model: _Model) -> RequestTimes:
        prompts = [[draw.randrange(most_tokens) for _ in range(options.context_tokens)] for _ in range(options.batch)]
        return model.time(prompts, options.new_tokens)

    environment = {"runtime": serving.title, "machine": place}
    pruned_masks = [mask for mask in models if mask]
    timings: dict[Mask, list[RequestTimes]] = {mask: [] for mask in models}
    memory: dict[Mask, Mapping[str, Any]] = {}
    dense_timings: dict[Mask, list[RequestTimes]] = {}
    with ExitStack() as servers:
        servers_of = _served(context, serving, servers)
        dense = servers_of(Mask()) if Mask() in models else None
        for mask in pruned_masks or [Mask()]:
            with ExitStack() as pruned_server:
                pair = {} if dense is None else {Mask(): dense}
                if mask:
                    pair[mask] = _served(context, serving, pruned_server)(mask)
                for model in pair.values():  # as a warm-up
                    time(model)
                resets = {key: _reset(model) for key, model in pair.items()}
                beginning = len(timings.get(Mask(), ()))
                for repeat in range(options.repeats):
                    context.on_progress(f"{serving.runtime.title}: repeat {repeat + 1} of {options.repeats}")
                    for key, model in pair.items():
                        timings[key].append(time(model))
                memory |= {key: {**_memory(model, resets[key]), **model.kv_cache} for key, model in pair.items()}
                dense_timings[mask] = timings.get(Mask(), [])[beginning:]
    dense_timings[Mask()] = timings.get(Mask(), [])
    summaries = {}
    for mask, mask_timings in timings.items():
        has_dense = bool(dense_timings[mask])
        summaries[mask] = {
            **summary_of(mask_timings, memory[mask], options),
            "dense": summary_of(dense_timings[mask], memory[Mask()], options) if has_dense else None,
            "measured_on": str(mask),
            **environment,
        }
    return summaries


def _served(context: AssessContext, serving: Serving, servers: ExitStack) -> Callable[[Mask], _Model]:
    """Return the function that returns a model on a server, which stays up as long as `servers`."""
    options = serving.options
    runtime = serving.runtime
    info = context.plan.info

    def served(mask: Mask) -> _Model:
        what = f"the model without {mask}" if mask else "the dense model"
        setting = "serve.url" if mask else "serve.dense_url"
        if serving.urls:
            client = serving.client(serving.urls[setting], f"{setting}={serving.urls[setting]}")
            return _Model(client, client.model(), None, runtime.kv_cache("", client))
        title = f"assess.serve={serving.name}: the server of {what}"
        folder = Path(servers.enter_context(TemporaryDirectory(prefix="raysearch-serve-")))
        files = folder / "model"
        files.mkdir()
        context.on_progress(f"{runtime.title}: writing {what}")
        model = runtime.write(info, mask, files, options, servers)
        port = free_port()
        words = [*runtime.words(options), *runtime.arguments(model, port, options, info), *options.argument_words]
        context.on_progress(f"{runtime.title}: starting the server of {what}")
        process = servers.enter_context(
            started(
                words,
                port,
                folder / "log",
                title=title,
                timeout_s=options.timeout_s,
                environment=runtime.environment,
            )
        )
        client = serving.client(process.url, title)
        log = process.log.read_text(errors="replace")
        return _Model(client, client.model(), process, runtime.kv_cache(log, client))

    return served


def _reset(model: _Model) -> bool:
    """Forget a server's peak of memory until now; return whether that is possible."""
    return model.process is not None and model.process.reset_peak()


def _memory(model: _Model, was_reset: bool) -> dict[str, Any]:
    """Return the peak of a server's memory; None for a server that raysearch has not started, and on a GPU."""
    if model.process is None or torch.cuda.is_available():
        return {MEMORY: None, "memory_source": "not known"}
    peak = model.process.peak_bytes()
    source = "not known" if peak is None else _MEMORY_SOURCE if was_reset else f"{_MEMORY_SOURCE}, since its start"
    return {MEMORY: peak, "memory_source": source}
