"""The oracle of every loss: a plain forward of the model with the layers deleted."""

import copy

import torch
from torch.nn import functional


def plain_losses(model, mask, batch):
    """Summed nats per sample by a plain forward of the model with the layers deleted."""
    pruned = copy.deepcopy(model)
    kept_layers = [layer for index, layer in enumerate(pruned.model.layers) if index not in mask]
    pruned.model.layers = torch.nn.ModuleList(kept_layers)
    pruned.config.num_hidden_layers = len(kept_layers)
    ids = torch.tensor(batch.input_ids)
    with torch.inference_mode():
        logits = pruned(input_ids=ids, use_cache=False).logits[:, :-1].float()
    nll = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(ids.shape[0], -1)
    return (nll.double() * torch.tensor(batch.scored[:, 1:])).sum(1).numpy()
