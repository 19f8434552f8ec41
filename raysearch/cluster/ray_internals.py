"""The only uses of private parts of Ray, which have no public counterpart in Ray 2.60.

If a later Ray lacks one of these parts, it starts more slowly, or prints more; nothing else depends on them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import ray

#: The methods that start Ray's processes for autoscaling, the dashboard and the collection of logs. These take half of
#: the start-up time of Ray, a local Ray does not need them, and no option of Ray leaves them out.
_UNUSED_PROCESSES = ("start_monitor", "start_api_server", "start_log_monitor")


@contextlib.contextmanager
def without_unused_processes() -> Iterator[None]:
    """Make Ray start without the processes that a local cluster does not need."""
    node = ray._private.node.Node
    methods = {name: getattr(node, name) for name in _UNUSED_PROCESSES if hasattr(node, name)}
    for name in methods:
        setattr(node, name, _do_nothing)
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(node, name, method)


def silence_messages() -> None:
    """Keep Ray from printing the last logs of its dead processes.

    Ray prints them on standard output, where results are, even with ``log_to_driver=False``.
    """
    vars(ray._private.worker)["print_to_stdstream"] = _do_nothing


def disable_signal_handler() -> None:
    """Keep Ray from installing its handler in C++, which ends this process three seconds after SIGTERM.

    Ray's variable ``RAY_DISABLE_FAILURE_SIGNAL_HANDLER`` does the same, but only if it is set before the first import
    of Ray in this process, and replicas would inherit it.
    """
    vars(ray._private.ray_constants)["RAY_DISABLE_FAILURE_SIGNAL_HANDLER"] = True


def _do_nothing(*_: object, **__: object) -> None:
    """Take the place of a function of Ray."""
