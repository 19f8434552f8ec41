"""Exports the mask of a finished search as a checkpoint or a GGUF file, with its evidence on a card.

To write a GGUF file, torch and transformers are not imported, since that would take longer than the export.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from raysearch.checkpoints.card import RECORD, Evidence, export_record, gguf_card
from raysearch.checkpoints.gguf_pruning import GGUFExport, prune_gguf
from raysearch.checkpoints.hub import HubRepository
from raysearch.core.space import LAYERS
from raysearch.core.trial import Trial
from raysearch.core.versions import VERSION
from raysearch.errors import UserError
from raysearch.evaluation.spec import CalibrationSpec
from raysearch.models.description import describe
from raysearch.models.loading import fingerprint
from raysearch.models.source import gguf_file, locate
from raysearch.models.spec import ModelSpec
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.spec import SearchSpec
from raysearch.text.redaction import redact

if TYPE_CHECKING:
    from raysearch.models.export import ExportResult


def export_search(
    record: SearchRecord,
    spec: SearchSpec,
    out: Path,
    *,
    remove: int | None = None,
    overwrite: bool = False,
    prompt: str | None = None,
    without_adapter: bool = False,
    push: HubRepository | None = None,
    ran: Mapping[str, str] | None = None,
) -> ExportResult:
    """Write the model without the parts of a mask as a checkpoint.

    Args:
        record: The search.
        spec: Its specification.
        out: The folder.
        remove: The number of removed layers; None for the mask of the search, else the best mask of that size.
        overwrite: Whether an existing folder is replaced.
        prompt: A text that both models continue, as a spot check; None for none.
        without_adapter: Whether to write the model without the adapter that was merged for the search.
        push: The repository of the hub to upload to; None for none.
        ran: What runtimes that have run the mask have shown, by their names, see `Evidence.ran`.

    Returns:
        The files and the checks of the export.

    Raises:
        UserError: The search has not finished or has no such mask, the model has changed since, the folder or the model
            cannot be used, or the hub refuses the upload.
    """
    from raysearch.models.export import export_checkpoint

    model = spec.evaluation.model
    trial = record.best_of_size(remove)
    record.check_weights(fingerprint(locate(model)))
    if push is not None:
        push.check()
    if without_adapter:
        model = _without_adapter(model)
    evidence = replace(_evidence(record, spec, trial, model), ran=ran or {})
    exported = export_checkpoint(
        model, trial.mask, out, overwrite=overwrite, evidence=evidence, prompt=prompt, scales=trial.scales
    )
    if push is None:
        return exported
    files = {
        file.relative_to(exported.out).as_posix(): file for file in sorted(exported.out.rglob("*")) if file.is_file()
    }
    return replace(exported, url=push.send(files, out))


def _without_adapter(model: ModelSpec) -> ModelSpec:
    """Return a model without its adapter."""
    if model.adapter is None:
        raise UserError("--without-adapter: the search had no model.adapter; leave it out")
    return replace(model, adapter=None)


def _evidence(record: SearchRecord, spec: SearchSpec, trial: Trial, model: ModelSpec) -> Evidence:
    """Return the evidence for a card.

    Args:
        record: The search.
        spec: Its specification.
        trial: The mask that is exported.
        model: The model that is exported.

    Returns:
        The evidence.
    """
    evaluation = spec.evaluation
    adapter = evaluation.model.adapter
    result = record.finished_result
    assert trial.loss is not None, "best masks have a loss"
    return Evidence(
        model=model.label,
        searcher=_searcher_text(spec),
        objective=record.settings.choices["objective"],
        calibration="; ".join(_calibration_text(calibration) for calibration in evaluation.calibrations),
        measure=result.measure,
        dense_loss=result.dense_loss,
        loss=trial.loss,
        delta_error=result.delta_error if trial.mask == result.mask else None,
        evaluations=result.work.evaluations.requested,
        layer_forwards=round(result.work.layer_forwards.whole),
        search_s=result.work.seconds,
        search_id=record.search_id,
        version=VERSION,
        adapter=None if adapter is None else Path(adapter).absolute().name,
        size=None if spec.space is LAYERS else spec.space.size_of(trial.mask),
    )


def export_search_as_gguf(
    record: SearchRecord,
    spec: SearchSpec,
    out: Path,
    *,
    source: Path | None = None,
    remove: int | None = None,
    overwrite: bool = False,
    without_adapter: bool = False,
    push: HubRepository | None = None,
) -> GGUFExport:
    """Write a GGUF file without the parts of a mask, whose tensors keep their bytes.

    Args:
        record: The search.
        spec: Its specification.
        out: The new file.
        source: A GGUF file of the same model, in any quantisation; None for the file that was searched.
        remove: The number of removed layers; None for the mask of the search, else the best mask of that size.
        overwrite: Whether an existing file is replaced.
        without_adapter: Whether to write the model without the adapter that was merged for the search.
        push: The repository of the hub to upload to; None for none.

    Returns:
        The file and its sizes.

    Raises:
        UserError: The search has not finished or has no such mask, it was not of a GGUF file and `source` is None, the
            file is of another model or cannot be pruned, the masks are repaired, or the hub refuses the upload.
    """
    model = spec.evaluation.model
    trial = record.best_of_size(remove)
    if spec.is_repaired:
        raise UserError(
            f"--gguf={out} keeps the bytes of all tensors, and repair={spec.evaluation.repair} changes some; export "
            "with --out and convert that by llama.cpp's convert_hf_to_gguf.py"
        )
    searched = model
    if without_adapter:
        model = _without_adapter(model)
    if source is None:
        source = searched_gguf(model, out)
        record.check_weights(fingerprint(locate(searched)))
    info = describe(model)
    if push is not None:
        push.check()
    exported = prune_gguf(source, trial.mask, out, sizes=info.sizes, overwrite=overwrite, search_id=record.search_id)
    if push is None:
        return exported
    evidence = _evidence(record, spec, trial, model)
    card = gguf_card(trial.mask, info.sites, evidence, exported)
    entry = export_record(trial.mask, info.sites, evidence)
    return replace(exported, url=push.send({out.name: out, "README.md": redact(card), RECORD: entry}, out))


def searched_gguf(model: ModelSpec, out: Path) -> Path:
    """Return the GGUF file that was searched.

    Args:
        model: The searched model.
        out: The file to write, for messages.

    Returns:
        The path of the file.

    Raises:
        UserError: The model is no GGUF file, or it has an adapter, which the file does not hold.
    """
    source = gguf_file(model)
    if source is None:
        raise UserError(f"--gguf={out} needs a GGUF file, and {model.name} is none; name one with --from")
    if model.adapter is not None:
        raise UserError(
            f"--gguf={out} would lose model.adapter={model.adapter}, which is not in {source}; export with --out and "
            "convert that by llama.cpp's convert_hf_to_gguf.py, name a GGUF file of the merged model with --from, or "
            "leave the adapter out with --without-adapter"
        )
    return source


def _calibration_text(spec: CalibrationSpec) -> str:
    """Return the source and the number of samples: ``perplexity on sotu, 16 x 256 tokens, sequential, seed 0``."""
    draw = spec.data.draw
    split = ", from an evaluation split" if "evaluation_split" in spec.data.rows.describe() else ""
    return f"{spec.name}, {draw.samples} x {draw.seq_len} tokens, {draw.sampling}, seed {draw.seed}{split}"


def _searcher_text(spec: SearchSpec) -> str:
    """Return a searcher and the options that differ from the defaults of its class: ``beam(width=3)``."""
    options = []
    for option in fields(spec.searcher):  # type: ignore[arg-type]
        value = getattr(spec.searcher, option.name)
        if value != option.default:
            options.append(f"{option.name}={value}")
    return f"{spec.searcher_name}({', '.join(options)})" if options else spec.searcher_name
