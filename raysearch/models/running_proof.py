"""Proves that an exported checkpoint is the masked dense model: both are run, and what they compute is compared."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from raysearch.calibration.batch import Batch
from raysearch.calibration.formats.base import ImageQuestion
from raysearch.calibration.images import encode_question
from raysearch.checkpoints.config_rules import rules_of_place
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.pruning import wrong_names
from raysearch.checkpoints.quiet import quiet
from raysearch.checkpoints.safetensors_file import read_header
from raysearch.core.mask import Mask
from raysearch.core.scale import Scale
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.export_proof import CannotRunError, ExportProof
from raysearch.models.loading import load_config, load_model, load_processor, load_tokenizer, resolve_dtype
from raysearch.models.reading import (
    loaded_class,
    model_class,
    quantisation_of,
    takes_images,
    tokenizer_fingerprint,
)
from raysearch.models.spec import LocatedModel
from raysearch.models.stack import LayerStack
from raysearch.models.verification import (
    continuation,
    handed_to_layers,
    image_logits,
    probe_logits,
    relative_gap,
    why_mute,
)
from raysearch.text.sentences import first_line

#: The largest difference between the checkpoint's logits and the masked model's, relative to the largest |logit|. It
#: holds for 16 bits too, since both models compute in the same way.
_LARGEST_GAP = 1e-5
#: The same for a checkpoint whose weights hold scales: norms have an eps, and in files of 16 bits weights are rounded.
_LARGEST_GAP_OF_SCALES = 1e-3
_LARGEST_GAP_OF_ROUNDED_SCALES = 5e-2

_PICTURE_SHAPE = (56, 84)  # height x width, in pixels; a processor scales it as the model needs


@dataclass(frozen=True)
class _Masked:
    """What the masked dense model computes."""

    config: PreTrainedConfig  #: of the dense model
    kept: KeptBlocks  #: the layers of the pruned model
    parameters: int  #: of the dense model
    generates: bool
    on_tokens: _Outputs
    on_image: _Outputs | None  #: None if there is no image, or the model does not run on it
    why_not_run: str | None  #: why it does not run on the image; None if it does, or if there is none
    before: str | None


@dataclass(frozen=True)
class _Outputs:
    """What a model computes on a probe."""

    logits: Tensor
    handed: list[str]  #: what each kept layer is handed, see `handed_to_layers`

    @classmethod
    def of(cls, model: PreTrainedModel, stack: LayerStack, layers: Sequence[int], image: Batch | None) -> _Outputs:
        """Run a model.

        Args:
            model: The model.
            stack: The layers of the dense model, or of the model itself.
            layers: The layers of the stack that are compared.
            image: A row with an image; None for tokens alone.

        Returns:
            What it computes.
        """
        logits = probe_logits(model) if image is None else image_logits(model, image)
        handed = handed_to_layers(stack, image)
        return cls(logits, [handed[layer] for layer in layers])


def prove_by_running(
    folder: Path, model: LocatedModel, mask: Mask, prompt: str | None, scales: Sequence[Scale] = ()
) -> ExportProof:
    """Compare an exported checkpoint, loaded by plain transformers, with the masked dense model. Both run on the CPU.

    Args:
        folder: The checkpoint.
        model: The dense model.
        mask: The removed parts.
        prompt: A text that both models continue greedily, as a spot check; None for no check.
        scales: The factors of the cuts of the mask, which the checkpoint's weights hold; none if it is not repaired.

    Returns:
        What was compared.

    Raises:
        CannotRunError: transformers cannot run the quantised weights of the dense model on this machine.
        UserError: The dense model cannot be loaded, or there is a prompt but no tokenizer.
        UnsupportedModelError: The checkpoint cannot be loaded, or is another model, or the layers that stay do not run.
    """
    tokenizer = _tokenizer(model, prompt)
    image, why_no_image = _image_probe(model)
    masked = _run_masked(model, mask, scales, tokenizer, prompt, image)  # the dense model is freed before the next line
    why_no_image = why_no_image or masked.why_not_run
    kind = masked.config.model_type
    # The code of a checkpoint whose layers lack a half is raysearch's.
    exported = replace(model.at(folder), trust_remote_code=model.trust_remote_code or not masked.kept.are_complete)
    _check_tokenizer(exported, tokenizer)
    reloaded = _reload(exported, masked)
    places = rules_of_place(masked.config.get_text_config(), reloaded.config.get_text_config())
    stack = LayerStack(reloaded)
    largest_gap = _largest_gap(folder) if scales else _LARGEST_GAP
    gaps = []
    for probe, old in ((None, masked.on_tokens), (image, masked.on_image)):
        if old is None:
            continue
        new = _Outputs.of(reloaded, stack, range(len(masked.kept)), probe)
        on_image = "" if probe is None else " on an image"
        gap = relative_gap(new.logits, old.logits)
        if scales and not gap <= largest_gap:
            raise UnsupportedModelError(
                f"{kind} cannot be exported with repair=scale: the reloaded checkpoint's logits{on_image} differ by "
                f"{gap:.1e} of the largest from those of the scaled model without {mask}; search with repair=none"
            )
        if not gap <= largest_gap:
            raise UnsupportedModelError(
                f"{kind} cannot be exported without {mask}: the reloaded checkpoint's logits{on_image} differ by "
                f"{gap:.1e} of the largest, since its layers depend on their places{places}; choose another mask or "
                "architecture"
            )
        gaps.append(gap)
        if differing := [layer for layer in range(len(masked.kept)) if new.handed[layer] != old.handed[layer]]:
            raise UnsupportedModelError(
                f"{kind} cannot be exported without {mask}: the checkpoint's layer {differing[0]} is handed another "
                f"mask or other positions{on_image} than in the dense model{places}; choose another mask or "
                "architecture"
            )
    if masked.generates and (why := why_mute(reloaded)) is not None:
        raise UnsupportedModelError(
            f"{kind} cannot be exported without {mask}: transformers does not generate with the layers that are "
            f"left ({why}); choose a mask that keeps a layer of each kind"
        )
    return ExportProof(
        parameters=reloaded.num_parameters(),
        parameters_dense=masked.parameters,
        dtype=str(reloaded.dtype).removeprefix("torch."),
        auto_class=model_class(reloaded.config).__name__,
        max_logit_difference=max(gaps),
        not_run=None,
        has_image=masked.on_image is not None,
        why_no_image=why_no_image,
        has_tokenizer=tokenizer is not None,
        before=masked.before,
        after=continuation(reloaded, tokenizer, prompt),
    )


def _largest_gap(folder: Path) -> float:
    """Return the largest difference that scales in the weights of a checkpoint cause."""
    dtypes = {tensor.dtype for file in folder.glob("*.safetensors") for tensor in read_header(file)[1]}
    return _LARGEST_GAP_OF_ROUNDED_SCALES if dtypes & {"BF16", "F16"} else _LARGEST_GAP_OF_SCALES


def _tokenizer(model: LocatedModel, prompt: str | None) -> PreTrainedTokenizerBase | None:
    """Return the model's tokenizer; None if it has none and there is no prompt."""
    try:
        return load_tokenizer(model)
    except UserError:
        if prompt is not None:
            raise
        return None


