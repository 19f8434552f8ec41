"""Allows only one machine at a time to open a ledger.

Machines may share a disk, but SQLite's write-ahead log needs memory that all processes of the ledger share. Each
process that has a ledger open holds a shared lock on a file next to it, which names the machine. The operating system
releases the lock when the process ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from pathlib import Path
from typing import BinaryIO

from raysearch.errors import UserError

_MARK = b"machine "


def reserve_for_this_machine(ledger: Path, path: Path) -> BinaryIO:
    """Reserve a ledger for this machine until the returned file is closed.

    Only one process at a time may call this for a ledger.

    Args:
        ledger: The ledger's file, as the user names it, for error messages.
        path: The file to lock, which is created if it does not exist.

    Returns:
        The open file, with a shared lock.

    Raises:
        UserError: Processes of another machine have the ledger open.
        OSError: The file is a link or not one of raysearch's, or cannot be locked.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b", buffering=0)
    try:
        content = file.read()
        if content and not content.startswith(_MARK):
            raise OSError(errno.EEXIST, f"{path.name} beside it is not raysearch's")
        this_machine = _MARK + f"{_boot_id()} {platform.node()}\n".encode()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if content.split()[1:2] != this_machine.split()[1:2]:
                name = content.decode(errors="replace").split(maxsplit=2)[-1].strip()
                raise UserError(
                    f"ledger={ledger} is in use on another machine, {name}, and SQLite's log cannot be shared by two; "
                    "wait for that, or use another store= here and join the two by raysearch ledger merge"
                ) from None
        else:
            file.truncate(0)
            os.pwrite(file.fileno(), this_machine, 0)
        fcntl.flock(file, fcntl.LOCK_SH)
    except BaseException:
        file.close()
        raise
    return file


def _boot_id() -> str:
    """Return an id of this machine, which differs between machines of one name; its containers share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # this is not Linux
        return platform.node()
