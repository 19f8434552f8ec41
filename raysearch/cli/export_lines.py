"""The lines on an export: its size, its check, and the commands that run it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from raysearch.checkpoints import deci
from raysearch.checkpoints.runtimes import RUNTIMES
from raysearch.text.numbers import count

if TYPE_CHECKING:  # slow to import, and `raysearch show` does not need them
    from raysearch.checkpoints.gguf_healing import HealedGGUF
    from raysearch.checkpoints.gguf_pruning import GGUFExport
    from raysearch.checkpoints.runtimes import Reading
    from raysearch.models.export import ExportResult
    from raysearch.recovery.export import RecoveredExport


def checkpoint_lines(export: ExportResult, out: Path, prompt: str | None, public: bool) -> list[str]:
    """Return the lines on an exported checkpoint: its size, its check, and the command that runs it.

    Args:
        export: The export.
        out: The folder, as the user typed it.
        prompt: The text that both models continued, if any.
        public: Whether the repository of an upload is public.

    Returns:
        The lines, in the order in which they are printed.
    """
    size = f"{export.parameters / 1e6:,.1f} M parameters"
    size_dense = f"{export.parameters_dense / 1e6:,.1f} M parameters"
    has_code = any(reading.has_code for reading in export.readings)
    transformers = "transformers and the code in it (trust_remote_code=True)" if has_code else "plain transformers"
    lines = [
        f"Wrote {out}: {export.n_layers} layers, {size} instead of {size_dense}.",
        f"It was not run, since {export.not_run}; every tensor was compared with its source, byte by byte."
        if export.max_logit_difference is None
        else f"Reloaded with {transformers}; largest logit difference {export.max_logit_difference:.2g}.",
        *_scale_lines(export),
        *([] if export.image_text is None else [export.image_text]),
        *_runtime_lines(export.readings, out),
        *_pushed(export.url, public),
    ]
    if export.adapter is not None:
        lines.append(
            f"Adapter: {quote(str(out.expanduser() / export.adapter.name))}, for the model that "
            "export --without-adapter writes."
        )
    if prompt is not None:
        lines += [f"Before: {prompt}{export.before}", f"After:  {prompt}{export.after}"]
    return lines


def _scale_lines(export: ExportResult) -> list[str]:
    """Return the line on the tensors that hold the scales at the cuts, if any do."""
    if not export.changed:
        return []
    return [f"The scales at its cuts changed {count(len(export.changed), 'tensor')}; README.md names them."]


def gguf_lines(export: GGUFExport, out: Path, public: bool) -> list[str]:
    """Return the lines on an exported GGUF file: its size, and the commands that run it.

    Args:
        export: The export.
        out: The file, as the user typed it.
        public: Whether the repository of an upload is public.

    Returns:
        The lines, in the order in which they are printed.
    """
    size = f"{export.size_bytes / 1e6:,.1f} MB"
    size_dense = f"{export.source_bytes / 1e6:,.1f} MB"
    name = quote(out.stem.lower().replace(" ", "-"))
    ollama = f"Ollama: echo 'FROM ./{out.name}' > Modelfile && ollama create {name}"
    if export.architecture == deci.NAME:
        ollama = "Ollama runs it if its copy of llama.cpp has this architecture."
    elif export.build is not None:
        ollama = "Older builds, and engines of Ollama, infer the kind of a layer from its place and run another model."
    requirement = f" ({export.requirement})" if export.requirement else ""
    return [
        f"Wrote {out}: {export.n_layers} layers, {size} instead of {size_dense}.",
        " ".join([f"Every remaining tensor has the same bytes as in {export.source_text}.", *export.changes]),
        f"llama.cpp{requirement}: llama-cli -m {quote(str(out.expanduser()))}",
        ollama,
        *_pushed(export.url, public),
    ]


def recovered_lines(export: RecoveredExport, out: Path, public: bool) -> list[str]:
    """Return the lines on the copy of a recovered model.

    Args:
        export: The export.
        out: The folder, as the user typed it.
        public: Whether the repository of an upload is public.

    Returns:
        One line, and another one on an upload.
    """
    return [
        f"Wrote {out}: the model of {export.recovery_id}, as it is in {export.source}.",
        *_pushed(export.url, public),
    ]


def healed_lines(export: HealedGGUF, out: Path) -> list[str]:
    """Return the lines on the GGUF file of a recovered model: its size, its tensors, and the commands that run it.

    Args:
        export: The export.
        out: The file, as the user typed it.

    Returns:
        The lines, in the order in which they are printed.
    """
    size_line, _, *run_lines = gguf_lines(export.file, out, public=False)
    changed = f"The recovery changed {count(len(export.changed), 'tensor')} ({_tensors_text(export.changed)})"
    same = f"{changed}; the others have the same bytes as in {export.file.source_text}."
    lines = [size_line, " ".join([same, *export.file.changes])]
    if export.coarser:
        lines.append(
            f"Those that were {' or '.join(export.coarser)} are Q8_0 now, as fewer bits would round the change away."
        )
    if export.command is not None:
        lines.append(f"For a smaller file that keeps less of the change: {export.command}")
    return [*lines, *run_lines]


def _tensors_text(names: Sequence[str]) -> str:
    """Return the names of tensors of a GGUF file, by kind: ``ffn_down.weight of blocks 11, 13``."""
    blocks_of_kind: dict[str, list[str]] = {}
    for name in names:
        _, _, in_block = name.partition("blk.")
        block, _, kind = in_block.partition(".")
        blocks_of_kind.setdefault(kind or name, []).extend([block] if kind else [])
    return "; ".join(
        f"{kind} of blocks {', '.join(blocks)}" if blocks else kind for kind, blocks in blocks_of_kind.items()
    )


def _runtime_lines(readings: Sequence[Reading], out: Path) -> list[str]:
    """Return the lines on what runs a checkpoint and what does not, besides transformers."""
    lines = []
    by_rules = []
    for reading in readings:
        if reading.fits:
            runtime = RUNTIMES[reading.runtime]
            commands = " && ".join(runtime.commands(str(out.expanduser()), reading.has_code))
            if reading.ran is None:
                by_rules.append(f"  {runtime.text}: {commands}")
            else:
                lines.append(f"{runtime.text} ran it ({reading.ran}): {commands}")
    if by_rules:
        lines += ["Not run, but by their rules these run the same model:", *by_rules]
    return [*lines, *(reading.sentence for reading in readings if not reading.fits)]


def _pushed(url: str | None, public: bool) -> list[str]:
    return [] if url is None else [f"Sent to {url} ({'public' if public else 'private'})."]