def _check_tokenizer(exported: LocatedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Refuse a checkpoint whose tokenizer is not the dense model's."""
    if tokenizer is None:
        return
    written = load_tokenizer(exported)
    if tokenizer_fingerprint(written) != tokenizer_fingerprint(tokenizer):
        raise UnsupportedModelError(
            f"model={exported.name} cannot be exported: its tokenizer would read texts otherwise; use another "
            "checkpoint of it"
        )


def _image_probe(model: LocatedModel) -> tuple[Batch | None, str | None]:
    """Return a row with a small image, made by the model's processor; or the reason why it makes none.

    Both are None if the model reads text alone.
    """
    kind = loaded_class(load_config(model))
    if kind is not None and not takes_images(kind):
        return None, None
    question = ImageQuestion(("gradient",), "What is this?", "A gradient of colours.")
    try:
        row = encode_question(question, [_picture()], load_processor(model), "the image of the proof")
    except UserError as error:
        if kind is None:  # code of its own may read text alone
            return None, None
        # A local path is of no use to the readers of a model card.
        reason = str(error).replace(f" ({model.path})", "")
        return None, reason.replace(model.location, model.label).replace(f"model={model.name}", f"model={model.label}")
    return Batch.of([row.ids], [row.scored], images=(row.images,)), None


def _picture() -> npt.NDArray[np.uint8]:
    """Return a gradient of colours, [height, width, 3]."""
    height, width = _PICTURE_SHAPE
    down, across = np.mgrid[0:height, 0:width]
    return np.stack([255 * down // height, 255 * across // width, 3 * (down + across) % 256], axis=-1).astype(np.uint8)


def _outputs_on_tokens(stack: LayerStack, mask: Mask, scales: Sequence[Scale], is_quantised: bool) -> _Outputs:
    """Return what the dense model computes on tokens without a mask's layers."""
    kept = KeptBlocks.without(mask, stack.sites)
    with stack.bypassed(mask, scales) as masked:
        try:
            # The layer of an attention is handed the masks and positions that it reads.
            return _Outputs.of(masked, stack, kept.layers_of("attention"), None)
        except (TypeError, ValueError, AttributeError) as error:
            if is_quantised:  # a kernel may refuse this machine
                raise
            raise UnsupportedModelError(
                f"{stack.kind} cannot be exported without {mask}: a layer that stays needs what a removed layer passes "
                f"on ({type(error).__name__}: {first_line(error)}); choose another mask"
            ) from error


def _run_masked(
    model: LocatedModel,
    mask: Mask,
    scales: Sequence[Scale],
    tokenizer: PreTrainedTokenizerBase | None,
    prompt: str | None,
    image: Batch | None,
) -> _Masked:
    """Load the dense model, and return what it computes without the mask's layers."""
    quantisation = quantisation_of(load_config(model))
    try:
        stack = LayerStack(load_model(model))
        on_tokens = _outputs_on_tokens(stack, mask, scales, is_quantised=quantisation is not None)
    except UnsupportedModelError:
        raise
    except Exception as error:  # each method has its own error for a library or a GPU that is missing
        if quantisation is None:
            raise
        detail = first_line(error.__cause__ or error).split(". ")[0].split("; ")[0]  # without the model's local path
        if "ignore_mismatched_sizes" in str(error.__cause__):
            detail = "it expects other shapes"
        method = quantisation.get("quant_method")
        raise CannotRunError(model.name, f"transformers cannot run its {method} weights here ({detail})") from error
    kept = KeptBlocks.without(mask, stack.sites)
    on_image = None
    why_not_run = None
    if image is not None:
        try:
            with stack.bypassed(mask, scales) as masked:
                on_image = _Outputs.of(masked, stack, kept.layers_of("attention"), image)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:  # whatever a model's own code raises, as for images of another size
            why_not_run = f"the dense model does not run on it ({type(error).__name__}: {first_line(error)})"
    return _Masked(
        config=copy.deepcopy(stack.model.config),
        kept=kept,
        parameters=stack.model.num_parameters(),
        generates=why_mute(stack.model) is None,
        on_tokens=on_tokens,
        on_image=on_image,
        why_not_run=why_not_run,
        before=continuation(stack.model, tokenizer, prompt),
    )


def _reload(exported: LocatedModel, masked: _Masked) -> PreTrainedModel:
    """Load an exported checkpoint by plain transformers.

    Args:
        exported: The checkpoint.
        masked: The masked dense model.

    Raises:
        UnsupportedModelError: It cannot be loaded, or lacks weights that its config describes.
    """
    kind = masked.config.model_type
    places = ""
    try:
        with quiet():
            config = load_config(exported)
            places = rules_of_place(masked.config.get_text_config(), config.get_text_config())
            # With output_loading_info, from_pretrained returns a pair; its annotations do not say so.
            pair: Any = model_class(config).from_pretrained(
                exported.folder,
                dtype=resolve_dtype(exported.dtype, config),
                trust_remote_code=exported.trust_remote_code,
                output_loading_info=True,
            )
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error).split('. ')[0]}"
        if "ignore_mismatched_sizes" in str(error):
            reason = (
                "its weights have other shapes than its config says, for example because they depend on a layer's place"
            )
        raise UnsupportedModelError(
            f"{kind} cannot be exported: transformers does not load the pruned checkpoint ({reason}){places}; choose "
            "another mask or architecture"
        ) from error
    reloaded: PreTrainedModel = pair[0]
    if wrong := wrong_names(exported.folder, len(masked.kept), pair[1]):
        raise UnsupportedModelError(
            f"{kind} cannot be exported: the pruned checkpoint has other weights than its config describes "
            f"({wrong[0]} …){places}; choose another mask or architecture"
        )
    return reloaded.eval()
