"""The model card of an exported checkpoint, and recipes that make the same model with other tools."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from raysearch.core.escaping import markdown_line
from raysearch.core.formatting import added
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.errors import redacted

#: The file beside a card that holds the same for machines. It marks a folder or a repository as an export.
RECORD = "raysearch.json"


@dataclass(frozen=True)
class Evidence:
    """The search that found the mask, in plain values."""

    model: str
    searcher: str  #: the algorithm and its options, e.g. ``beam(width=5)``
    objective: str  #: what was minimised, e.g. ``perplexity``
    calibration: str  #: its data, in one line
    measure: Measure  #: of losses
    dense_loss: float
    loss: float
    delta_error: float | None  #: standard error of their difference, from the choice of samples; None if unknown
    evaluations: int  #: masks evaluated to find it
    layer_forwards: int  #: that it takes to find it on an empty ledger, over all shards
    search_s: float
    search_id: str  #: the search's name in the ledger: ``greedy-m5-3fa2c1d0``
    version: str


@dataclass(frozen=True)
class Pruned:
    """The pruned model in numbers."""

    mask: Mask
    n_layers_dense: int  #: N, the layers of the dense model
    parameters_dense: int
    parameters: int
    dtype: str  #: of the weights, e.g. ``bfloat16``
    source: str | None  #: the dense model as transformers and mergekit are given it; None for local files


def mergekit_yaml(pruned: Pruned) -> str:
    """Return the mergekit recipe (a passthrough merge of the kept runs) that makes the same checkpoint."""
    source = pruned.source or "path/to/the/dense/model"
    lines = ["# mergekit-yaml mergekit.yaml ./pruned    (layer_range is half-open and 0-based)"]
    if pruned.source is None:
        lines.append("# The search read local files: name the same model in Hugging Face format here.")
    lines += ["merge_method: passthrough", f"dtype: {pruned.dtype}", "slices:"]
    for before, after in pairwise([-1, *pruned.mask, pruned.n_layers_dense]):  # between two are layers that stay
        if before + 1 < after:
            lines += ["  - sources:", f"      - model: {json.dumps(source)}"]
            lines += [f"        layer_range: [{before + 1}, {after}]"]
    return "\n".join(lines) + "\n"


def model_card(
    pruned: Pruned,
    evidence: Evidence,
    name: str,
    *,
    tokenizer: bool,
    misread: str | None = None,
    misread_by_vllm: str | None = None,
) -> str:
    """Return the README.md of an exported checkpoint; the last arguments are those of `render_card`."""
    share = pruned.parameters / pruned.parameters_dense
    rows = [
        ("layers", pruned.n_layers_dense, pruned.n_layers_dense - len(pruned.mask)),
        ("parameters", f"{pruned.parameters_dense:,}", f"{pruned.parameters:,} ({share:.1%})"),
        *_loss_rows(evidence),
    ]
    shown: dict[str, Any] = {"pruned": pruned, "evidence": evidence, "rows": rows, "name": name}
    shown |= {"tokenizer": tokenizer, "misread": misread, "misread_by_vllm": misread_by_vllm}
    return render_card(Path(__file__).with_name("card.md.j2"), **shown)


def gguf_card(
    mask: Mask,
    n_layers: int,
    evidence: Evidence,
    name: str,
    source: str,
    sizes: tuple[int, int],
    build: int | None = None,
) -> str:
    """Return the README.md of a repository that holds a pruned GGUF file.

    Args:
        mask: The layers that are gone.
        n_layers: N, the layers of the dense model.
        evidence: The search that found the mask.
        name: The file's name.
        source: The name of the file that the layers were taken out of.
        sizes: Of that file and of this one, in bytes.
        build: The first build of llama.cpp that reads the file; None if any does.
    """
    before, after = sizes
    rows = [
        ("layers", n_layers, n_layers - len(mask)),
        ("size", f"{before / 1e6:,.1f} MB", f"{after / 1e6:,.1f} MB ({after / before:.1%})"),
        *_loss_rows(evidence),
    ]
    shown = {"mask": mask, "n_layers": n_layers, "evidence": evidence, "rows": rows, "name": name, "source": source}
    return render_card(Path(__file__).with_name("gguf.md.j2"), **shown, build=build)


def _loss_rows(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Return a card's rows of the loss: its name, the dense model's, the pruned model's."""
    measure = evidence.measure
    rows = [(f"loss ({measure.unit})", f"{evidence.dense_loss:.4f}", f"{evidence.loss:.4f}")]
    if measure.readout is not None:
        dense, left = measure.read(evidence.dense_loss), measure.read(evidence.loss)
        rows.append((measure.readout, f"{dense:.4f}", f"{left:.4f}"))
    if evidence.delta_error is not None:
        delta = added(evidence.loss - evidence.dense_loss, evidence.delta_error)
        rows.append(("loss over dense, ± its standard error", "", delta))
    return rows


def export_record(mask: Mask, n_layers: int, evidence: Evidence) -> str:
    """Return the text of `RECORD`: what was removed, and the evidence, for machines."""
    record = {"mask": list(mask), "n_layers_dense": n_layers, "evidence": asdict(evidence)}
    return json.dumps(redacted(record), indent=2) + "\n"


def mask_picture(mask: Mask, n_layers: int) -> str:
    """Return the layers as text, ten a group: ``████·███`` and a key for the mask {4} of 8."""
    layers = "".join("·" if layer in mask else "█" for layer in range(n_layers))
    groups = " ".join(layers[start : start + 10] for start in range(0, n_layers, 10))
    return f"{groups}   layers 0 to {n_layers - 1}: █ kept, · removed"


def render_card(template: Path, **values: Any) -> str:
    """Return a model card; templates share ``use.md.j2``, how a checkpoint is loaded.

    Args:
        template: The template's file.
        values: What it shows; among them ``name``, the checkpoint's folder, ``tokenizer``, whether it has one, and
            ``misread`` and ``misread_by_vllm``, why llama.cpp or vLLM would run another model, for templates of
            checkpoints.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"md": markdown_line, "quoted": json.dumps, "shell": shlex.quote}
    environment.globals["mask_picture"] = mask_picture
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)
