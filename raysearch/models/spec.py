"""The model to search, and its sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raysearch.checkpoints.gguf_parts import name_of_whole
from raysearch.checkpoints.gguf_pruning import ModelSizes
from raysearch.core.site import Sites
from raysearch.errors import UserError
from raysearch.text.sentences import did_you_mean

_DTYPES = ("auto", "float32", "bfloat16", "float16")
#: Other names of dtypes, for the suggestion of an error message.
DTYPE_ALIASES = {
    **dict.fromkeys(("bf16", "bfloat", "torch.bfloat16"), "bfloat16"),
    **dict.fromkeys(("f16", "fp16", "half", "torch.float16"), "float16"),
    **dict.fromkeys(("f32", "fp32", "float", "full", "torch.float32"), "float32"),
}
_ATTENTIONS = ("auto", "sdpa", "eager", "flash_attention_2")
#: The largest size of weights, in bytes, that a replica on a CPU copies into the layout of fast kernels. The replicas
#: of a machine share one copy of the weights of larger models. This is a constant, since losses must not depend on the
#: machine's memory.
MAX_COPIED_BYTES = 2**31


def label_of(name: str, path: str, adapter: str | None = None) -> str:
    """Return the name of a model for people: in titles, cards and tables.

    Args:
        name: The user's name for the model, which may be its path.
        path: Its path, as in `ModelSpec`.
        adapter: The folder of its adapter; None if it has none.

    Returns:
        The last part of the path, if the name is a local path; otherwise the name. The name of the adapter's folder
        follows.
    """
    if adapter is not None:
        return f"{label_of(name, path)} + {Path(adapter).absolute().name}"
    if name != path:
        return name
    local = Path(os.path.expanduser(name))
    if local.suffix.lower() == ".gguf":
        return name_of_whole(local)
    is_folder = name.startswith((".", "/", "~")) or name.count("/") > 1 or local.is_dir()
    return local.resolve().name if is_folder else name


@dataclass(frozen=True)
class ModelSpec:
    """The model to search, and its form in memory.

    Args:
        name: The user's name for it, for messages, e.g. ``smollm2-135m``.
        path: A hub id, a folder, a ``.gguf`` file, or ``installed:<package>`` for a GGUF file inside a package.
        dtype: auto, float32, bfloat16 or float16. auto is the checkpoint's dtype; for GGUF files, whose weights are
            dequantised, it is bfloat16, or float32 on a CPU without instructions for bfloat16.
        device: auto, cpu, cuda or, with the backend inline, ``cuda:<index>``. auto is CUDA if this machine has it.
        attention: auto, sdpa, eager or flash_attention_2. auto is sdpa if the architecture supports it, else eager.
        revision: A branch, tag or commit of a hub id; None for its main branch.
        trust_remote_code: Whether code of the checkpoint may run.
        compile: Whether layers are compiled by `torch.compile` before they evaluate masks.
        fused_head: Whether log-probabilities of tokens come from Liger's kernel (`raysearch.models.fused_head`).
        cache: The folder for GGUF files that are kept as safetensors, and for values that depend on files; None to
            read files each time.
        adapter: The folder of a LoRA adapter in peft's form, which is merged into the model in memory; None for none.
        halves: Whether the halves of its layers must be known, since masks may remove them.

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
    adapter: str | None = None
    halves: bool = False

    def __post_init__(self) -> None:
        for argument, value, choices in (("dtype", self.dtype, _DTYPES), ("attention", self.attention, _ATTENTIONS)):
            if value not in choices:
                meant = DTYPE_ALIASES.get(value.lower(), value)
                raise UserError(f"model.{argument}={value} is unknown; {did_you_mean(meant, choices)}")

    @property
    def label(self) -> str:
        """The name in titles, cards and tables, see `label_of`."""
        return label_of(self.name, self.path, self.adapter)


@dataclass(frozen=True, kw_only=True)
class LocatedModel(ModelSpec):
    """A model whose files were found by `raysearch.models.source.locate`.

    Its device is a torch device, which this machine may not have. If its dtype is auto, that is the checkpoint's dtype.

    Args:
        location: A folder, or a hub id.
        is_hub: Whether the location is a hub id.
        digest: The SHA-256 of the GGUF file; None if the model is not a GGUF file.
        gguf: The name of the GGUF file in the folder; None if the folder holds it as safetensors.
        copy_folder: The folder in which to keep the GGUF file as safetensors; None to keep it nowhere.
    """

    location: str
    is_hub: bool = False
    digest: str | None = None
    gguf: str | None = None
    copy_folder: Path | None = None

    @property
    def folder(self) -> Path:
        """The local folder. It has no meaning for a hub id."""
        return Path(self.location)

    def at(self, folder: Path) -> LocatedModel:
        """Return the model with its files in another folder, as config and safetensors, without an adapter."""
        return replace(self, location=str(folder), is_hub=False, revision=None, digest=None, gguf=None, adapter=None)

    @property
    def on_gpu(self) -> bool:
        """Whether the model runs on a GPU."""
        return self.device != "cpu"

    @property
    def is_copy(self) -> bool:
        """Whether the location is raysearch's copy of a GGUF file as safetensors, which nobody changes."""
        return self.digest is not None and self.gguf is None


@dataclass(frozen=True)
class ModelInfo:
    """The sizes of a model, which follow from its config; tied weights are counted once."""

    model: LocatedModel  #: the model; of a hub id, its revision is the commit
    sites: Sites  #: what a mask can remove
    parameters: int  #: of the whole model
    head_parameters: int  #: of the output head, even if it is tied to the input embedding
    vocab_size: int  #: in tokens
    hidden_size: int  #: d, the width of the hidden state, or of each of its streams
    max_positions: int | None  #: the model's longest sequence, in tokens; None for no limit
    dtype: str  #: of the weights in memory, e.g. ``bfloat16``
    n_streams: int = 1  #: the hidden states of a token that go from layer to layer
    image_layers: tuple[int, ...] = ()  #: the layers at whose places features of images are added; an export needs them
    #: The part of the config that describes the decoder.
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: The keys of the config by which runtimes find their code: ``architectures`` and ``model_type``.
    code: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def sizes(self) -> ModelSizes:
        """The sizes by which a GGUF file of another model is noticed."""
        return ModelSizes(self.model.name, self.sites, self.hidden_size, self.vocab_size)

    @property
    def weight_bytes(self) -> int:
        """The size of the weights in memory, in bytes."""
        return self.parameters * (4 if self.dtype == "float32" else 2)

    @property
    def numerics(self) -> dict[str, Any]:
        """The settings, besides weights, tokens and threads, that can change the last bits of a loss."""
        model = self.model
        options = {name: True for name in ("compile", "fused_head") if getattr(model, name)}
        return {"dtype": self.dtype, "attention": model.attention, "device": model.device.partition(":")[0], **options}
