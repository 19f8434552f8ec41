"""Ray clusters on this machine whose nodes can be taken down one by one, and searches that have work there then."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysearch.cluster import actor
from raysearch.evaluation import replica
from raysearch.evaluation.unit import Unit, UnitResult
from tests.faults import injection
from tests.processes import marked

#: In the environment of a doomed node, whose replica stops at some unit: the file that it then makes, and which unit it
#: is; 0: while it loads.
STUCK, STUCK_AT = "RAYSEARCH_TEST_STUCK", "RAYSEARCH_TEST_STUCK_AT"
ROOT = Path(__file__).parents[2]
#: Ray takes half a minute by default to miss a node that is suddenly gone.
_HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1500,
    "health_check_failure_threshold": 3,
}
#: What a fake autoscaler calls its head.
_HEAD_TYPE = "ray.head.default"


@dataclass(frozen=True)
class Node:
    """A Ray node: the processes that bear its mark.

    Args:
        folder: Of its cluster.
    """

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def stuck(self) -> Path:
        """There once its replica is at a unit that it will never answer, if it is such a node."""
        return self.folder / f"{self.mark}.stuck"

    def kill(self) -> None:
        """Takes it down at once, as a power cut would."""
        for process in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(process, signal.SIGKILL)


class RayCluster:
    """Starts nodes on this machine, and takes all of them down on leaving. `ray stop` would end everybody's.

    Args:
        ip: Of the head, and of other nodes unless they are given another.
        first: What the processes of the head do first, such as to enter a namespace of the network.
    """

    def __init__(self, ip: str = "127.0.0.1", first: Sequence[Callable[[], None]] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rs"))  # short: a socket's path has 107 characters at most
        self.ip, self.first, self.port = ip, first, free_port()
        self.nodes: list[Node] = []

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *error: object) -> None:
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def address(self) -> str:
        return f"{self.ip}:{self.port}"

    def start_head(self, cpus: int, *arguments: str, **settings: str) -> Node:
        health = f"--system-config={json.dumps(_HEALTH)}"
        head = ("--head", f"--port={self.port}", f"--temp-dir={self.folder}", "--include-dashboard=false", health)
        return self._start(Node(self.folder), cpus, self.ip, self.first, *head, *arguments, **settings)

    def add(
        self,
        cpus: int,
        doomed: bool = False,
        ip: str | None = None,
        first: Sequence[Callable[[], None]] = (),
        stuck_at: int = 3,
    ) -> Node:
        """Starts another, whose replica gets stuck at one of its units if it is doomed, or while it loads, at 0."""
        node = Node(self.folder)
        fate = {STUCK: str(node.stuck), STUCK_AT: str(stuck_at)} if doomed else {}
        return self._start(node, cpus, ip or self.ip, first or self.first, f"--address={self.address}", **fate)

    def start_autoscaling_head(self, cpus: int, most: int, idle_s: float) -> Node:
        """Starts the first node, with an autoscaler that adds nodes of one CPU, and removes those that are idle.

        Args:
            cpus: Of the first node.
            most: How many it may add.
            idle_s: How long one is idle before it is removed.
        """
        empty = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
        memory = {"object_store_memory": 100 * 2**20}
        config = {
            "cluster_name": "fake",
            "max_workers": most,
            "available_node_types": {
                _HEAD_TYPE: {"resources": {"CPU": cpus}, "node_config": {}, "max_workers": 0},
                "more": {"resources": {"CPU": 1} | memory, "node_config": {}, "min_workers": 0, "max_workers": most},
            },
            "head_node_type": _HEAD_TYPE,
            "upscaling_speed": 10.0,
            "idle_timeout_minutes": idle_s / 60,
            "provider": {
                "type": "fake_multinode",
                "gcs_address": self.address,
                "use_node_id_as_ip": True,
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
            },
            **{key: {} for key in ("auth", "docker", "file_mounts")},
            **{key: [] for key in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
            **{f"{key}_commands": [] for key in empty},
            "file_mounts_sync_continuously": False,
        }
        file = self.folder / "autoscaling.json"
        file.write_text(json.dumps(config))
        settings = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        return self.start_head(cpus, f"--autoscaling-config={file}", **settings)

    def _start(
        self, node: Node, cpus: int, ip: str, first: Sequence[Callable[[], None]], *arguments: str, **settings: str
    ) -> Node:
        self.nodes.append(node)
        arguments += f"--node-ip-address={ip}", f"--num-cpus={cpus}", f"--object-store-memory={100 * 2**20}"
        settings = {"PYTHONPATH": str(ROOT), **settings}  # which has the tests
        # Forks of one process draw the same random numbers, and a node its id from them.
        settings["RAY_OVERRIDE_NODE_ID_FOR_TESTING"] = secrets.token_hex(28)
        done = injection.start("start", *arguments, program="ray", first=first, mark=node.mark, **settings).finish(120)
        assert done.code == 0, done
        return node


def free_port() -> int:
    """A port that nobody listens on, outside of the ranges from which others take theirs."""
    for port in random.sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), closing(socket.socket()) as probe:
            probe.bind(("", port))
            return port
    raise RuntimeError("no port is free")


def listens(port: int) -> bool:
    """Whether a process of this machine takes connections at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class DoomedReplica:
    """Has a unit in hand when something happens to its node, if that is doomed."""

    replica: Any
    n_requests: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.replica, name)

    @property
    def stack(self) -> Any:
        """The replica's, which jobs that are no units take once."""
        self.count()
        return self.replica.stack

    def evaluate(self, unit: Unit) -> UnitResult:
        self.count()
        return self.replica.evaluate(unit)

    def count(self) -> None:
        self.n_requests += 1
        stop_at(self.n_requests)


def stop_at(unit: int) -> None:
    """Gets stuck if this is the unit at which a doomed node does."""
    if os.environ.get(STUCK_AT) == str(unit):
        Path(os.environ[STUCK]).touch()
        time.sleep(3600)


_make_replica = replica.make_replica


def make_doomed_replica(*arguments: Any) -> Any:
    """Takes the place of `make_replica` and `make_replica_in_actor`."""
    stop_at(0)
    return DoomedReplica(_make_replica(*arguments))


def use_doomed_replicas() -> None:
    """Has this process make such replicas, wherever they live."""
    vars(replica)["make_replica"] = vars(actor)["make_replica_in_actor"] = make_doomed_replica


def start(*arguments: object, first: Sequence[Callable[[], None]] = (), **settings: str) -> injection.Command:
    """Types a command, whose replicas get stuck on doomed nodes, in a process of its own."""
    return injection.start(*arguments, first=[*first, use_doomed_replicas], **settings)
