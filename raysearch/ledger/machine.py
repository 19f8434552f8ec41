"""A ledger belongs to one machine at a time: SQLite's write-ahead log needs memory that all its processes share.

Machines may see the same disk. Each process that has a ledger open keeps a shared lock on a file beside it, which names
the machine; the lock is the operating system's, so it goes with the process, however that dies.
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


def keep_for_this_machine(ledger: Path, path: Path) -> BinaryIO:
    """Keep a ledger, as the user names it, for this machine until the file that is returned is closed.

    Only one process at a time may call this for a ledger. The file lies beside it, and is made if it does not exist.

    Raises:
        UserError: Processes of another machine have it open.
        OSError: The file is a link or somebody else's, or cannot be locked.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b", buffering=0)
    try:
        said = file.read()
        if said and not said.startswith(_MARK):
            raise OSError(errno.EEXIST, f"{path.name} beside it is not raysearch's")
        mine = _MARK + f"{_boot_id()} {platform.node()}\n".encode()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if said.split()[1:2] != mine.split()[1:2]:
                name = said.decode(errors="replace").split(maxsplit=2)[-1].strip()
                raise UserError(
                    f"ledger={ledger} is in use on another machine, {name}, and SQLite's log cannot be shared by two; "
                    "wait for that, or use another store= here and join the two by raysearch ledger merge"
                ) from None
        else:
            file.truncate(0)
            os.pwrite(file.fileno(), mine, 0)
        fcntl.flock(file, fcntl.LOCK_SH)
    except BaseException:
        file.close()
        raise
    return file


def _boot_id() -> str:
    """Return what tells machines apart, also those of one name; containers of a machine are one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return platform.node()
