"""Exports a pruned model as a checkpoint that transformers, vLLM and, in most cases, llama.cpp load without changes.

The checkpoint is cut out of the dense model's files next to its destination, loaded by plain transformers, compared
with the masked dense model, and only then renamed. So `out` is either complete and verified, or unchanged.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from raysearch.checkpoints.adapter import ADAPTER_FOLDER
from raysearch.checkpoints.card import (
    RECORD,
    Evidence,
    Pruned,
    export_record,
    fields_of_card,
    mergekit_yaml,
    model_card,
    verified_text,
)
from raysearch.checkpoints.checkpoint import Checkpoint
from raysearch.checkpoints.config_process import config_writer
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.pruning import PrunedCheckpoint
from raysearch.checkpoints.runtimes import Reading, readings
from raysearch.checkpoints.safetensors_file import FileTensor
from raysearch.checkpoints.side_files import mend_tokenizer_config
from raysearch.core.mask import Mask
from raysearch.core.paths import as_path
from raysearch.core.scale import Scale
from raysearch.errors import UserError
from raysearch.models.description import describe
from raysearch.models.export_proof import NO_MEMORY, CannotRunError, ExportProof, fits_in_memory, prove_by_files
from raysearch.models.loading import load_tokenizer, write_as_safetensors
from raysearch.models.reading import folder_of_checkpoint
from raysearch.models.source import locate
from raysearch.models.spec import LocatedModel, ModelInfo, ModelSpec
from raysearch.text.redaction import redact
from raysearch.text.sentences import what_failed


@dataclass(frozen=True)
class ExportResult:
    """The written checkpoint and its verification.

    Args:
        out: The folder of the checkpoint.
        n_layers: The layers of the pruned model.
        parameters: The parameters of the pruned model.
        parameters_dense: The parameters of the dense model.
        max_logit_difference: The largest difference between the reloaded checkpoint's logits and the masked dense
            model's, relative to the largest |logit|; None if the files were compared byte by byte instead.
        not_run: Why the models were not run: they do not fit into the memory, or transformers cannot run the quantised
            weights on this machine; None if they were run.
        before: The dense model's continuation of the prompt; None without a prompt.
        after: The reloaded checkpoint's continuation of it; None without a prompt.
        search_id: The search that found the mask; None if there is no such search.
        image_text: Whether an image was part of the comparison, as a sentence; None if the model reads no images.
        readings: What each runtime but transformers would run.
        adapter: The folder of the adapter for the pruned model without it; None if there is none.
        url: The address of the repository on the Hugging Face Hub; None if the checkpoint was not pushed.
        changed: The names of the tensors that hold the scales of the mask; empty if it is not repaired.
    """

    out: Path
    n_layers: int
    parameters: int
    parameters_dense: int
    max_logit_difference: float | None
    not_run: str | None
    before: str | None
    after: str | None
    search_id: str | None
    image_text: str | None = None
    readings: tuple[Reading, ...] = ()
    adapter: Path | None = None
    url: str | None = None
    changed: tuple[str, ...] = ()


def export_checkpoint(
    spec: ModelSpec,
    mask: Mask,
    out: Path,
    *,
    overwrite: bool,
    evidence: Evidence,
    prompt: str | None = None,
    scales: Sequence[Scale] = (),
) -> ExportResult:
    """Write the model without the mask's parts as an ordinary checkpoint, and verify it on the CPU.

    A model that does not fit into the memory, or whose quantised weights transformers cannot run on this machine, is
    verified by its files alone. An adapter is merged in memory; next to the merged checkpoint it is written for the
    pruned model without it.

    Args:
        spec: The dense model. Its dtype is that of the verification; its device and attention are ignored.
        mask: The parts to remove.
        out: The folder to write.
        overwrite: Whether to replace an earlier export in that folder. Other folders are never replaced.
        evidence: The search that found the mask, for the model card.
        prompt: A text that both models continue greedily, as a spot check; None for no check.
        scales: The factors of the cuts of the mask, which are folded into the weights; none if it is not repaired.

    Returns:
        The written checkpoint and its verification.

    Raises:
        UserError: `out` holds something else or cannot be written, the model cannot be loaded, there is a prompt but
            no tokenizer, or the model has an adapter or scales and does not fit into the memory.
        UnsupportedModelError: The reloaded checkpoint differs from the masked model: its layers depend on their places,
            and no config can express how; or no weights can hold the scales.
    """
    out = as_path("--out", out).absolute()
    located = locate(replace(spec, device="cpu", attention="auto"))
    check_destination(located, out, overwrite)
    info = describe(replace(spec, halves=bool(mask.halves)))
    sites = info.sites
    if prompt is not None and not fits_in_memory(info):
        raise UserError(f"--prompt={prompt}: {spec.name} does not fit into the memory to continue it; leave it out")
    if spec.adapter is not None and not fits_in_memory(info):
        raise UserError(
            f"model.adapter={spec.adapter}: {spec.name} does not fit into the memory to merge it; export it with "
            "--without-adapter"
        )
    if scales and not fits_in_memory(info):
        raise UserError(
            f"repair=scale: {spec.name} does not fit into the memory to change its weights; export it on a machine "
            "with more memory, or search with repair=none"
        )
    if prompt is not None:
        load_tokenizer(located)
    kept = kept_blocks(info, mask)
    with replacing(out) as folder, safetensors_folder(located) as source:
        changed: Sequence[str] = ()
        if scales:
            checkpoint, changed = _write_scaled(folder, source, located, kept, scales)
        elif located.adapter is None:
            checkpoint = write_files(folder, source, kept, located.trust_remote_code)
        else:
            checkpoint = _write_merged(folder, source, located, kept)
        if located.digest is not None:  # transformers has written the tokenizer of a GGUF file
            mend_tokenizer_config(folder)
        proof = _prove(folder, checkpoint, info, located, mask, prompt, scales)
        # A local path is of no use to other people.
        name = located.path if located.is_hub else None
        is_merged = located.adapter is not None
        pruned = Pruned(
            mask, sites, proof.parameters_dense, proof.parameters, proof.dtype, name, is_merged, tuple(scales), changed
        )
        runtimes = readings(folder, mask, sites, evidence.ran)
        _write_documents(folder, out.name, pruned, evidence, proof, source, runtimes)
        has_adapter = (folder / ADAPTER_FOLDER).is_dir()
    return ExportResult(
        out=out,
        n_layers=len(kept),
        parameters=proof.parameters,
        parameters_dense=proof.parameters_dense,
        max_logit_difference=proof.max_logit_difference,
        not_run=proof.not_run,
        before=proof.before,
        after=proof.after,
        search_id=evidence.search_id,
        image_text=proof.image_text,
        readings=runtimes,
        adapter=out / ADAPTER_FOLDER if has_adapter else None,
        changed=tuple(changed),
    )


def _prove(
    folder: Path,
    checkpoint: PrunedCheckpoint,
    info: ModelInfo,
    model: LocatedModel,
    mask: Mask,
    prompt: str | None,
    scales: Sequence[Scale],
) -> ExportProof:
    """Compare a written checkpoint with the masked dense model: by running them if that is possible, else by files.

    Args:
        folder: The checkpoint.
        checkpoint: What was written.
        info: The sizes of the dense model.
        model: The dense model.
        mask: The removed layers.
        prompt: A text that both models continue; None for none.
        scales: The factors of the cuts of the mask, which only a run can compare; none if it is not repaired.
    """
    not_run = NO_MEMORY
    if fits_in_memory(info):
        from raysearch.models.running_proof import prove_by_running  # imports torch, which the files do not need

        try:
            return prove_by_running(folder, model, mask, prompt, scales)
        except CannotRunError as error:
            if prompt is not None or scales:
                raise
            not_run = error.reason
    trusts = model.trust_remote_code or not checkpoint.kept.are_complete  # then the code is raysearch's
    return prove_by_files(folder, checkpoint, info, mask, trusts, not_run)


@contextlib.contextmanager
def safetensors_folder(model: LocatedModel) -> Iterator[Path]:
    """Yield the folder of a model's files: config, safetensors and all others.

    A GGUF file without a copy is read, and written as safetensors for the time of the context.

    Args:
        model: The model.

    Raises:
        UserError: The files cannot be read.
    """
    if model.gguf is None:
        yield folder_of_checkpoint(model)
        return
    with TemporaryDirectory() as temporary:
        write_as_safetensors(model, Path(temporary))
        yield Path(temporary)


def _write_merged(folder: Path, source: Path, model: LocatedModel, kept: KeptBlocks) -> PrunedCheckpoint:
    """Write the files of a model with its adapter without some parts, and the adapter for the model without it.

    Args:
        folder: An empty folder.
        source: The folder of the dense model.
        model: The model, with its adapter.
        kept: The layers of the pruned model.

    Returns:
        What was written.
    """
    from raysearch.models.adapter_export import MergedModel  # imports torch

    scratch = folder / ".merged"
    merged = MergedModel.of(model, source, kept.n_layers, scratch)
    checkpoint = write_files(folder, source, kept, model.trust_remote_code, with_values=merged.files)
    shutil.rmtree(scratch)
    merged.write_adapter(folder, kept)
    return checkpoint


def _write_scaled(
    folder: Path, source: Path, model: LocatedModel, kept: KeptBlocks, scales: Sequence[Scale]
) -> tuple[PrunedCheckpoint, list[str]]:
    """Write the files of a model without some layers, with scales in the weights of later layers.

    Args:
        folder: An empty folder.
        source: The folder of the dense model.
        model: The dense model.
        kept: The layers of the pruned model.
        scales: The factors of the cuts of the mask.

    Returns:
        What was written, and the names of its changed tensors.
    """
    from raysearch.models.scaled_weights import with_folded_scales  # imports torch

    scratch = folder / ".scaled"
    scaled = with_folded_scales(model, source, kept.mask, scales, scratch)
    checkpoint = write_files(folder, source, kept, model.trust_remote_code, with_values=scaled)
    shutil.rmtree(scratch)
    changed = [
        tensor.name for tensor in checkpoint.tensors if isinstance(tensor, FileTensor) and tensor.file.parent == scratch
    ]
    return checkpoint, changed


def write_files(
    folder: Path,
    source: Path,
    kept: KeptBlocks,
    trust_remote_code: bool,
    *,
    with_values: Checkpoint | None = None,
) -> PrunedCheckpoint:
    """Write the files of a checkpoint without some parts. torch is not imported.

    Args:
        folder: An empty folder.
        source: The folder of the dense model.
        kept: The layers of the pruned model.
        trust_remote_code: Whether code of the checkpoint may run, to read its config.
        with_values: The dense model with other values of some tensors; None for those of its files.

    Returns:
        What was written.

    Raises:
        UserError: The files of the dense model cannot be read.
        UnsupportedModelError: No config can describe the kept layers, or the tensors have names of an unknown form.
    """
    pruned = PrunedCheckpoint.of(with_values or Checkpoint.open(source), kept)
    with config_writer() as write_config:
        pruned.write(folder)
        write_config(
            folder,
            source,
            config=pruned.config,
            kept=kept,
            predicts=pruned.predicts,
            trust_remote_code=trust_remote_code,
        )
    return pruned


def kept_blocks(info: ModelInfo, mask: Mask) -> KeptBlocks:
    """Return the layers of a pruned model. torch is imported only if the mask has halves.

    Args:
        info: The dense model.
        mask: The parts to remove.

    Returns:
        The layers, with the half of each tensor if the mask has halves.

    Raises:
        UnsupportedModelError: The mask has halves, and a layer has none.
    """
    if not mask.halves:
        return KeptBlocks.without(mask, info.sites)
    from raysearch.models.half_names import names_of_halves

    return KeptBlocks.without(mask, info.sites, names_of_halves(info))


def check_destination(model: LocatedModel, out: Path, overwrite: bool) -> None:
    """Refuse a destination that must not be replaced.

    Args:
        model: The dense model, which is never replaced.
        out: The folder to write.
        overwrite: Whether an earlier export in that folder may be replaced.

    Raises:
        UserError: `out` is a file, contains the dense model or other files, or an export without `overwrite`.
    """
    destination = out.resolve()
    dense_folder = model.folder.resolve()
    if not model.is_hub and dense_folder.is_relative_to(destination):
        where = "" if dense_folder == destination else f" in {dense_folder.relative_to(destination)}"
        raise UserError(f"--out={out} holds the dense model itself{where}; write to another folder")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out={out} is a file; name a folder")
    if out.is_dir() and any(out.iterdir()):
        if not (out / RECORD).is_file():
            raise UserError(f"--out={out} holds other things than an export; name another folder")
        if not overwrite:
            raise UserError(f"--out={out} is not empty; name another folder, or replace it with --overwrite")


def _write_documents(
    folder: Path,
    name: str,
    pruned: Pruned,
    evidence: Evidence,
    proof: ExportProof,
    source: Path,
    runtimes: Sequence[Reading],
) -> None:
    """Write the model card, a recipe for mergekit and the record for programs.

    Args:
        folder: The checkpoint.
        name: Its name.
        pruned: The pruned model.
        evidence: The search that found the mask.
        proof: What was compared.
        source: The folder of the dense model, whose card names the licence.
        runtimes: What each runtime but transformers would run.
    """
    has_code = any(reading.has_code for reading in runtimes)
    verified = verified_text(
        proof.max_logit_difference, proof.not_run, has_code=has_code, is_scaled=bool(pruned.scales)
    )
    card = model_card(
        pruned,
        evidence,
        name,
        tokenizer=proof.has_tokenizer,
        verified=" ".join(filter(None, [verified, proof.image_text])),
        was_run=proof.not_run is None,
        readings=runtimes,
        auto_class=proof.auto_class,
        source_fields=fields_of_card(source),
        has_adapter=(folder / ADAPTER_FOLDER).is_dir(),
    )
    documents = {"README.md": redact(card), RECORD: export_record(pruned.mask, pruned.sites, evidence, pruned.scales)}
    if not pruned.is_merged and not pruned.mask.halves and not pruned.scales:
        documents["mergekit.yaml"] = redact(mergekit_yaml(pruned))
    for file, text in documents.items():
        (folder / file).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Yield a new folder next to `out` that replaces it on success and is deleted on failure.

    Another export to the same folder waits. So folders of these names that already exist were left by an export that
    was killed: an incomplete copy is removed, and a folder that was being replaced is put back if `out` is missing.

    Raises:
        UserError: `out` cannot be written.
    """
    partial = out.with_name(f".{out.name}.partial")
    replaced = out.with_name(f".{out.name}.replaced")
    lock = out.with_name(f".{out.name}.lock")

    def tidy() -> None:
        if replaced.exists() and not out.exists():
            os.rename(replaced, out)
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()  # if no file can be created, as in /proc, FileLock would wait forever
        with FileLock(lock, fallback_to_soft=False):
            try:
                tidy()
                partial.mkdir()
                yield partial
                if out.exists():
                    os.rename(out, replaced)
                os.rename(partial, out)
            finally:
                tidy()
                lock.unlink(missing_ok=True)
    except Exception as error:
        if not isinstance(error, OSError) and "(os error " not in str(error):  # how libraries in Rust word it
            raise
        cause = what_failed(error)
        remedy = "free some space on its disk" if "No space" in cause else "name another folder"
        raise UserError(f"--out={out} cannot be written ({cause}); {remedy}") from error
