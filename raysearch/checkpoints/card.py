"""The model card of an exported checkpoint, and recipes that make the same model with other tools."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from raysearch.checkpoints import deci
from raysearch.checkpoints.gguf_pruning import GGUFExport
from raysearch.checkpoints.runtimes import LLAMA_CPP, RUNTIMES, Reading
from raysearch.core.mask import Mask
from raysearch.core.measure import Measure
from raysearch.core.scale import Scale, scales_text
from raysearch.core.site import Sites
from raysearch.core.versions import version_of
from raysearch.text.escaping import markdown_line
from raysearch.text.numbers import added
from raysearch.text.redaction import redacted

#: The file next to a card with the same facts for programs. It marks a folder or a repository as an export.
RECORD = "raysearch.json"
#: The fields of a card's header that also hold for a pruned checkpoint.
_SOURCE_FIELDS = ("license", "license_name", "license_link", "pipeline_tag")


@dataclass(frozen=True)
class Evidence:
    """The search that found the mask, as plain values."""

    model: str
    searcher: str  #: the algorithm and its options, e.g. ``beam(width=5)``
    objective: str  #: what was minimised, e.g. ``perplexity``
    calibration: str  #: its data, in one line
    measure: Measure  #: the unit of losses, and how they are read
    dense_loss: float
    loss: float
    delta_error: (
        float | None
    )  #: the standard error of `loss` - `dense_loss` over the choice of samples; None if unknown
    evaluations: int  #: the masks that were evaluated
    layer_forwards: int  #: the layer-forwards of the search on an empty ledger, over all shards
    search_s: float
    search_id: str  #: the search's name in the ledger: ``greedy-m5-3fa2c1d0``
    version: str  #: of raysearch
    adapter: str | None = None  #: the name of the adapter that was merged for the search
    ran: Mapping[str, str] = field(default_factory=dict)  #: what runs have shown, by the names of other runtimes
    size: int | None = None  #: the size of the mask, as ``remove=`` counts it; None for the number of its layers


@dataclass(frozen=True)
class Pruned:
    """The pruned model in numbers."""

    mask: Mask
    sites: Sites  #: the sites of the dense model
    parameters_dense: int
    parameters: int
    dtype: str  #: of the weights, e.g. ``bfloat16``
    source: str | None  #: the dense model's hub id, for transformers and mergekit; None for local files
    is_merged: bool = False  #: whether an adapter is merged into the weights
    scales: tuple[Scale, ...] = ()  #: the factors of the mask's cuts, which the weights hold
    changed: Sequence[str] = ()  #: the names of the tensors that hold them

    @property
    def scales_text(self) -> str:
        """The factors for people: ``{13,14} ×1.088``; empty without scales."""
        return scales_text(self.scales)


def removed_text(mask: Mask, sites: Sites) -> str:
    """Return how much of a model a mask removes, for a title.

    Args:
        mask: The removed parts.
        sites: The sites of the dense model.

    Returns:
        The text, such as ``5 of its 30 layers``; of halves if the mask has single ones.
    """
    if mask.halves:
        return f"{mask.n_halves} of the {2 * sites.n_layers} halves of its layers"
    return f"{len(mask)} of its {sites.n_layers} layers"


def mergekit_yaml(pruned: Pruned) -> str:
    """Return the mergekit recipe (a passthrough merge of the kept runs) that makes the same checkpoint.

    The mask has no single halves, since a passthrough merge copies whole layers.
    """
    source = pruned.source or "path/to/the/dense/model"
    lines = ["# mergekit-yaml mergekit.yaml ./pruned    (layer_range is half-open and 0-based)"]
    if pruned.source is None:
        lines.append("# The search read local files: name the same model in Hugging Face format here.")
    lines += ["merge_method: passthrough", f"dtype: {pruned.dtype}", "slices:"]
    kept_layers = pruned.sites.kept_layers(pruned.mask)
    removed_layers = [layer for layer in range(pruned.sites.n_layers) if layer not in kept_layers]
    for before, after in pairwise([-1, *removed_layers, pruned.sites.n_layers]):  # the layers between two of these stay
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
    verified: str,
    was_run: bool,
    readings: Sequence[Reading],
    auto_class: str = "AutoModelForCausalLM",
    source_fields: Mapping[str, str] | None = None,
    has_adapter: bool = False,
) -> str:
    """Return the README.md of an exported checkpoint.

    Args:
        pruned: The pruned model.
        evidence: The search that found the mask.
        name: The name of the checkpoint's folder.
        tokenizer: Whether the checkpoint has a tokenizer.
        verified: How the checkpoint was compared with the masked dense model, see `verified_text`.
        was_run: Whether transformers ran it for that.
        readings: What other runtimes would run.
        auto_class: The name of the class that loads the checkpoint.
        source_fields: The fields of the dense model's card that also hold for the checkpoint, see `fields_of_card`.
        has_adapter: Whether the export has the adapter for the pruned model without it.

    Returns:
        The text, in Markdown with a header in YAML.
    """
    share = pruned.parameters / pruned.parameters_dense
    rows = [
        _layers_row(pruned.mask, pruned.sites),
        ("parameters", f"{pruned.parameters_dense:,}", f"{pruned.parameters:,} ({share:.1%})"),
        *_loss_rows(evidence),
    ]
    return render_card(
        Path(__file__).with_name("card.md.j2"),
        pruned=pruned,
        evidence=evidence,
        rows=rows,
        removed=removed_text(pruned.mask, pruned.sites),
        size=evidence.size if evidence.size is not None else len(pruned.mask),
        blocks=_changed_blocks(pruned.mask, pruned.sites),
        name=name,
        tokenizer=tokenizer,
        verified=verified,
        auto_class=auto_class,
        source_fields=source_fields or {},
        **runtime_values(readings, name, was_run),
        has_adapter=has_adapter,
    )


def runtime_values(readings: Sequence[Reading], name: str, was_run: bool) -> dict[str, Any]:
    """Return the variables of ``use.md.j2`` about the runtimes that run a checkpoint.

    Args:
        readings: What each runtime but transformers would run.
        name: The name of the checkpoint's folder.
        was_run: Whether transformers ran the checkpoint.

    Returns:
        ``runtimes``: the rows of a table: a runtime that runs the checkpoint, what was checked, commands. ``refusals``:
        a sentence for each other runtime. ``has_code``: whether the checkpoint has code that raysearch has written.
    """
    rows = [(f"transformers {version_of('transformers')}", "run" if was_run else "its files", "as above")]
    for reading in readings:
        if not reading.fits:
            continue
        runtime = RUNTIMES[reading.runtime]
        checked = "its rules" if reading.ran is None else f"run: {markdown_line(reading.ran)}"
        commands = ", then ".join(f"`{command}`" for command in runtime.commands(f"./{name}", reading.has_code))
        rows.append((runtime.text, checked, commands))
        if runtime is LLAMA_CPP:
            model = shlex.quote(name.lower().replace(" ", "-"))
            modelfile = f"a `Modelfile` with the line `FROM ./{name}.gguf`, then `ollama create {model}`"
            rows.append(("Ollama", "as llama.cpp", modelfile))
    refusals = [reading.sentence for reading in readings if not reading.fits]
    return {"runtimes": rows, "refusals": refusals, "has_code": any(reading.has_code for reading in readings)}


def verified_text(
    max_logit_difference: float | None, not_run: str | None, *, has_code: bool = False, is_scaled: bool = False
) -> str:
    """Return how an exported checkpoint was compared with the masked dense model, as a sentence.

    Args:
        max_logit_difference: The largest difference of their logits, relative to the largest |logit|; None if only the
            files were compared.
        not_run: Why they were not run, as a clause; None if they were run.
        has_code: Whether raysearch has written code into the checkpoint, which transformers has run.
        is_scaled: Whether the masked model multiplies its state by factors at its cuts.

    Returns:
        The sentence.
    """
    if max_logit_difference is None:
        return (
            f"The model was not run, since {not_run}. Every tensor was compared with its source, byte by byte, and the "
            "weights belong to the model that transformers builds from the config."
        )
    transformers = "transformers with its code" if has_code else "plain transformers"
    masked_model = "the masked dense model with these factors" if is_scaled else "the masked dense model"
    return (
        f"The checkpoint was loaded by {transformers} and compared with {masked_model}; largest logit difference "
        f"{max_logit_difference:.2g}."
    )


def fields_of_card(source: Path) -> dict[str, str]:
    """Return the fields of the dense model's card that also hold for a pruned checkpoint: its licence and its task.

    Args:
        source: The folder of the dense model. Without a card there are no fields.
    """
    card = source / "README.md"
    if not card.is_file():
        return {}
    from huggingface_hub import ModelCard

    try:
        fields = ModelCard.load(card, ignore_metadata_errors=True).data.to_dict()
    except ValueError:  # its header is no YAML
        return {}
    return {name: str(fields[name]) for name in _SOURCE_FIELDS if fields.get(name)}


def gguf_card(mask: Mask, sites: Sites, evidence: Evidence, export: GGUFExport) -> str:
    """Return the README.md of a repository that holds a pruned GGUF file.

    Args:
        mask: The removed layers and halves.
        sites: The sites of the dense model.
        evidence: The search that found the mask.
        export: The file.

    Returns:
        The text, in Markdown with a header in YAML.
    """
    share = export.size_bytes / export.source_bytes
    rows = [
        _layers_row(mask, sites),
        ("size", f"{export.source_bytes / 1e6:,.1f} MB", f"{export.size_bytes / 1e6:,.1f} MB ({share:.1%})"),
        *_loss_rows(evidence),
    ]
    return render_card(
        Path(__file__).with_name("gguf.md.j2"),
        mask=mask,
        sites=sites,
        evidence=evidence,
        rows=rows,
        removed=removed_text(mask, sites),
        blocks=_changed_blocks(mask, sites),
        export=export,
        is_deci=export.architecture == deci.NAME,
        version=LLAMA_CPP.version,
    )


def _layers_row(mask: Mask, sites: Sites) -> tuple[str, int, int]:
    """Return the row of a card's table about the number of layers: name, of the dense model, of the pruned model."""
    return "layers", sites.n_layers, len(sites.blocks(mask))


