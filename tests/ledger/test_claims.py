"""Evaluations are claimed by one process at a time, and a dead one loses its claims."""

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np

from raysearch.core.evaluations import Key
from raysearch.core.mask import Mask
from raysearch.ledger.claims import Claims
from raysearch.ledger.ledger import Ledger

A = Key("cal", Mask.of(1), 0)
B = Key("cal", Mask.of(1, 2), 0)


def claiming(ledger, then):
    """Return the command of a process that claims `A`, and then runs the statements of `then`."""
    script = (
        "import os, sys; from pathlib import Path; from raysearch.ledger.claims import *;"
        "from raysearch.core.mask import Mask; claims = Claims(Ledger(Path(sys.argv[1])));"
        f"claims.take([Key('cal', Mask.of(1), 0)]); {then}"
    )
    return [sys.executable, "-c", script, str(ledger.path)]


def test_an_evaluation_is_claimed_once(ledger):
    with closing(Claims(ledger)) as first, closing(Ledger(ledger.path)) as same, closing(Claims(same)) as second:
        other_shard = B._replace(shard=1)
        assert first.take([A, B]) == [A, B]
        assert second.take([A, other_shard]) == [other_shard]
        first.release()
        assert second.take([A]) == [A]
        second.close()  # closing twice is harmless


def test_a_recorded_evaluation_cannot_be_claimed(ledger):
    ledger.record("cal", 0, {A.subject: np.ones(1)})
    with closing(Claims(ledger)) as claims:
        other_shard = A._replace(shard=1)
        assert claims.take([A, other_shard]) == [other_shard]


def test_a_dead_process_loses_its_claims(ledger):
    subprocess.run(claiming(ledger, "idle = Claims(claims._ledger); os._exit(9)"), check=False)
    assert len([*ledger.path.parent.glob("*.claims-*.lock")]) == 2
    assert ledger.connection.execute("SELECT count(*) FROM claims").fetchone() == (1,)
    with closing(Claims(ledger)) as claims:
        assert claims.take([A]) == [A]
    assert [file.name for file in ledger.path.parent.glob("*.lock")] == ["ledger.db.lock"]


def test_a_stopped_process_is_named_and_loses_its_claims(ledger):
    command = claiming(ledger, "print('taken', flush=True); sys.stdin.read()")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"taken\n"
        try:
            with closing(Claims(ledger)) as claims:
                assert claims.take([A]) == []
                assert claims.other_owners() == [f"process {process.pid} on {platform.node()}"]
                process.send_signal(signal.SIGSTOP)
                (lock,) = [
                    file for file in ledger.path.parent.glob("*.claims-*") if str(process.pid) in file.read_text()
                ]
                os.utime(lock, (time.time() - 70, time.time() - 70))
                assert claims.take([A]) == [A]
        finally:
            process.send_signal(signal.SIGCONT)
            process.stdin.close()
        assert process.wait() == 0


def test_many_threads_may_create_the_same_ledger_at_once(tmp_path):
    barrier = threading.Barrier(4)

    def start(number: int) -> None:
        barrier.wait()
        with closing(Ledger(tmp_path / f"{number}.db")) as ledger, closing(Claims(ledger)) as claims:
            claims.take([])

    with ThreadPoolExecutor(4) as threads:
        for number in range(20):  # without a lock, about one in ten fails
            list(threads.map(start, [number] * 4))
