"""Exports a recovered model: copies its checkpoint to another folder, or writes it as a GGUF file."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from raysearch.checkpoints.gguf_healing import HealedGGUF, heal_gguf
from raysearch.checkpoints.hub import HubRepository
from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.models.description import describe
from raysearch.models.export import check_destination, replacing
from raysearch.models.loading import fingerprint
from raysearch.models.source import locate
from raysearch.recovery.checkpoint import written_by
from raysearch.recovery.recovery_record import RecoveryRecord, recoveries_of_search
from raysearch.searching.export import export_search, searched_gguf
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.spec import SearchSpec


@dataclass(frozen=True)
class RecoveredExport:
    """A recovered checkpoint that was written to another folder.

    Args:
        out: The folder of the copy.
        recovery_id: The id of the recovery.
        source: The folder that the recovery wrote.
        url: Its address on the Hugging Face Hub; None if it was not uploaded.
    """

    out: Path
    recovery_id: str
    source: Path
    url: str | None = None


def export_recovered(
    record: SearchRecord,
    ledger: Ledger,
    spec: SearchSpec,
    out: Path,
    *,
    remove: int | None = None,
    overwrite: bool = False,
    push: HubRepository | None = None,
) -> RecoveredExport:
    """Copy the last recovered checkpoint of a search's mask to another folder, and upload it if requested.

    Args:
        record: The search's record.
        ledger: The ledger with the record.
        spec: The search's specification.
        out: The folder to write.
        remove: Export the recovery of the best mask of so many layers; None for the search's result.
        overwrite: Whether to replace an existing export.
        push: The repository of the Hugging Face Hub to upload to.

    Returns:
        The folder of the copy, the recovery, and the address of the upload.

    Raises:
        UserError: The mask was not recovered, its checkpoint no longer exists, or the folder cannot be used.
    """
    recovery = last_recovery(record, ledger, remove)
    source = Path(recovery.out)
    out = out.absolute()
    if push is not None:
        push.check()
    if out.resolve() != source.resolve():
        check_destination(locate(spec.evaluation.model), out, overwrite)
        with replacing(out) as folder:
            shutil.copytree(source, folder, dirs_exist_ok=True)
    url = None
    if push is not None:
        files = {file.relative_to(out).as_posix(): file for file in sorted(out.rglob("*")) if file.is_file()}
        url = push.send(files, out)
    return RecoveredExport(out, recovery.recovery_id, source, url)


def export_recovered_as_gguf(
    record: SearchRecord,
    ledger: Ledger,
    spec: SearchSpec,
    out: Path,
    *,
    source: Path | None = None,
    remove: int | None = None,
    overwrite: bool = False,
) -> HealedGGUF:
    """Write the last recovered model of a search's mask as a GGUF file.

    Args:
        record: The search's record.
        ledger: The ledger with the record.
        spec: The search's specification.
        out: The file to write.
        source: A GGUF file of the dense model; None for the file that was searched.
        remove: Export the recovery of the best mask of so many layers; None for the search's result.
        overwrite: Whether to replace an existing file.

    Returns:
        The file, and what the training changed in it.

    Raises:
        UserError: The mask was not recovered, its checkpoint no longer exists, no GGUF file is named, or the file is of
            another model or cannot be pruned.
    """
    model = spec.evaluation.model
    recovery = last_recovery(record, ledger, remove)
    source = source or searched_gguf(model, out)
    record.check_weights(fingerprint(locate(model)))
    info = describe(model)
    with tempfile.TemporaryDirectory(dir=ledger.path.parent) as scratch:
        pruned = Path(scratch) / "pruned"
        export_search(record, spec, pruned, remove=remove)
        return heal_gguf(
            source,
            recovery.mask,
            out,
            pruned=pruned,
            healed=Path(recovery.out),
            sizes=info.sizes,
            search_id=record.search_id,
            overwrite=overwrite,
        )


def last_recovery(record: SearchRecord, ledger: Ledger, remove: int | None) -> RecoveryRecord:
    """Return the last recovery of a search's mask whose checkpoint still exists; of a search in stages, its own.

    Args:
        record: The search's record.
        ledger: The ledger with the record.
        remove: The best mask of so many layers; None for the search's result.

    Returns:
        The record of the recovery.

    Raises:
        UserError: There is no such recovery.
    """
    mask = record.best_of_size(remove).mask
    staged = record.finished_result.staged
    recoveries = [
        recovery
        for recovery in recoveries_of_search(ledger, record)
        if recovery.mask == mask and recovery.out and (staged is None or recovery.recovery_id == staged.recovery_id)
    ]
    if not recoveries:
        raise UserError(
            f"--recovered: {mask} has no recovered checkpoint; first: raysearch recover {record.search_id} --out DIR"
        )
    existing = [recovery for recovery in recoveries if written_by(Path(recovery.out)) == recovery.recovery_id]
    if not existing:
        folders = " and ".join(recovery.out for recovery in recoveries)
        raise UserError(
            f"--recovered: the recovered checkpoint of {mask} is no longer in {folders}; put it back, or recover again"
        )
    return existing[-1]
