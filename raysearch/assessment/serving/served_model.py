"""A model on a server: its files are written, the server is started, its requests are timed, its memory is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from raysearch.assessment.serving.client import Client, RequestTimes
from raysearch.assessment.serving.process import ServerProcess, free_port, started
from raysearch.assessment.serving.results import MEMORY
from raysearch.assessment.serving.runtime import ServingRuntime
from raysearch.assessment.serving.serving import Serving
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.models.spec import ModelInfo

_MEMORY_SOURCE = "VmHWM, summed over the server's processes; each counts what it shares"


@dataclass
class ServedModel:
    """A model on a server.

    Args:
        runtime: The runtime.
        client: A client of the server.
        process: The server; None for one that raysearch has not started.
        memory_note: What its peak memory contains besides its need, see `ServingRuntime.memory_note`.
    """

    runtime: ServingRuntime
    client: Client
    process: ServerProcess | None
    memory_note: str = ""
    name: str = field(init=False)
    was_reset: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.name = self.client.model()

    def time(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> RequestTimes:
        """Send a request for each prompt at once while the server may run, and return when their tokens came.

        Args:
            prompts: The token ids of each prompt.
            new_tokens: The number of tokens to generate after each.

        Returns:
            The times.

        Raises:
            UserError: The server does not answer in full.
        """
        if self.process is None:
            return self.client.time(self.name, prompts, new_tokens)
        with self.process.running():
            try:
                return self.client.time(self.name, prompts, new_tokens)
            except UserError as error:
                raise UserError(f"{error}; its log says: {self.process.cause}") from error

    def reset_peak(self) -> None:
        """Forget the server's peak of memory until now, if the system can."""
        self.was_reset = self.process is not None and self.process.reset_peak()

    def sizes(self) -> dict[str, Any]:
        """Return the peak of memory of a server that raysearch has started on a CPU, and what it tells of its KV cache.

        What is not known is None, or missing.
        """
        if self.process is None:
            return {MEMORY: None, "memory_source": "nothing: it is not known", **self.runtime.kv_cache("", self.client)}
        with self.process.running():
            kv_cache = self.runtime.kv_cache(self.process.log.read_text(errors="replace"), self.client)
        peak = None if torch.cuda.is_available() else self.process.peak_bytes()
        since = "" if self.was_reset else ", since its start"
        source = "nothing: it is not known" if peak is None else f"{_MEMORY_SOURCE}{since}{self.memory_note}"
        return {MEMORY: peak, "memory_source": source, **kv_cache}


@contextmanager
def served(mask: Mask, info: ModelInfo, serving: Serving, on_progress: Callable[[str], None]) -> Iterator[ServedModel]:
    """Yield a model on a server, which ends with the context if raysearch has started it.

    Args:
        mask: The removed layers; the empty mask for the dense model.
        info: The dense model.
        serving: The runtime.
        on_progress: Called with a line on the progress.

    Yields:
        The model.

    Raises:
        UserError: The files cannot be written, or the server does not answer.
    """
    options = serving.options
    runtime = serving.runtime
    what = f"the model without {mask}" if mask else "the dense model"
    with ExitStack() as stack:
        if serving.urls:
            setting = "serve.url" if mask else "serve.dense_url"
            url = serving.urls[setting]
            yield ServedModel(runtime, serving.client(url, f"{setting}={url}"), None)
            return
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="raysearch-serve-")))
        files = folder / "model"
        files.mkdir()
        on_progress(f"{runtime.title}: writing {what}")
        model = runtime.write(info, mask, files, options, stack)
        port = free_port()
        words = [*runtime.words(options), *runtime.arguments(model, port, options, info, mask), *options.argument_words]
        title = f"{runtime.title}: the server of {what}"
        on_progress(f"{runtime.title}: starting the server of {what}")
        process = stack.enter_context(
            started(
                words,
                port,
                folder / "log",
                title=title,
                timeout_s=options.timeout_s,
                environment=runtime.environment,
            )
        )
        note = runtime.memory_note(info, options)
        yield ServedModel(runtime, serving.client(process.url, title), process, note)
