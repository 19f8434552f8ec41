"""What a checkpoint without some layers must be, by transformers alone: no code of raysearch is used here."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from experiments.families.settings import BY_PLACE
from experiments.families.shrinking import N_LAYERS, decoder_config

_OTHER_STACKS = re.compile(r"(^|\.)(encoder|vision|visual|audio|talker|mtp)")
#: Tensors with a slice for each layer: the end of the name, and the axis.
_SLICED = {"embed_tokens_per_layer.weight": 1, "per_layer_model_projection.weight": 0}
_NUMBERED = re.compile(r"^(.*?)\.(\d+)\.(.*)$")
#: What an export has of its own, instead of the dense model's.
_WRITTEN_ANEW = ("config.json", "README.md", "raysearch.json", "mergekit.yaml")


@contextlib.contextmanager
def without_layers(model: PreTrainedModel, removed: Sequence[int]) -> Iterator[None]:
    """Let a model run without layers within the context.

    The layers are deleted from the model's list, and their values from the lists of its config. In models that hand
    values to the layers by their places (`BY_PLACE`), the layers' outputs are replaced by their inputs instead.

    Args:
        model: The dense model.
        removed: The layers.
    """
    name, layers = _decoder_layers(model)
    with contextlib.ExitStack() as stack:
        if model.config.model_type in BY_PLACE:
            for layer in removed:
                stack.callback(layers[layer].register_forward_hook(_input_of, with_kwargs=True).remove)
        else:
            stack.enter_context(_deleted(model, name, layers, removed))
        yield


def _input_of(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    hidden = args[0] if args else kwargs["hidden_states"]
    return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


@contextlib.contextmanager
def _deleted(model: PreTrainedModel, name: str, layers: nn.ModuleList, removed: Sequence[int]) -> Iterator[None]:
    kept_layers = [layer for layer in range(N_LAYERS) if layer not in removed]
    config = decoder_config(model.config)
    before = {key: value for key, value in vars(config).items() if _is_by_layer(value)}
    try:
        model.set_submodule(name, nn.ModuleList(layers[layer] for layer in kept_layers))
        vars(config).update({key: [value[layer] for layer in kept_layers] for key, value in before.items()})
        yield
    finally:
        model.set_submodule(name, layers)
        vars(config).update(before)


def _is_by_layer(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == N_LAYERS


def _decoder_layers(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """Return the decoder's list of layers and its name."""
    lists = {
        name: part for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == N_LAYERS
    }
    if len(lists) > 1:
        lists = {name: part for name, part in lists.items() if not _OTHER_STACKS.search(name)}
    if len(lists) != 1:
        raise LookupError(
            f"the oracle needs one list of {N_LAYERS} layers, and there are: {', '.join(lists) or 'none'}"
        )
    return next(iter(lists.items()))


@torch.no_grad()
def logits(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """Return the logits of a plain forward, [T, vocabulary], in float64.

    Args:
        model: The model.
        ids: T tokens.
    """
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()


def loss(model: PreTrainedModel, rows: Sequence[Sequence[int]]) -> float:
    """Return the mean cross-entropy of all tokens but the first of each row, in nats; each row runs alone.

    Args:
        model: The model.
        rows: The tokens of each row.
    """
    losses = []
    for ids in rows:
        log_probs = logits(model, ids)[:-1].log_softmax(-1)
        losses += [-float(log_probs[place, token]) for place, token in enumerate(ids[1:])]
    return sum(losses) / len(losses)


def continuation(model: PreTrainedModel, ids: Sequence[int], n_tokens: int) -> list[int]:
    """Return the tokens that a model continues with greedily, by plain forwards without a cache.

    Args:
        model: The model.
        ids: The prompt.
        n_tokens: The number of new tokens.
    """
    tokens = list(ids)
    for _ in range(n_tokens):
        tokens.append(int(logits(model, tokens)[-1].argmax()))
    return tokens[len(ids) :]


def differing_tensors(dense: Path, pruned: Path, removed: Sequence[int]) -> tuple[int, list[str]]:
    """Compare the hashes of all tensors of a pruned checkpoint with those of the dense model's files.

    Args:
        dense: The folder of the dense model.
        pruned: The folder of the checkpoint.
        removed: The removed layers.

    Returns:
        The number of equal tensors, and the names of those that are missing, left over, or have other bytes.
    """
    kept_layers = [layer for layer in range(N_LAYERS) if layer not in removed]
    dense_hashes = _hashes(dense, kept_layers)
    stack = _stack_of(dense_hashes)
    expected = {}
    for name, checksum in dense_hashes.items():
        numbered = _NUMBERED.match(name)
        if numbered is None or numbered[1] != stack or int(numbered[2]) >= N_LAYERS:
            expected[name] = checksum
        elif int(numbered[2]) in kept_layers:
            expected[f"{stack}.{kept_layers.index(int(numbered[2]))}.{numbered[3]}"] = checksum
    written = _hashes(pruned)
    wrong = sorted(name for name in {*expected, *written} if expected.get(name) != written.get(name))
    return len(written) - len(wrong), wrong


def _stack_of(names: dict[str, str]) -> str:
    numbers: dict[str, set[int]] = defaultdict(set)
    for name in names:
        if numbered := _NUMBERED.match(name):
            numbers[numbered[1]].add(int(numbered[2]))
    stacks = [stack for stack, layers in numbers.items() if layers >= set(range(N_LAYERS))]
    if len(stacks) > 1:
        stacks = [stack for stack in stacks if not _OTHER_STACKS.search(stack)]
    if len(stacks) != 1:
        raise LookupError(f"the oracle needs one list of {N_LAYERS} layers in the files: {', '.join(stacks) or 'none'}")
    return stacks[0]


def _hashes(folder: Path, kept_layers: Sequence[int] | None = None) -> dict[str, str]:
    """Return a checksum of the dtype, the shape and the bytes of each tensor in the safetensors files of a folder.

    Args:
        folder: The folder.
        kept_layers: The layers whose slices of sliced tensors count; None for all.
    """
    hashes = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # it is no dict
                tensor = _slices(name, tensors.get_tensor(name), kept_layers)
                content = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
                hashes[name] = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode() + content).hexdigest()
    return hashes


def _slices(name: str, tensor: Tensor, kept_layers: Sequence[int] | None) -> Tensor:
    axis = next((axis for end, axis in _SLICED.items() if name.endswith(end)), None)
    if kept_layers is None or axis is None:
        return tensor
    parts = tensor.chunk(N_LAYERS, dim=axis)
    return torch.cat([parts[layer] for layer in kept_layers], dim=axis)


def differing_files(dense: Path, pruned: Path) -> list[str]:
    """Return the names of the files besides weights and config that a checkpoint lacks, or that have other bytes.

    Args:
        dense: The folder of the dense model.
        pruned: The folder of the checkpoint.
    """
    files = [file.relative_to(dense) for file in dense.rglob("*") if file.is_file()]
    others = [file for file in files if str(file) not in _WRITTEN_ANEW and ".safetensors" not in file.name]
    return sorted(
        str(file)
        for file in others
        if not (pruned / file).is_file() or (pruned / file).read_bytes() != (dense / file).read_bytes()
    )
