"""Proves that an exported checkpoint is the masked dense model: both are run, and what they compute is compared."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from raysearch.checkpoints.config_rules import rules_of_place
from raysearch.checkpoints.pruning import wrong_names
from raysearch.checkpoints.quiet import quiet
from raysearch.core.mask import Mask
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.export_proof import CannotRunError, ExportProof
from raysearch.models.loading import load_config, load_model, load_tokenizer, resolve_dtype
from raysearch.models.reading import model_class, quantisation_of, tokenizer_fingerprint
from raysearch.models.spec import LocatedModel
from raysearch.models.stack import LayerStack
from raysearch.models.verification import continuation, handed_to_layers, probe_logits, relative_gap, why_mute
from raysearch.text.sentences import first_line

#: The largest difference between the checkpoint's logits and the masked model's, relative to the largest |logit|. It
#: holds for 16 bits too, since both models compute in the same way.
_LARGEST_GAP = 1e-5


@dataclass(frozen=True)
class _Masked:
    """What the masked dense model computes."""

    config: PreTrainedConfig  #: of the dense model
    n_layers: int  #: the layers that stay
    parameters: int  #: of the dense model
    generates: bool
    logits: Tensor
    handed: list[str]  #: what each kept layer is handed, see `handed_to_layers`
    before: str | None


def prove_by_running(folder: Path, model: LocatedModel, mask: Mask, prompt: str | None) -> ExportProof:
    """Compare an exported checkpoint, loaded by plain transformers, with the masked dense model. Both run on the CPU.

    Args:
        folder: The checkpoint.
        model: The dense model.
        mask: The removed layers.
        prompt: A text that both models continue greedily, as a spot check; None for no check.

    Returns:
        What was compared.

    Raises:
        CannotRunError: transformers cannot run the quantised weights of the dense model on this machine.
        UserError: The dense model cannot be loaded, or there is a prompt but no tokenizer.
        UnsupportedModelError: The checkpoint cannot be loaded, or is another model, or the layers that stay do not run.
    """
    tokenizer = _tokenizer(model, prompt)
    _check_tokenizer(folder, model, tokenizer)
    masked = _run_masked(model, mask, tokenizer, prompt)  # the dense model is freed before the next line
    kind = masked.config.model_type
    reloaded = _reload(folder, model, masked)
    gap = relative_gap(probe_logits(reloaded), masked.logits)
    places = rules_of_place(masked.config.get_text_config(), reloaded.config.get_text_config())
    if not gap <= _LARGEST_GAP:
        raise UnsupportedModelError(
            f"{kind} cannot be exported without {mask}: the reloaded checkpoint's logits differ by {gap:.1e} of "
            f"the largest, since its layers depend on their places{places}; choose another mask or architecture"
        )
    handed = handed_to_layers(LayerStack(reloaded))
    if differing := [layer for layer, (new, old) in enumerate(zip(handed, masked.handed, strict=True)) if new != old]:
        raise UnsupportedModelError(
            f"{kind} cannot be exported without {mask}: the checkpoint's layer {differing[0]} is handed another "
            f"mask or other positions than in the dense model{places}; choose another mask or architecture"
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
        max_logit_difference=gap,
        not_run=None,
        has_tokenizer=tokenizer is not None,
        before=masked.before,
        after=continuation(reloaded, tokenizer, prompt),
    )


def _tokenizer(model: LocatedModel, prompt: str | None) -> PreTrainedTokenizerBase | None:
    """Return the model's tokenizer; None if it has none and there is no prompt."""
    try:
        return load_tokenizer(model)
    except UserError:
        if prompt is not None:
            raise
        return None


def _check_tokenizer(folder: Path, model: LocatedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Refuse a checkpoint whose tokenizer is not the dense model's."""
    if tokenizer is None:
        return
    written = load_tokenizer(model.at(folder))
    if tokenizer_fingerprint(written) != tokenizer_fingerprint(tokenizer):
        raise UnsupportedModelError(
            f"model={model.name} cannot be exported: its tokenizer would read texts otherwise; use another checkpoint "
            "of it"
        )


def _masked_logits(stack: LayerStack, mask: Mask, is_quantised: bool) -> Tensor:
    """Return the logits of the probe without a mask's layers."""
    with stack.bypassed(mask) as masked:
        try:
            return probe_logits(masked)
        except (TypeError, ValueError, AttributeError) as error:
            if is_quantised:  # a kernel may refuse this machine
                raise
            raise UnsupportedModelError(
                f"{stack.kind} cannot be exported without {mask}: a layer that stays needs what a removed layer passes "
                f"on ({type(error).__name__}: {first_line(error)}); choose another mask"
            ) from error


def _run_masked(
    model: LocatedModel, mask: Mask, tokenizer: PreTrainedTokenizerBase | None, prompt: str | None
) -> _Masked:
    """Load the dense model, and return what it computes without the mask's layers."""
    quantisation = quantisation_of(load_config(model))
    try:
        stack = LayerStack(load_model(model))
        logits = _masked_logits(stack, mask, is_quantised=quantisation is not None)
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
    handed = handed_to_layers(stack)
    return _Masked(
        config=copy.deepcopy(stack.model.config),
        n_layers=len(stack.sites.kept_layers(mask)),
        parameters=stack.model.num_parameters(),
        generates=why_mute(stack.model) is None,
        logits=logits,
        handed=[handed[layer] for layer in stack.sites.kept_layers(mask)],
        before=continuation(stack.model, tokenizer, prompt),
    )


def _reload(folder: Path, model: LocatedModel, masked: _Masked) -> PreTrainedModel:
    """Load an exported checkpoint by plain transformers.

    Args:
        folder: The checkpoint.
        model: The dense model.
        masked: The masked dense model.

    Raises:
        UnsupportedModelError: It cannot be loaded, or lacks weights that its config describes.
    """
    kind = masked.config.model_type
    places = ""
    try:
        with quiet():
            config = load_config(model.at(folder))
            places = rules_of_place(masked.config.get_text_config(), config.get_text_config())
            # With output_loading_info, from_pretrained returns a pair; its annotations do not say so.
            pair: Any = model_class(config).from_pretrained(
                folder,
                dtype=resolve_dtype(model.dtype, config),
                trust_remote_code=model.trust_remote_code,
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
    if wrong := wrong_names(folder, masked.n_layers, pair[1]):
        raise UnsupportedModelError(
            f"{kind} cannot be exported: the pruned checkpoint has other weights than its config describes "
            f"({wrong[0]} …){places}; choose another mask or architecture"
        )
    return reloaded.eval()