def _changed_blocks(mask: Mask, sites: Sites) -> list[tuple[int, int | str, int | str]]:
    """Return the layers that are no layers of the dense model: number, layer of the attention, layer of the MLP."""
    return [
        (number, "none" if block.attention is None else block.attention, "none" if block.mlp is None else block.mlp)
        for number, block in enumerate(sites.blocks(mask))
        if block.attention != block.mlp
    ]


def _loss_rows(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Return the rows of a card's table about the loss: name, value of the dense model, value of the pruned model."""
    measure = evidence.measure
    rows = [(f"loss ({measure.unit})", f"{evidence.dense_loss:.4f}", f"{evidence.loss:.4f}")]
    if measure.readout is not None:
        dense_readout = measure.read(evidence.dense_loss)
        pruned_readout = measure.read(evidence.loss)
        rows.append((measure.readout, f"{dense_readout:.4f}", f"{pruned_readout:.4f}"))
    if evidence.delta_error is not None:
        delta = added(evidence.loss - evidence.dense_loss, evidence.delta_error)
        rows.append(("loss over dense, ± its standard error", "", delta))
    return rows


def export_record(mask: Mask, sites: Sites, evidence: Evidence, scales: Sequence[Scale] = ()) -> str:
    """Return the text of `RECORD`: the mask and the evidence, as JSON.

    Args:
        mask: The removed layers.
        sites: The sites of the dense model.
        evidence: The search that found the mask.
        scales: The factors of the mask's cuts, which the weights hold.

    Returns:
        JSON text that ends in a line break. Secrets are redacted.
    """
    record: dict[str, Any] = {"mask": mask.parts, "n_layers_dense": sites.n_layers, "evidence": asdict(evidence)}
    if evidence.size is None:
        del record["evidence"]["size"]
    if scales:
        record["scales"] = [asdict(scale) for scale in scales]
    if mask.halves:  # the layers of the dense model in which each layer has its attention and its MLP
        record["blocks"] = [block._asdict() for block in sites.blocks(mask)]
    return json.dumps(redacted(record), indent=2) + "\n"


def render_card(template: Path, **values: Any) -> str:
    """Return a model card.

    Args:
        template: The template's file.
        values: The variables of the template. Templates of checkpoints include ``use.md.j2``, about loading, which
            needs ``name``, ``tokenizer``, ``auto_class``, and the values of `runtime_values`.

    Returns:
        The text, in Markdown with a header in YAML.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"md": markdown_line, "quoted": json.dumps, "shell": shlex.quote}
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)
