"""What was compared of an exported checkpoint and the masked dense model, and the comparison of their files alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from raysearch.checkpoints.pruning import PrunedCheckpoint, wrong_names
from raysearch.checkpoints.safetensors_file import SlicedTensor
from raysearch.core.machine import memory_bytes
from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.meta_load import load_without_values
from raysearch.models.spec import ModelInfo

#: Why a large model is not run.
NO_MEMORY = "it does not fit into the memory"
#: The memory that running a model takes besides its weights: libraries, states, logits.
_OTHER_BYTES = 2**30


@dataclass(frozen=True)
class ExportProof:
    """What was compared of an exported checkpoint and the masked dense model.

    Args:
        parameters: The parameters of the checkpoint.
        parameters_dense: The parameters of the dense model.
        dtype: The dtype of the weights in memory, such as ``bfloat16``.
        auto_class: The name of the class that loads the checkpoint, such as ``AutoModelForCausalLM``.
        max_logit_difference: The largest difference of their logits, relative to the largest |logit|; None if only the
            files were compared.
        not_run: Why the models were not run, and only the files were compared; None if they were run.
        has_tokenizer: Whether the checkpoint has a tokenizer.
        has_image: Whether both models were run on an image, too.
        why_no_image: Why they were not run on an image, though the model reads images; None if it reads none, or if
            only the files were compared.
        before: The dense model's continuation of the prompt; None without a prompt.
        after: The checkpoint's continuation of it; None without a prompt.
    """

    parameters: int
    parameters_dense: int
    dtype: str
    auto_class: str
    max_logit_difference: float | None
    not_run: str | None
    has_tokenizer: bool
    has_image: bool = False
    why_no_image: str | None = None
    before: str | None = None
    after: str | None = None

    @property
    def image_text(self) -> str | None:
        """Whether an image was part of the comparison, as a sentence; None if the model reads no images."""
        if self.has_image:
            return "The comparison included an image, which the model's own processor encoded."
        return None if self.why_no_image is None else f"No image was part of the comparison: {self.why_no_image}."


class CannotRunError(UserError):
    """transformers cannot run the dense model on this machine.

    Args:
        name: The name of the model.
        reason: Why it cannot, as a clause.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"model={name} cannot be run: {reason}; export it without --prompt")
        self.reason = reason


def fits_in_memory(info: ModelInfo) -> bool:
    """Return whether a model can run on the CPU of this machine."""
    return info.weight_bytes + _OTHER_BYTES < memory_bytes()


def prove_by_files(
    folder: Path, pruned: PrunedCheckpoint, info: ModelInfo, mask: Mask, trust_remote_code: bool, not_run: str
) -> ExportProof:
    """Compare an exported checkpoint with the dense model without running them. torch is not imported here.

    Every tensor is compared with its source, byte by byte. Then transformers builds the model that the config
    describes, without values, and names the weights that are missing or left over. If it cannot read the quantisation,
    it builds the model without it, and names the modules that have no weights, and the weights that have no module.

    Args:
        folder: The checkpoint.
        pruned: What was written.
        info: The dense model.
        mask: The removed parts.
        trust_remote_code: Whether code of the checkpoint may run.
        not_run: Why the models are not run, as a clause.

    Returns:
        What was compared.

    Raises:
        UserError: A file has another content than was written.
        UnsupportedModelError: transformers does not load the checkpoint, or its config describes other weights.
    """
    pruned.check_written(folder)
    load = load_without_values(folder, trust_remote_code)
    if wrong := wrong_names(folder, len(pruned.kept), load.names):
        raise UnsupportedModelError(
            f"model={info.model.name} cannot be exported: the pruned checkpoint has other weights than its config "
            f"describes ({wrong[0]} …); choose another mask or architecture"
        )
    sliced = [tensor for tensor in pruned.tensors if isinstance(tensor, SlicedTensor)]
    n_sliced = sum(prod(tensor.source.shape) - prod(tensor.shape) for tensor in sliced)
    return ExportProof(
        parameters=info.parameters - info.sites.parameters(mask) - n_sliced,
        parameters_dense=info.parameters,
        dtype=info.dtype,
        auto_class=load.auto_class,
        max_logit_difference=None,
        not_run=not_run,
        has_tokenizer=(folder / "tokenizer_config.json").is_file(),
    )
