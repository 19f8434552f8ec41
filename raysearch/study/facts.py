"""The facts that a reader needs to trust a study: the command, models, samples, machine and versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from raysearch.core.formatting import count
from raysearch.errors import redact
from raysearch.models.devices import processor
from raysearch.study.model_group import ModelGroup
from raysearch.study.spec import StudySpec

_PACKAGES = ("raysearch", "torch", "transformers", "ray", "mlflow", "lm-eval")


def facts_of(study: StudySpec, model_groups: Sequence[ModelGroup]) -> dict[str, str]:
    """The facts by subject, in the order to tell them."""
    facts = {"command": shlex.join(["raysearch", "study", *study.words])}
    for model_group in model_groups:
        info, spec = model_group.info, model_group.model
        label = model_group.label(study)
        facts[f"model {label}"] = (
            f"{spec.path}, {count(info.n_layers, 'layer')}, {info.parameters / 1e6:,.1f} M parameters, {info.dtype}"
        )
        for one, calibration in zip(model_group.specs, model_group.prepared.calibrations, strict=True):
            subject = f"calibration {_label(study, one)}" + (f" of {label}" if len(model_groups) > 1 else "")
            fact = (
                f"{one.name}: {count(calibration.n_samples, 'sample')}, {calibration.n_tokens:,} scored tokens, "
                f"{_in_words(calibration.description)}"
            )
            facts[subject] = f"{facts[subject]}; {fact}" if subject in facts else fact  # a weighted one has parts
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    facts["versions"] = ", ".join([*versions, f"Python {platform.python_version()}"])
    facts["machine"] = _machine(model_groups)
    return {subject: redact(fact) for subject, fact in facts.items()}


def _label(study: StudySpec, calibration: Any) -> str:
    """The study's label of a calibration."""
    return next(cell.calibration for cell in study.cells if calibration in cell.search.evaluation.calibrations)


def _in_words(description: Mapping[str, Any]) -> str:
    left_out = ("shards", "n_tokens", "samples")
    return ", ".join(f"{key} {value}" for key, value in description.items() if key not in left_out)


def _machine(model_groups: Sequence[ModelGroup]) -> str:
    """The processor, and the GPUs where they are used."""
    parts = [f"{os.cpu_count()} cores of {processor()}"]
    if any(model_group.info.model.on_gpu for model_group in model_groups):
        import torch

        gpus = torch.cuda.device_count()  # else they are elsewhere
        parts.append(f"{gpus} x {torch.cuda.get_device_name()}" if gpus else "GPUs of a cluster")
    return ", ".join(parts)
