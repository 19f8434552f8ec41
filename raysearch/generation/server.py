"""Answers from a server that speaks OpenAI's protocol: vLLM, SGLang, llama.cpp, `transformers serve`."""

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
from raysearch.generation.prompt import Decoding, Prompt, Written

_TIMEOUT_S = 600.0  # of one answer
_PARALLEL = 8  # requests at once; servers of this kind batch them


@dataclass(frozen=True)
class Server:
    """A server, by its address up to ``/v1``, and the name of a model that it serves."""

    url: str
    model: str

    @classmethod
    def at(cls, url: str, model: str | None = None) -> Server:
        """Find a server, and the one model that it lists if that is not named; refuse none and several."""
        if not url.startswith(("http://", "https://")):
            raise UserError(f"assess.server={url} is not an address; give one such as http://127.0.0.1:8000/v1")
        url = url.rstrip("/")
        if model is not None:
            return cls(url, model)
        with _asking(f"{url}/models", "name the model with assess.server_model=…"):
            found = [str(one["id"]) for one in _ask(f"{url}/models").get("data", [])]
        if len(found) != 1:
            said = f"lists {', '.join(found)}" if found else "lists no model"
            raise UserError(f"assess.server={url} {said}; name the exported checkpoint with assess.server_model=…")
        return cls(url, found[0])

    def generate(self, prompts: Sequence[Prompt], tokenizer: Any, decoding: Decoding) -> list[Written]:
        """Continue prompts, some at once, as `decoding.generate`; refuse a server that does not answer as it should."""
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
            cut = min((place for stop in prompt.stop if (place := text.find(stop)) >= 0), default=None)
            n_tokens = int((answer.get("usage") or {}).get("completion_tokens") or 0)
            return Written(text[:cut], n_tokens, cut is None and choice["finish_reason"] == "length")


@contextmanager
def _asking(url: str, remedy: str) -> Iterator[None]:
    """Within the context a server is asked, and what it answers is read; it may be anything."""
    try:
        yield
    except urllib.error.HTTPError as error:
        said = " ".join(error.read().decode(errors="replace").split())[:300]
        raise UserError(f"assess.server refuses {url} ({error.code}: {said}); {remedy}") from error
    except (OSError, TypeError, ValueError, LookupError, AttributeError, RecursionError, HTTPException) as error:
        raise UserError(
            f"assess.server does not answer at {url} as OpenAI's protocol says ({error!r}); check the address and the "
            "server"
        ) from error


def _as_text(prompt: Prompt, tokenizer: Any) -> str:
    """Return a prompt's text without the first token that the server will add itself."""
    begins = getattr(tokenizer, "bos_token_id", None)
    adds = begins is not None and tokenizer("a")["input_ids"][:1] == [begins]
    ids = prompt.ids[1:] if adds and prompt.ids[:1] == (begins,) else prompt.ids
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def _ask(url: str, body: Any = None) -> Any:
    """Return the JSON that a server answers with."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return json.load(answer)
