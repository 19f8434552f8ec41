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
        of_model = f" of {label}" if len(model_groups) > 1 else ""
        parts: dict[str, dict[str, None]] = {}  # of each calibration; several draws, or a weighted one's
        for cell in (study.cells[number] for number in model_group.numbers):
            evaluation = cell.search.evaluation
            drawn_of = model_group.prepared_for(evaluation).calibrations
            for one, drawn in zip(evaluation.calibrations, drawn_of, strict=True):
                fact = (
                    f"{one.name}: {count(drawn.n_samples, 'sample')}, {drawn.n_tokens:,} scored tokens, "
                    f"{_in_words(drawn.description)}"
                )
                parts.setdefault(f"calibration {cell.calibration}{of_model}", {})[fact] = None
        facts |= {subject: "; ".join(of) for subject, of in parts.items()}
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    facts["versions"] = ", ".join([*versions, f"Python {platform.python_version()}"])
    facts["machine"] = _machine(model_groups)
    return {subject: redact(fact) for subject, fact in facts.items()}


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
