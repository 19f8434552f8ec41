"""A recovered model as a checkpoint elsewhere, or as a GGUF file."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from raysearch.errors import UserError
from raysearch.ledger.ledger import Ledger
from raysearch.models.export import check_destination, replacing
from raysearch.models.gguf_healing import HealedGGUF, heal_gguf
from raysearch.models.hub import HubRepository
from raysearch.models.loading import describe, fingerprint
from raysearch.models.source import gguf_file, locate
from raysearch.recovery.checkpoint import written_by
from raysearch.recovery.record import RecoveryRecord, recoveries_of_search
from raysearch.searching.export import export_search
from raysearch.searching.record import SearchRecord
from raysearch.searching.spec import SearchSpec


@dataclass(frozen=True)
class RecoveredExport:
    """A recovered checkpoint that was written to another folder.

    Args:
        source: The folder that the recovery wrote.
        url: Where on the Hugging Face Hub it is; None if it was not sent there.
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
    """Write the last recovered model of a search's mask to another folder, and to the hub if it is to be there.

    The arguments are those of `export_search`.

    Raises:
        UserError: The mask was not recovered, its checkpoint has gone, or the folder cannot be used.
    """
    recovery = last_recovery(record, ledger, remove)
    source, out = Path(recovery.out), out.absolute()
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

    The arguments are those of `export_search_as_gguf`.

    Raises:
        UserError: The mask was not recovered, its checkpoint has gone, no GGUF file is named, or that is of another
            model or cannot be pruned.
    """
    model, recovery = spec.evaluation.model, last_recovery(record, ledger, remove)
    source = source or gguf_file(model)
    if source is None:
        raise UserError(f"--gguf={out} needs a GGUF file, and {model.name} is none; name one with --from")
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
            info=info,
            search_id=record.search_id,
            overwrite=overwrite,
        )


def last_recovery(record: SearchRecord, ledger: Ledger, remove: int | None) -> RecoveryRecord:
    """Return the last recovery of a search's mask whose checkpoint is still there."""
    mask = record.best_of_size(remove).mask
    recoveries = [one for one in recoveries_of_search(ledger, record) if one.mask == mask and one.out]
    if not recoveries:
        raise UserError(
            f"--recovered: {mask} has no recovered checkpoint; first: raysearch recover {record.search_id} --out DIR"
        )
    there = [one for one in recoveries if written_by(Path(one.out)) == one.recovery_id]
    if not there:
        folders = " and ".join(one.out for one in recoveries)
        raise UserError(
            f"--recovered: the recovered checkpoint of {mask} is no longer in {folders}; put it back, or recover again"
        )
    return there[-1]
