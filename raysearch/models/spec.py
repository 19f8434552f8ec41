"""The model to search, and its sizes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.errors import UserError, did_you_mean, redact

_DTYPES = ("auto", "float32", "bfloat16", "float16")
#: Other names of dtypes, by which a message knows what was meant.
DTYPE_ALIASES = {
    **dict.fromkeys(("bf16", "bfloat", "torch.bfloat16"), "bfloat16"),
    **dict.fromkeys(("f16", "fp16", "half", "torch.float16"), "float16"),
    **dict.fromkeys(("f32", "fp32", "float", "full", "torch.float32"), "float32"),
}
_ATTENTIONS = ("auto", "sdpa", "eager", "flash_attention_2")
#: The most that a replica on a CPU copies into the layout of fast kernels, in bytes: larger models share one copy of
#: their weights among the replicas of a machine. A loss must not depend on how much memory there is, so nor does this.
MOST_COPIED = 2**31


def label_of(name: str, path: str) -> str:
    """Return how a model is called where people read it.

    A file or a folder that has no name of its own is called by the last part of its path; a hub id stays as it is.
    """
    if name != redact(path):
        return name
    local = Path(os.path.expanduser(name))
    if local.suffix.lower() == ".gguf":
        return local.stem
    is_folder = name.startswith((".", "/", "~")) or name.count("/") > 1 or local.is_dir()
    return local.resolve().name if is_folder else name


@dataclass(frozen=True)
class ModelSpec:
    """Which model, and how it is held in memory.

    Args:
        name: The user's name for it, for messages, e.g. ``smollm2-135m``.
        path: A hub id, a folder, a ``.gguf`` file, or ``installed:<package>`` for a GGUF file inside a package.
        dtype: auto, float32, bfloat16 or float16; auto is the checkpoint's own, and for GGUF (whose weights are
            dequantised) bfloat16, but float32 on a CPU without instructions for that.
        device: auto, cpu, cuda or, with the backend inline, cuda:<index>; auto is CUDA when there is one.
        attention: auto, sdpa, eager or flash_attention_2; auto is sdpa where the architecture has it, else eager.
        revision: A branch, tag or commit of a hub id; None for its main branch.
        trust_remote_code: Whether code that comes with the checkpoint may run.
        compile: Whether layers are compiled by `torch.compile` before they evaluate masks.
        fused_head: Whether log-probabilities of tokens come from Liger's kernel (`raysearch.models.fused_head`).
        cache: The folder where a GGUF file is kept as safetensors, and what is known of files; None to read them
            each time.

    Raises:
        UserError: There is no such dtype or attention.
    """

    name: str
    path: str
    dtype: str = "auto"
    device: str = "auto"
    attention: str = "auto"
    revision: str | None = None
    trust_remote_code: bool = False
    compile: bool = False
    fused_head: bool = False
    cache: Path | None = None

    def __post_init__(self) -> None:
        for argument, value, known in (("dtype", self.dtype, _DTYPES), ("attention", self.attention, _ATTENTIONS)):
            if value not in known:
                meant = DTYPE_ALIASES.get(value.lower(), value)
                raise UserError(f"model.{argument}={value} is unknown; {did_you_mean(meant, known)}")

    @property
    def label(self) -> str:
        """The name in titles, cards and tables: without folders where the user named the model by a local path."""
        return label_of(self.name, self.path)


@dataclass(frozen=True, kw_only=True)
class LocatedModel(ModelSpec):
    """A model whose files are found, by `raysearch.models.source.locate`.

    Its device is a torch device, which this machine may not have, and auto as its dtype is the checkpoint's own.
    """

    location: str  #: a folder, or a hub id
    is_hub: bool = False
    digest: str | None = None  #: the SHA-256 of the GGUF file that it is; None for others
    gguf: str | None = None  #: that file in the folder; None if the folder holds it as safetensors
    keep_in: Path | None = None  #: the folder to keep it in as safetensors; None for nowhere

    @property
    def folder(self) -> Path:
        """The local folder; meaningless for a hub id."""
        return Path(self.location)

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on a GPU."""
        return self.device != "cpu"

    @property
    def is_kept(self) -> bool:
        """Whether it is our own copy of a GGUF file, which nobody changes."""
        return self.digest is not None and self.gguf is None


@dataclass(frozen=True)
class ModelInfo:
    """The sizes of a model, from its config alone; tied weights count once."""

    model: LocatedModel  #: one of the hub at the commit that its fingerprint names
    n_layers: int  #: N, the layers of the dense model
    parameters: int  #: of the whole model
    layer_parameters: tuple[int, ...]
    head_parameters: int  #: of the output head, also when tied to the input embedding
    vocab_size: int  #: in tokens
    hidden_size: int  #: d, the width of the hidden state
    max_positions: int | None  #: the longest sequence the model was made for, in tokens; None when it has no such limit
    dtype: str  #: of the weights in memory, e.g. ``bfloat16``
    unwritable: str | None = None  #: the quantisation for which transformers writes no pruned model, if it is so

    @property
    def weight_bytes(self) -> int:
        """The memory of its weights."""
        return self.parameters * (4 if self.dtype == "float32" else 2)

    @property
    def numerics(self) -> dict[str, Any]:
        """All but weights, tokens and threads that the last bits of a number depend on."""
        model = self.model
        chosen = {name: True for name in ("compile", "fused_head") if getattr(model, name)}
        return {"dtype": self.dtype, "attention": model.attention, "device": model.device.partition(":")[0], **chosen}
