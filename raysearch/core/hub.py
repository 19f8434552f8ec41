"""Asks whether the Hugging Face hub answers, before its client does.

On a network that swallows everything, that client would try for minutes, half a minute for each file.
"""

from __future__ import annotations

import functools
import time

_TIMEOUT_S, _ASKED_AGAIN_S = 10.0, 60.0


def is_asked() -> bool:
    """Return whether the hub may be asked: not where the user has set ``HF_HUB_OFFLINE``."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE


def why_no_answer() -> Exception | None:
    """Return why the hub does not answer; None if it does. It is asked at most once a minute."""
    from huggingface_hub import constants

    return _ask(constants.ENDPOINT, int(time.monotonic() / _ASKED_AGAIN_S))


@functools.lru_cache(maxsize=1)
def _ask(hub: str, interval: int) -> Exception | None:
    from huggingface_hub import get_session

    try:
        get_session().head(hub, timeout=_TIMEOUT_S)
        return None
    except Exception as error:  # the client's own exception types differ between releases
        return error
