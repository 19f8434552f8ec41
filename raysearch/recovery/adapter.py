"""The adapter of a model: which of its linear layers are trained."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from raysearch.errors import UserError
from raysearch.models.loading import load_config, without_weights
from raysearch.models.reading import model_class
from raysearch.models.spec import LocatedModel
from raysearch.recovery.spec import RecoveryOptions
from raysearch.text.sentences import first_line

_ALL_LINEAR = "all-linear"  # targets: every linear layer except the output head


def check_trainable(model: LocatedModel, options: RecoveryOptions) -> None:
    """Refuse a model or targets that cannot be trained, before anything is computed. No weights are loaded.

    Args:
        model: The dense model.
        options: The options, with the targets.

    Raises:
        UserError: The model also reads images or sounds; or a target does not exist, or cannot have an adapter.
    """
    config = load_config(model)
    if model_class(config) is not AutoModelForCausalLM:
        raise UserError(
            f"model={model.name} ({config.model_type}) cannot be trained: it also reads images or sounds; export it "
            "without a recovery"
        )
    if options.method in ("lora", "qlora"):
        with naming_targets(options):
            bare = partial(without_weights, model, config)
            inject_adapter_in_model(adapter_for(options, bare), bare())


@contextmanager
def naming_targets(options: RecoveryOptions) -> Iterator[None]:
    """Turn a refusal of peft into an error that names the option."""
    try:
        yield
    except (ValueError, re.error) as error:
        if isinstance(error, ValueError) and "arget" not in str(error) and "lm_head" not in str(error):
            raise
        raise UserError(
            f"recovery.targets={options.targets} does not fit the model ({first_line(error)}); name its linear layers "
            "other than the output head, or all-linear"
        ) from error


def adapter_for(options: RecoveryOptions, bare: Callable[[], PreTrainedModel]) -> LoraConfig:
    """Return the adapter for a model.

    Args:
        options: The options, with the targets.
        bare: Builds the model without weights.

    Returns:
        The configuration of peft, with targets that the model has.

    Raises:
        UserError: The model has no linear layer that peft can train.
    """
    adapter = LoraConfig(
        r=options.lora_r,
        lora_alpha=options.lora_alpha,
        lora_dropout=options.lora_dropout,
        target_modules=options.targets if isinstance(options.targets, str) else list(options.targets),
        task_type="CAUSAL_LM",
    )
    if options.targets != _ALL_LINEAR or _accepts(adapter, bare()):
        return adapter
    # peft refuses layers whose weights a kernel reads without calling the layer, such as those of Mamba
    model = bare()
    head = model.get_output_embeddings()
    names_by_kind: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head:
            names_by_kind.setdefault(name.rpartition(".")[2], []).append(name)
    accepted: list[str] = []
    for names in names_by_kind.values():
        if _accepts(replace(adapter, target_modules=names), bare()):
            accepted += names
    if not accepted:
        raise UserError(
            f"recovery.targets={_ALL_LINEAR} finds no linear layer that peft trains in {model.config.model_type}; use "
            "recovery.method=full"
        )
    return replace(adapter, target_modules=accepted)


def _accepts(adapter: LoraConfig, model: PreTrainedModel) -> bool:
    """Return whether peft can put an adapter into a model."""
    try:
        inject_adapter_in_model(replace(adapter), model)
    except ValueError:
        return False
    return True


def bare_like(model: PreTrainedModel) -> Callable[[], PreTrainedModel]:
    """Return a function that builds a model of the same config without weights."""

    def make() -> PreTrainedModel:
        with torch.device("meta"):
            return type(model)(copy.deepcopy(model.config))

    return make
