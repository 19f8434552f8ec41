"""The layers of a pruned model: of which layers of the dense model their attentions and MLPs are.

An attention and an MLP of different layers may make one layer of the pruned model; then their tensors must be told
apart by their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from raysearch.core.mask import OTHER_PART, PARTS, Half, Mask, Part
from raysearch.core.site import Block, Sites
from raysearch.errors import UnsupportedModelError


@dataclass(frozen=True)
class KeptBlocks:
    """The layers of a pruned model.

    Args:
        blocks: The layers of the pruned model, in order.
        n_layers: N, the layers of the dense model.
        part_of: The half of each tensor of a layer, by its name within the layer. Needed only if the halves of some
            layer do not stay together.
    """

    blocks: tuple[Block, ...]
    n_layers: int
    part_of: Mapping[str, Part] = field(default_factory=dict)

    @classmethod
    def without(cls, mask: Mask, sites: Sites, part_of: Mapping[str, Part] | None = None) -> KeptBlocks:
        """Return the layers of a model without the parts of a mask.

        Args:
            mask: The removed parts.
            sites: The layers of the dense model.
            part_of: The half of each tensor, as in the class; None if it is not needed.

        Returns:
            The layers of the pruned model.
        """
        return cls(sites.blocks(mask), sites.n_layers, part_of or {})

    @classmethod
    def whole(cls, layers: Iterable[int], n_layers: int) -> KeptBlocks:
        """Return the layers of a pruned model of whole layers.

        Args:
            layers: The indices of the kept layers in the dense model, ascending.
            n_layers: N, the layers of the dense model.

        Returns:
            The layers of the pruned model.
        """
        return cls(tuple(Block(layer, layer) for layer in layers), n_layers)

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def are_whole(self) -> bool:
        """Whether every layer of the pruned model is a layer of the dense model."""
        return all(block.attention == block.mlp for block in self.blocks)

    @property
    def are_complete(self) -> bool:
        """Whether every layer of the pruned model has an attention and an MLP."""
        return all(None not in block for block in self.blocks)

    @property
    def mask(self) -> Mask:
        """The parts of the dense model that are removed."""
        halves = (Half(layer, part) for layer in range(self.n_layers) for part in PARTS)
        return Mask.of_halves(half for half in halves if half.layer not in self._numbers[half.part])

    def layers_of(self, part: Part) -> tuple[int, ...]:
        """Return, for each layer of the pruned model, the layer of the dense model that describes a half of it.

        That is the layer of the other half if it lacks this one. The layers are ascending.
        """
        layers = []
        for block in self.blocks:
            layer = getattr(block, part)
            layers.append(getattr(block, OTHER_PART[part]) if layer is None else layer)
        return tuple(layer for layer in layers if layer is not None)

    def number_of(self, layer: int, name: str) -> int | None:
        """Return the new number of a layer, for a tensor or a module in it.

        Args:
            layer: The number in the dense model. From N on, it is one of a head that predicts further tokens.
            name: The name of the tensor or the module within the layer.

        Returns:
            The number in the pruned model, 0-based; None if the half with the tensor is removed.

        Raises:
            UnsupportedModelError: The halves of the layer do not stay together, and no half has the tensor.
        """
        if layer >= self.n_layers:
            return len(self) + layer - self.n_layers
        numbers = self._numbers
        if self.is_together(layer):
            return numbers["mlp"].get(layer)
        part = self.part_with(name)
        if part is None:
            raise UnsupportedModelError(
                f"the checkpoint has {name or 'a value'} in layer {layer}, which belongs neither to the attention nor "
                "to the MLP; use space=layers"
            )
        return numbers[part].get(layer)

    def is_together(self, layer: int) -> bool:
        """Return whether a layer of the dense model stays as it is, or is removed as a whole."""
        return self._numbers["attention"].get(layer) == self._numbers["mlp"].get(layer)

    def part_with(self, name: str) -> Part | None:
        """Return the half of a layer that has a tensor or a module; None if it is not known.

        A quantised module may have other tensors than the model in memory, so the half of the nearest module with known
        tensors counts.

        Args:
            name: The name within the layer.
        """
        if name in self.part_of:
            return self.part_of[name]
        while name:
            parts = self._parts_of_module.get(name, ())
            if parts:
                return next(iter(parts)) if len(parts) == 1 else None
            name = name.rpartition(".")[0]
        return None

    @cached_property
    def _numbers(self) -> Mapping[Part, Mapping[int, int]]:
        """The numbers in the pruned model, by half and by the layer of the dense model."""
        attention = {block.attention: number for number, block in enumerate(self.blocks) if block.attention is not None}
        mlp = {block.mlp: number for number, block in enumerate(self.blocks) if block.mlp is not None}
        return {"attention": attention, "mlp": mlp}

    @cached_property
    def _parts_of_module(self) -> Mapping[str, set[Part]]:
        """The halves that have tensors in a module of a layer, by its name within the layer."""
        parts_of_module: dict[str, set[Part]] = {}
        for name, part in self.part_of.items():
            while name := name.rpartition(".")[0]:
                parts_of_module.setdefault(name, set()).add(part)
        return parts_of_module
