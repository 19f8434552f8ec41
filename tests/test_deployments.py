"""The files for running elsewhere are what their tools take, and every command in them is one that raysearch takes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from raysearch.configuration import build
from tests.cli.conftest import World, world  # noqa: F401
from tests.faults.injection import assert_all_gone
from tests.processes import MARK

ROOT = Path(__file__).resolve().parents[1]
CLUSTERS, DOCKER = ROOT / "clusters", ROOT / "docker"
FILES = [*sorted(CLUSTERS.iterdir()), *sorted(DOCKER.glob("*.yaml")), ROOT / "docs" / "clusters.md"]
KUBERNETES = "1.33.0"
RAY = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("ray=="))[5:]

#: Of the KubeRay API, ray.io/v1, the keys that there are where we use some; pods are Kubernetes' own.
KUBERAY = {
    "spec": "activeDeadlineSeconds backoffLimit clusterSelector deletionStrategy entrypoint entrypointNumCpus "
    "entrypointNumGpus entrypointResources jobId managedBy metadata rayClusterSpec runtimeEnvYAML "
    "shutdownAfterJobFinishes submissionMode submitterConfig submitterPodTemplate suspend ttlSecondsAfterFinished",
    "rayClusterSpec": "authOptions autoscalerOptions enableInTreeAutoscaling gcsFaultToleranceOptions headGroupSpec "
    "headServiceAnnotations managedBy rayVersion suspend workerGroupSpecs",
    "authOptions": "mode",
    "autoscalerOptions": "env envFrom idleTimeoutSeconds image imagePullPolicy resources securityContext upscalingMode "
    "version volumeMounts",
    "headGroupSpec": "enableIngress headService rayStartParams serviceType template",
    "workerGroupSpecs": "groupName idleTimeoutSeconds maxReplicas minReplicas numOfHosts rayStartParams replicas "
    "scaleStrategy suspend template",
}


def load(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def run(*arguments: str | Path) -> None:
    """Runs a linter of this environment."""
    tool = Path(sys.executable).parent / arguments[0]
    done = subprocess.run([tool, *arguments[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def texts(node: Any) -> Iterator[str]:
    """Every text in a YAML document."""
    if isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from texts(child)
    elif isinstance(node, str):
        yield node


def commands() -> Iterator[tuple[str, str]]:
    """Every command of raysearch in these files, their comments and their page, with the file."""
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        lines = text.replace("\\\n", "").splitlines()
        if file.suffix == ".yaml":
            folded = [text for document in yaml.safe_load_all(text) for text in texts(document)]
            lines = [line for line in lines if line.startswith("#")] + folded
        for line in lines:
            for command in re.findall(r"(?:raysearch|slurm\.sh) ((?:search|score|study) [^`]*=[^`]*)", line):
                yield file.name, " ".join(command.split())


def test_there_are_commands_everywhere() -> None:
    assert {name for name, _ in commands()} == {file.name for file in FILES}


def test_every_command_is_one_that_raysearch_takes(subtests: pytest.Subtests) -> None:
    for command, name in sorted({command: name for name, command in commands()}.items()):
        job, *arguments = shlex.split(command)
        overrides = [word for word in arguments if not word.startswith("--")]
        with subtests.test(f"{name}: {command}"):
            assert getattr(build, f"{job}_spec")(overrides)


def test_the_dockerfile_is_clean() -> None:
    run("hadolint", DOCKER / "Dockerfile")


def test_the_image_is_made_of_what_is_there() -> None:
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert allowed[1] == "*"
    assert all((ROOT / line[1:]).exists() for line in allowed if line.startswith("!"))
    extras = re.search(r"for name in \((.*?)\)", (DOCKER / "Dockerfile").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras
    assert set(re.findall(r"\w+", extras[1])) <= set(project["optional-dependencies"])


def test_compose_files_follow_the_specification() -> None:
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    for name in ("compose.yaml", "compose.cuda.yaml"):
        jsonschema.validate(load(DOCKER / name), json.loads(schema.read_text()))


def test_containers_are_not_open_to_the_network_and_hold_no_secrets() -> None:
    compose = load(DOCKER / "compose.yaml")
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert all(f"/docker/{Path(secret['file']).parent}/" in ignored for secret in compose["secrets"].values())
    assert set(load(DOCKER / "compose.cuda.yaml")["services"]) <= set(compose["services"])
    for name, service in compose["services"].items():
        assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= set(compose["volumes"]), name
        assert set(service.get("depends_on", ())) <= set(compose["services"]), name


def test_ray_takes_the_launchers_files() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    for name in ("aws", "gcp"):
        cluster = prepare_config(load(CLUSTERS / f"{name}.yaml"))
        validate_config(cluster)
        worker = cluster["available_node_types"]["worker"]
        assert (worker["min_workers"], worker["max_workers"]) == (0, cluster["max_workers"])


def test_kubernetes_and_ray_take_the_job() -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    *claims, job = yaml.safe_load_all((CLUSTERS / "kuberay.yaml").read_text(encoding="utf-8"))
    for claim in claims:
        kubernetes_validate.validate(claim, KUBERNETES, strict=True)
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    parts = {"spec": job["spec"], **job["spec"], **cluster, "workerGroupSpecs": workers}
    for name, keys in KUBERAY.items():
        assert set(parts[name]) <= set(keys.split()), name
    names = {claim["metadata"]["name"] for claim in claims}
    for group in (cluster["headGroupSpec"], workers):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"}, **group["template"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        assert {volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"]} <= names
    assert cluster["rayVersion"] == RAY
    scaling = _derive_autoscaling_config_from_ray_cr(
        {"metadata": {"name": "raysearch", "namespace": "default"}, "spec": cluster}
    )
    gpu = scaling["available_node_types"]["gpu"]
    assert (gpu["min_workers"], gpu["max_workers"], gpu["resources"]["GPU"]) == (0, 8, 1)


def test_the_slurm_script_is_clean() -> None:
    run("shellcheck", CLUSTERS / "slurm.sh")


@pytest.mark.slow
@pytest.mark.faults
def test_a_search_ends_on_two_nodes_of_slurm(world: World, tmp_path: Path) -> None:  # noqa: F811
    """Ray, its password, driver and clean-up are real; Slurm is played, and both of its nodes are this machine."""
    (folder := tmp_path / "bin").mkdir()
    (folder / "srun").write_text('#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    (folder / "scontrol").write_text("#!/bin/bash\nprintf 'node1\\nnode2\\n'\n")
    for tool in folder.iterdir():
        tool.chmod(0o755)
    (folder / "activate").write_text(f'PATH="{folder}:{Path(sys.executable).parent}:$PATH"\n')
    slurm = {
        "SUBMIT_DIR": tmp_path,
        "JOB_NODELIST": "node[1-2]",
        "JOB_ID": os.getpid(),
        "NNODES": 2,
        "CPUS_PER_TASK": 1,
    }
    mark = uuid.uuid4().hex
    done = subprocess.run(
        ["bash", CLUSTERS / "slurm.sh", "search", *world.search(cluster=None)],
        env=os.environ
        | {"VENV": str(tmp_path), MARK: mark}
        | {f"SLURM_{name}": str(value) for name, value in slurm.items()},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Removed layers" in done.stdout
    assert (tmp_path / "mlruns" / "ledger.db").exists()
    assert_all_gone(mark, within_s=30)
