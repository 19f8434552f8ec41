"""Times requests to a server that uses OpenAI's protocol.

Requests are streamed, so that each new token has its time. Prompts are lists of token ids, which vLLM and llama.cpp
take as they are.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import aiohttp

from raysearch.errors import UserError


@dataclass(frozen=True)
class RequestTimes:
    """The times of requests that were sent at once, in seconds since then, by request.

    Args:
        first_s: The time of the first new token.
        last_s: The time of the last new token.
    """

    first_s: tuple[float, ...]
    last_s: tuple[float, ...]


@dataclass(frozen=True)
class Client:
    """A client of one server.

    Args:
        url: The address of the server, up to ``/v1``.
        title: The server in messages: ``serve.url=http://…``.
        timeout_s: The longest time without a byte of an answer, in seconds.
    """

    url: str
    title: str
    timeout_s: float

    def model(self) -> str:
        """Return the name of the only model that the server lists.

        Raises:
            UserError: The server does not answer, or lists no model or several.
        """
        names = [str(model["id"]) for model in self.read("models").get("data") or []]
        if len(names) != 1:
            listing = f"lists {', '.join(names)}" if names else "lists no model"
            raise UserError(f"{self.title} {listing}; name a server of one model")
        return names[0]

    def read(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path under the address of the server.

        Args:
            path: The path: ``models``, or ``../version`` for one next to ``/v1``.

        Returns:
            The object.

        Raises:
            UserError: The server does not answer, or with something else.
        """
        content: dict[str, Any] = self._run(self._read(path, as_text=False))
        return content

    def text(self, path: str) -> str:
        """Return the text at a path under the address of the server; see `read`."""
        text: str = self._run(self._read(path, as_text=True))
        return text

    def time(self, model: str, prompts: Sequence[Sequence[int]], new_tokens: int) -> RequestTimes:
        """Send a request for each prompt at once, and return when their tokens came.

        Args:
            model: The name of the model on the server.
            prompts: The token ids of each prompt, all of one length.
            new_tokens: The number of tokens to generate after each.

        Returns:
            The times.

        Raises:
            UserError: The server does not answer, not with so many tokens, or not in OpenAI's protocol.
        """
        times: RequestTimes = self._run(self._time(model, prompts, new_tokens))
        return times

    def _run(self, coroutine: Any) -> Any:
        """Run a coroutine, and turn its errors into a sentence."""
        try:
            if _has_loop():  # in a notebook
                with ThreadPoolExecutor(1) as thread:
                    return thread.submit(asyncio.run, coroutine).result()
            return asyncio.run(coroutine)
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise UserError(f"{self.title} does not answer ({error}); check the address and the server") from error
        except (aiohttp.ClientError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.title} does not answer as OpenAI's protocol says ({error}); use a server of that protocol"
            ) from error

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=self.timeout_s)
        return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))

    async def _read(self, path: str, as_text: bool) -> Any:
        async with self._session() as session, session.get(f"{self.url}/{path}") as response:
            await self._check(response)
            if as_text:
                return await response.text()
            content = await response.json(content_type=None)
            if not isinstance(content, dict):
                raise ValueError(f"{path} is no object")
            return content

    async def _time(self, model: str, prompts: Sequence[Sequence[int]], new_tokens: int) -> RequestTimes:
        async with self._session() as session:
            started = time.perf_counter()
            streams = [self._stream(session, model, prompt, new_tokens) for prompt in prompts]
            pairs = await asyncio.gather(*streams)
        return RequestTimes(tuple(first - started for first, _ in pairs), tuple(last - started for _, last in pairs))

    async def _stream(
        self, session: aiohttp.ClientSession, model: str, prompt: Sequence[int], new_tokens: int
    ) -> tuple[float, float]:
        """Send a request, and return the times of its first and of its last new token."""
        request = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,  # of llama.cpp; vLLM is started without its cache of prompts
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        first = last = None
        n_tokens: dict[str, int] = {}
        async with session.post(f"{self.url}/completions", json=request) as response:
            await self._check(response)
            async for line in response.content:
                data = line.decode().strip().removeprefix("data:").strip()
                if not line.startswith(b"data:") or data == "[DONE]":
                    continue
                now = time.perf_counter()
                chunk = json.loads(data)
                if "error" in chunk:
                    raise ValueError(json.dumps(chunk["error"]))
                if chunk.get("choices"):
                    first = first or now
                    last = now
                n_tokens = chunk.get("usage") or n_tokens
        if first is None or last is None or not n_tokens:
            raise ValueError("the answer breaks off before the number of its tokens")
        counts = n_tokens["prompt_tokens"], n_tokens["completion_tokens"]
        if counts != (len(prompt), new_tokens):
            raise ValueError(f"{counts[0]} + {counts[1]} tokens instead of {len(prompt)} + {new_tokens}")
        return first, last

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status >= 400:
            reply = " ".join((await response.text(errors="replace")).split())[:300]
            raise UserError(f"{self.title} refuses {response.url.path} ({response.status}: {reply}); check the server")


def _has_loop() -> bool:
    """Return whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
