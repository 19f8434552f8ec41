"""Merges an adapter (LoRA) into a model in memory, and refuses one that does not fit the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from transformers import PreTrainedModel

from raysearch.checkpoints.adapter import Adapter
from raysearch.checkpoints.quiet import quiet
from raysearch.errors import UserError
from raysearch.models.spec import LocatedModel
from raysearch.text.sentences import first_line


def check_adapter(model: LocatedModel, skeleton: PreTrainedModel) -> None:
    """Refuse an adapter that does not fit a model. No weight is read.

    Args:
        model: The model, with its adapter.
        skeleton: The model without weights. It must not be used afterwards.

    Raises:
        UserError: The adapter is for other modules or shapes, or the merged model cannot be exactly its sum.
    """
    assert model.adapter is not None, "the caller has checked it"
    adapter = Adapter.open(Path(model.adapter))
    if getattr(skeleton.config, "quantization_config", None) is not None:
        raise UserError(
            f"model.adapter={model.adapter} cannot be merged exactly into model={model.name}, whose weights are "
            "quantised; use the model before it was quantised"
        )
    parameters = [name for name, _ in skeleton.named_parameters(remove_duplicate=False)]
    changed = set(adapter.parameters_in(parameters))
    for tied, original in getattr(skeleton, "all_tied_weights_keys", {}).items():
        if {tied, original} & changed:
            raise UserError(
                f"model.adapter={model.adapter} changes {original}, which model={model.name} uses as {tied}, too, so "
                "that no checkpoint of this model can hold the merged weights; train an adapter without them"
            )
    what = f"model.adapter={model.adapter} does not fit model={model.name}"
    check_fit(adapter, skeleton, what, "name an adapter that was trained on this model")


def check_fit(adapter: Adapter, skeleton: PreTrainedModel, what: str, remedy: str) -> None:
    """Compare the tensors of an adapter with those that peft makes for a model.

    Args:
        adapter: The adapter.
        skeleton: The model without weights. It must not be used afterwards.
        what: The beginning of an error's sentence.
        remedy: Its end.

    Raises:
        UserError: The names or the shapes differ.
    """
    try:
        with quiet():
            config: Any = LoraConfig.from_pretrained(str(adapter.folder))
            config.init_lora_weights = False  # there are no weights to begin with
            tuned = get_peft_model(skeleton, config)
            required = get_peft_model_state_dict(tuned, save_embedding_layers=False)
            accepted = required | get_peft_model_state_dict(tuned, save_embedding_layers=True)
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{what} ({first_line(error)}); {remedy}") from error
    tensors = {tensor.name: tensor for tensor in adapter.tensors}
    unknown = sorted(tensors.keys() - accepted.keys())
    missing = sorted(required.keys() - tensors.keys())
    if unknown:
        raise UserError(f"{what}, which has no module for its {unknown[0]}; {remedy}")
    if missing:
        raise UserError(f"{what}: it has no {missing[0]}, which its config names; {remedy}")
    for name, tensor in tensors.items():
        if tuple(accepted[name].shape) != tensor.shape:
            raise UserError(
                f"{what}: its {name} has the shape {list(tensor.shape)} instead of {list(accepted[name].shape)}; "
                f"{remedy}"
            )


def merge_adapter(loaded: PreTrainedModel, model: LocatedModel) -> PreTrainedModel:
    """Merge an adapter into a model on the CPU, so that the result is the same on every device.

    Args:
        loaded: The model in memory.
        model: The model, with its adapter.

    Returns:
        The merged model, in eval mode, with parameters that need no gradients.

    Raises:
        UserError: The adapter cannot be read or merged.
    """
    folder = Adapter.open(Path(str(model.adapter))).folder
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            tuned: Any = PeftModel.from_pretrained(loaded, str(folder), torch_device="cpu")
            merged: PreTrainedModel = tuned.merge_and_unload()  # safe_merge would round twice
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"model.adapter={model.adapter} cannot be merged into model={model.name} ({first_line(error)}); use "
            "another adapter"
        ) from error
    return merged.eval().requires_grad_(False)
