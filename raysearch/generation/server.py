"""A client of servers that use OpenAI's protocol: vLLM, SGLang, llama.cpp, `transformers serve`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from raysearch.errors import UserError
from raysearch.generation.prompt import Decoding, Prompt, Written, end_of_answer

_TIMEOUT_S = 600.0  # of one answer
_PARALLEL = 8  # requests at once; such servers batch them


@dataclass(frozen=True)
class Server:
    """A server and one of its models."""

    url: str  #: the address of the server, up to ``/v1``
    model: str  #: the name of the model

    @classmethod
    def at(cls, url: str, model: str | None = None) -> Server:
        """Return the server at an address.

        Args:
            url: The address, up to ``/v1``.
            model: The name of a model of the server; None if the server lists exactly one.

        Returns:
            The server and the name of its model.

        Raises:
            UserError: The address is invalid, the server does not answer, or it lists no model or several.
        """
        if not url.startswith(("http://", "https://")):
            raise UserError(f"assess.server={url} is not an address; give one such as http://127.0.0.1:8000/v1")
        url = url.rstrip("/")
        if model is not None:
            return cls(url, model)
        with _asking(f"{url}/models", "name the model with assess.server_model=…"):
            names = [str(listed_model["id"]) for listed_model in _ask(f"{url}/models").get("data", [])]
        if len(names) != 1:
            listing = f"lists {', '.join(names)}" if names else "lists no model"
            raise UserError(f"assess.server={url} {listing}; name the exported checkpoint with assess.server_model=…")
        return cls(url, names[0])

    def generate(self, prompts: Sequence[Prompt], tokenizer: Any, decoding: Decoding) -> list[Written]:
        """Continue prompts, several at once.

        Args:
            prompts: The prompts.
            tokenizer: The model's tokenizer.
            decoding: The options by which tokens are chosen.

        Returns:
            The continuation of each prompt.

        Raises:
            UserError: The server does not answer, or not in OpenAI's protocol.
        """
        with ThreadPoolExecutor(_PARALLEL) as pool:
            return list(pool.map(lambda prompt: self._continue(prompt, tokenizer, decoding), prompts))

    def _continue(self, prompt: Prompt, tokenizer: Any, decoding: Decoding) -> Written:
        request = {
            "model": self.model,
            "prompt": _as_text(prompt, tokenizer),
            "max_tokens": prompt.max_new_tokens,
            "temperature": decoding.temperature,
            "seed": decoding.seed,
            **({"stop": list(prompt.stop)} if prompt.stop else {}),
            **({"top_p": decoding.top_p} if decoding.temperature else {}),
            **({"top_k": decoding.top_k} if decoding.temperature and decoding.top_k else {}),
        }
        with _asking(f"{self.url}/completions", "use one that offers /completions"):
            answer = _ask(f"{self.url}/completions", request)
            (choice,) = answer["choices"]
            text: str = choice["text"]
            end = end_of_answer(text, prompt.stop)
            n_tokens = int((answer.get("usage") or {}).get("completion_tokens") or 0)
            return Written(text[:end], n_tokens, end is None and choice["finish_reason"] == "length")


@contextmanager
def _asking(url: str, remedy: str) -> Iterator[None]:
    """Turn all errors of a request, and of reading an answer of any form, into a `UserError`."""
    try:
        yield
    except urllib.error.HTTPError as error:
        reply = " ".join(error.read().decode(errors="replace").split())[:300]
        raise UserError(f"assess.server refuses {url} ({error.code}: {reply}); {remedy}") from error
    except (OSError, TypeError, ValueError, LookupError, AttributeError, RecursionError, HTTPException) as error:
        raise UserError(
            f"assess.server does not answer at {url} as OpenAI's protocol says ({error!r}); check the address and the "
            "server"
        ) from error


def _as_text(prompt: Prompt, tokenizer: Any) -> str:
    """Return a prompt's text without the first token if the server will add it."""
    bos = getattr(tokenizer, "bos_token_id", None)
    server_adds_bos = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
    ids = prompt.ids[1:] if server_adds_bos and prompt.ids[:1] == (bos,) else prompt.ids
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def _ask(url: str, body: Any = None) -> Any:
    """Send a request, and return the JSON value of the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return json.load(answer)
