"""From a finished search to a checkpoint or a GGUF file: what to export, and the evidence that goes on its card.

A GGUF file is written without torch and transformers, which take longer to import.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from raysearch.core.versions import VERSION
from raysearch.errors import UserError, redact
from raysearch.evaluation.spec import CalibrationSpec
from raysearch.models.card import RECORD, Evidence, export_record, gguf_card
from raysearch.models.gguf_pruning import GGUFExport, prune_gguf
from raysearch.models.hub import HubRepository
from raysearch.models.loading import describe, fingerprint
from raysearch.models.source import gguf_file, locate
from raysearch.searching.record import SearchRecord
from raysearch.searching.spec import SearchSpec
from raysearch.searching.trial import Trial

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
    push: HubRepository | None = None,
) -> ExportResult:
    """Write the model without the layers that a search removed; with `remove`, those of its best mask of that size.

    `prompt` is a text for both models to go on with, as a spot check.

    Raises:
        UserError: The search has not finished or has no such mask, the folder or the model cannot be used, that has
            changed since, or the hub does not take it.
    """
    from raysearch.models.export import export_checkpoint

    model, chosen = spec.evaluation.model, record.best_of_size(remove)
    record.check_weights(fingerprint(locate(model)))
    if push is not None:
        push.check()
    evidence = _evidence(record, spec, chosen)
    done = export_checkpoint(model, chosen.mask, out, overwrite=overwrite, evidence=evidence, prompt=prompt)
    if push is None:
        return done
    files = {file.relative_to(done.out).as_posix(): file for file in sorted(done.out.rglob("*")) if file.is_file()}
    return replace(done, url=push.send(files, out))


def _evidence(record: SearchRecord, spec: SearchSpec, chosen: Trial) -> Evidence:
    """Return what a card says of a search and the mask that is taken of it."""
    evaluation, result = spec.evaluation, record.found
    assert chosen.loss is not None, "best masks have one"
    return Evidence(
        model=evaluation.model.label,
        searcher=_in_brief(spec),
        objective=record.config["choices"]["objective"],
        calibration="; ".join(_calibration_in_brief(one) for one in evaluation.calibrations),
        measure=result.measure,
        dense_loss=result.dense_loss,
        loss=chosen.loss,
        delta_error=result.delta_error if chosen.mask == result.mask else None,
        evaluations=result.evaluations.requested,
        layer_forwards=round(result.layer_forwards.whole),
        search_s=result.seconds,
        search_id=record.search_id,
        version=VERSION,
    )


def export_search_as_gguf(
    record: SearchRecord,
    spec: SearchSpec,
    out: Path,
    *,
    source: Path | None = None,
    remove: int | None = None,
    overwrite: bool = False,
    push: HubRepository | None = None,
) -> GGUFExport:
    """Take the layers that a search removed out of a GGUF file; no other byte of its tensors changes.

    With `remove`, those of its best mask of that size go. `source` is of the same model in any quantisation; None for
    the file that was searched.

    Raises:
        UserError: The search has not finished or has no such mask, it was not of a GGUF file and none is named,
            that file is of another model or cannot be pruned, or the hub does not take it.
    """
    model, chosen = spec.evaluation.model, record.best_of_size(remove)
    if source is None:
        source = gguf_file(model)
        if source is None:
            raise UserError(f"--gguf={out} needs a GGUF file, and {model.name} is none; name one with --from")
        record.check_weights(fingerprint(locate(model)))
    info = describe(model)
    if push is not None:
        push.check()
    done = prune_gguf(source, chosen.mask, out, info=info, overwrite=overwrite, search_id=record.search_id)
    if push is None:
        return done
    evidence = _evidence(record, spec, chosen)
    written = (done.source_bytes, done.size_bytes)
    card = gguf_card(chosen.mask, info.n_layers, evidence, out.name, source.name, written, done.build)
    entry = export_record(chosen.mask, info.n_layers, evidence)
    return replace(done, url=push.send({out.name: out, "README.md": redact(card), RECORD: entry}, out))


def _calibration_in_brief(spec: CalibrationSpec) -> str:
    """Return the source and the number of samples: ``perplexity on sotu, 16 x 256 tokens, seed 0``."""
    draw = spec.data.draw
    flagged = ", from an evaluation split" if "evaluation_split" in spec.data.rows.describe() else ""
    return f"{spec.name}, {draw.samples} x {draw.seq_len} tokens, {draw.sampling}, seed {draw.seed}{flagged}"


def _in_brief(spec: SearchSpec) -> str:
    """Return a searcher and the options that are not its class's own: ``beam(width=3)``."""
    every = ((one, getattr(spec.searcher, one.name)) for one in fields(spec.searcher))  # type: ignore[arg-type]
    options = [f"{one.name}={value}" for one, value in every if value != one.default]
    return f"{spec.searcher_name}({', '.join(options)})" if options else spec.searcher_name
