"""A runtime that is to be measured, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from raysearch.assessment.serving.client import Client
from raysearch.assessment.serving.llama_cpp import LlamaCpp
from raysearch.assessment.serving.runtime import ServingRuntime
from raysearch.assessment.serving.vllm import VLLM
from raysearch.errors import UserError
from raysearch.models.spec import ModelInfo
from raysearch.searching.serve_options import Serve, ServeOptions

#: The runtimes that can be measured.
_RUNTIMES: Mapping[Serve, ServingRuntime] = {"vllm": VLLM(), "llama.cpp": LlamaCpp()}


@dataclass(frozen=True)
class Serving:
    """A runtime, its version, and how its servers are measured.

    Args:
        name: The runtime as the user names it.
        options: How the servers are measured.
    """

    name: Serve
    options: ServeOptions

    @property
    def runtime(self) -> ServingRuntime:
        """The runtime."""
        return _RUNTIMES[self.name]

    @property
    def urls(self) -> dict[str, str]:
        """The addresses of servers that are up, by their settings."""
        options = self.options
        urls = {"serve.dense_url": options.dense_url, "serve.url": options.url}
        return {setting: url.rstrip("/") for setting, url in urls.items() if url is not None}

    @cached_property
    def version(self) -> str:
        """The version of the program, or of the server that is up.

        Raises:
            UserError: The program does not exist, or the server does not answer.
        """
        for setting, url in self.urls.items():
            return self.runtime.served_version(self.client(url, f"{setting}={url}"))
        return self.runtime.version(self.options)

    @property
    def title(self) -> str:
        """The runtime and its version for people."""
        return f"{self.runtime.title} {self.version}"

    def client(self, url: str, title: str) -> Client:
        """Return a client of a server.

        Args:
            url: The address.
            title: The server in messages.

        Returns:
            The client.
        """
        return Client(url, title, self.options.timeout_s)

    def check(self, info: ModelInfo) -> None:
        """Refuse what cannot be measured: a runtime that is not there, too many tokens, files of another form.

        Args:
            info: The dense model.

        Raises:
            UserError: The runtime, the options or the model do not fit each other.
        """
        options = self.options
        most = info.max_positions
        if most is not None and options.n_tokens > most:
            raise UserError(
                f"serve.context_tokens={options.context_tokens} with serve.new_tokens={options.new_tokens} is longer "
                f"than the {most} positions of {info.model.name}; use less"
            )
        if not self.urls:
            self.runtime.check(info, options)
        self.version  # noqa: B018  # it raises
