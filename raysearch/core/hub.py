"""Checks whether the Hugging Face hub answers, before its client is used.

If a network drops all packets, the client would try for minutes: half a minute for each file.
"""

from __future__ import annotations

import functools
import time

_TIMEOUT_S = 10.0
_INTERVAL_S = 60.0  # between two checks


def is_asked() -> bool:
    """Return whether the hub may be used: not if the user has set ``HF_HUB_OFFLINE``."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE


def why_no_answer() -> Exception | None:
    """Return the error of a request to the hub; None if it answers. A request is sent at most once a minute."""
    from huggingface_hub import constants

    return _request(constants.ENDPOINT, int(time.monotonic() / _INTERVAL_S))


@functools.lru_cache(maxsize=1)
def _request(hub: str, interval: int) -> Exception | None:
    """Return the error of a request; `interval` makes the cache forget the result after a while."""
    from huggingface_hub import get_session

    try:
        get_session().head(hub, timeout=_TIMEOUT_S)
        return None
    except Exception as error:  # the client's own exception types differ between releases
        return error
