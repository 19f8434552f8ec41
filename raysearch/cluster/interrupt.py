"""Raises an error in the main thread when Ray has died, even while a call of Ray is in progress."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from raysearch.errors import EvaluationError

#: Poll interval while a call of Ray is in progress. It is short, since a local Ray may end this process one second
#: after its own death.
_CHECK_S = 0.2
_STUCK_S = 10.0  # a call of Ray that handles signals does so within this time
_SIGNAL = signal.SIGUSR2  # Ray Tune uses SIGUSR1


@contextlib.contextmanager
def interrupted_by_death(check: Callable[[], None], warn: Callable[[str], None]) -> Iterator[None]:
    """Raise the error of `check` in the body of the context as soon as Ray has died.

    A signal interrupts calls of Ray that would never return. So this works in the main thread only; in any other thread
    the context does nothing. If a call ignores signals, Ray ends the process within a minute, and `warn` is called.

    Args:
        check: Raises an `EvaluationError` if Ray has died.
        warn: Called with a message if the call of Ray cannot be interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interruption = _Interruption(check, warn)
    interruption.start()
    try:
        yield
    except Exception:
        check()  # the error of a library may be a less clear consequence
        raise
    finally:
        interruption.stop()


class _Interruption:
    """Polls whether Ray has died, and then sends a signal to the main thread, which must make it.

    Args:
        check: Raises an `EvaluationError` if Ray has died.
        warn: Called with a message if the signal has no effect.
    """

    def __init__(self, check: Callable[[], None], warn: Callable[[str], None]) -> None:
        self._check = check
        self._warn = warn
        self._main_thread = threading.get_ident()
        self._outer_handler = signal.getsignal(_SIGNAL)
        self._is_stopped = threading.Event()

    def start(self) -> None:
        signal.signal(_SIGNAL, self._handle)
        threading.Thread(target=self._poll, name="ray-interrupt", daemon=True).start()

    def stop(self) -> None:
        self._is_stopped.set()
        signal.signal(_SIGNAL, self._outer_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._check()
        if callable(self._outer_handler):  # such as that of a context around this one
            self._outer_handler(number, frame)

    def _poll(self) -> None:
        while not self._is_stopped.wait(_CHECK_S):
            try:
                self._check()
            except EvaluationError as error:
                signal.pthread_kill(self._main_thread, _SIGNAL)
                if not self._is_stopped.wait(_STUCK_S):
                    self._warn(f"{error}; Ray ends this process within a minute")
                return
