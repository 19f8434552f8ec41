"""Silence around transformers: its progress bars and warnings stay off the terminal, its errors are still raised."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within the context transformers and the hub client print nothing; afterwards their settings are as before."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    level, hub_level, bars = logging.get_verbosity(), hub_logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The GGUF reader has a progress bar of its own that no setting reaches.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        hub_logging.set_verbosity(hub_level)
        if bars:
            logging.enable_progress_bar()
