"""How the speed of a model is measured in the runtime that is to run it."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from raysearch.core.options import Options
from raysearch.core.validation import UserPath
from raysearch.errors import UserError

#: The runtimes that can be measured.
Serve = Literal["vllm", "llama.cpp"]


@dataclass(frozen=True)
class ServeOptions(Options):
    """How the speed of a server is measured: by requests that are sent at once, with prompts of random tokens.

    Args:
        batch: The number of requests at once, each of one sequence.
        context_tokens: The number of tokens of each prompt.
        new_tokens: The number of tokens that are generated after each prompt.
        repeats: How often each model is timed, in turn; the median counts.
        url: The address of a server of the pruned model that is up; None to start servers.
        dense_url: The address of a server of the dense model; None for none. It needs `url`.
        command: The program that starts a server, with its first arguments; None for ``vllm serve`` or
            ``llama-server``.
        arguments: Further arguments of the program, such as ``--enforce-eager``.
        converter: llama.cpp's ``convert_hf_to_gguf.py``, for a model that is not a GGUF file.
        timeout_s: The longest time in seconds that a server may take to start or to answer.
    """

    section = "serve"

    batch: PositiveInt = 1
    context_tokens: PositiveInt = 512
    new_tokens: Annotated[int, Field(ge=2)] = 64
    repeats: PositiveInt = 5
    url: str | None = None
    dense_url: str | None = None
    command: str | None = None
    arguments: str = ""
    converter: UserPath | None = None
    timeout_s: PositiveFloat = 1800

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("url", "dense_url"):
            url = getattr(self, key)
            if url is not None and not url.startswith(("http://", "https://")):
                raise UserError(f"serve.{key}={url} is not an address; give one such as http://127.0.0.1:8000/v1")
        if self.dense_url is not None and self.url is None:
            raise UserError(
                f"serve.dense_url={self.dense_url} needs a server of the pruned model next to it; name that with "
                "serve.url=…"
            )
        for key in ("command", "arguments"):
            self._words(key)
        if self.command is not None and not self._words("command"):
            raise UserError("serve.command= is empty; name a program, or leave it out")

    @property
    def identity(self) -> dict[str, Any]:
        """All that the numbers of a server depend on, as JSON values."""
        return {name: value for name, value in asdict(self).items() if name not in ("timeout_s", "converter")}

    @property
    def n_tokens(self) -> int:
        """The tokens of a sequence at its end, for which the KV cache needs room."""
        return self.context_tokens + self.new_tokens

    @property
    def command_words(self) -> list[str]:
        """The words of `command`; empty for the runtime's own program."""
        return self._words("command")

    @property
    def argument_words(self) -> list[str]:
        """The words of `arguments`."""
        return self._words("arguments")

    def _words(self, key: str) -> list[str]:
        text = getattr(self, key) or ""
        try:
            return shlex.split(text)
        except ValueError as error:
            raise UserError(f"serve.{key}={text} is not understood ({error}); quote it as for a shell") from error
