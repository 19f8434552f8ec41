"""What a reader of a study must know to trust it: the command, the models, the samples, the machine, the versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from raysearch.models.devices import processor, resolve_device
from raysearch.redaction import redact
from raysearch.studies.bench import Bench
from raysearch.studies.spec import StudySpec
from raysearch.wording import count

_PACKAGES = ("raysearch", "torch", "transformers", "ray", "mlflow", "lm-eval")


def facts_of(study: StudySpec, benches: Sequence[Bench]) -> dict[str, str]:
    """The facts by subject, in the order to tell them."""
    facts = {"command": shlex.join(["raysearch", "study", *study.words])}
    for bench in benches:
        info, spec = bench.info, bench.model
        label = bench.label(study)
        facts[f"model {label}"] = (
            f"{spec.path}, {count(info.n_layers, 'layer')}, {info.parameters / 1e6:,.1f} M parameters, {info.dtype}"
        )
        for one, calibration in zip(bench.specs, bench.reading.calibrations, strict=True):
            subject = f"calibration {_label(study, one)}" + (f" of {label}" if len(benches) > 1 else "")
            fact = (
                f"{one.name}: {count(calibration.n_samples, 'sample')}, {calibration.n_tokens:,} scored tokens, "
                f"{_in_words(calibration.description)}"
            )
            facts[subject] = f"{facts[subject]}; {fact}" if subject in facts else fact  # a weighted one has parts
    versions = {name: _version(name) for name in _PACKAGES}
    facts["versions"] = (
        ", ".join(
            [f"{name} {version}" for name, version in versions.items() if version],
        )
        + f", Python {platform.python_version()}"
    )
    facts["machine"] = _machine(benches)
    return {subject: redact(fact) for subject, fact in facts.items()}


def _label(study: StudySpec, calibration: Any) -> str:
    """What the study calls a calibration."""
    labels = [cell.calibration for cell in study.cells if calibration in cell.search.judge.calibrations]
    return labels[0]


def _in_words(description: Mapping[str, Any]) -> str:
    left_out = ("shards", "n_tokens", "samples")
    return ", ".join(f"{key} {value}" for key, value in description.items() if key not in left_out)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine(benches: Sequence[Bench]) -> str:
    """The processor, and the GPUs where they are used."""
    parts = [f"{os.cpu_count()} cores of {processor()}"]
    if any(resolve_device(bench.model) != "cpu" for bench in benches):
        import torch

        gpus = torch.cuda.device_count()  # else they are elsewhere
        parts.append(f"{gpus} x {torch.cuda.get_device_name()}" if gpus else "GPUs of a cluster")
    return ", ".join(parts)
