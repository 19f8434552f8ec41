"""Keeps transformers and the hub client quiet."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers and the hub client from printing within the context; their errors are still raised."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    # The GGUF reader has a progress bar that no setting disables, so stderr is redirected.
    with contextlib.ExitStack() as after, contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        for library in (logging, hub_logging):
            after.callback(library.set_verbosity, library.get_verbosity())
            library.set_verbosity_error()
        if logging.is_progress_bar_enabled():
            after.callback(logging.enable_progress_bar)
        logging.disable_progress_bar()
        warnings.simplefilter("ignore")
        yield
