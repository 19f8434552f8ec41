"""A model over several accelerators, for those that one does not hold."""

from __future__ import annotations

from transformers import PreTrainedModel

from raysearch.errors import UserError


def spread(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """Puts a model's layers on all GPUs that this process sees, whole ones in order, about as much on each.

    Hooks of accelerate then move what enters a module to where the module is, so a layer runs wherever it is called.

    Args:
        model: On the CPU.
        name: What the user calls it.

    Raises:
        UserError: It does not fit on them.
    """
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole = list(model._no_split_modules or ())
    memory = get_balanced_memory(model, no_split_module_classes=whole)
    gpus = {device: most for device, most in memory.items() if device != "cpu"}
    places = infer_auto_device_map(model, max_memory={**gpus, "cpu": 0}, no_split_module_classes=whole)
    if any(place in ("cpu", "disk") for place in places.values()):
        raise UserError(
            f"model={name} does not fit on {len(gpus)} GPUs; give more with cluster.gpus_per_replica=…, or hold it "
            "in a smaller model.dtype"
        )
    spread_model: PreTrainedModel = dispatch_model(model, places)
    return spread_model
