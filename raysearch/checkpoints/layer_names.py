"""Which tensors of a checkpoint belong to which layer of the decoder, and their names once layers are removed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.errors import UnsupportedModelError

#: Parts of names of modules that hold other stacks than the decoder: of images, sounds, encoders, speech.
_OTHER_STACKS = re.compile(
    r"(vis|image|img|audio|video|vit|vq|siglip|clip|encoder|talker|token2wav|code2wav|code_predictor|depth_decoder|speech"
    r"|tower|resampler|perceiver|qformer|q_former|projector|connector|adapter|codec|merger|sam_model).*"
)
#: Parts of names of modules with heads that predict further tokens.
_PREDICTING = re.compile(r"(mtp|nextn).*")


@dataclass(frozen=True)
class LayerNames:
    """The names of the tensors of a decoder's layers.

    Args:
        stack: The name of the list of layers, such as ``model.layers``.
        n_layers: N, the layers of the dense model. Higher numbers are heads that predict further tokens.
    """

    stack: str
    n_layers: int

    @classmethod
    def of(cls, names: Iterable[str], n_layers: int) -> LayerNames:
        """Find the list of layers among the names of a checkpoint's tensors.

        Args:
            names: The names of all tensors.
            n_layers: N, the layers of the dense model.

        Returns:
            The names of the layers.

        Raises:
            UnsupportedModelError: No list has these layers, or several have.
        """
        numbers_of_list: dict[str, set[int]] = defaultdict(set)
        n_tensors_of_list: Counter[str] = Counter()
        for name in names:
            parts = name.split(".")
            place = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
            if place is not None:
                stack = ".".join(parts[:place])
                numbers_of_list[stack].add(int(parts[place]))
                n_tensors_of_list[stack] += 1
        complete = [stack for stack, numbers in numbers_of_list.items() if set(range(n_layers)) <= numbers]
        # A head that predicts further tokens may have as many layers as the decoder.
        complete = [stack for stack in complete if not any(map(_PREDICTING.fullmatch, stack.split(".")))]
        decoders = [stack for stack in complete if not _is_other(stack.split("."))]
        # BERT's kin name the list of layers an encoder, also in their decoders.
        complete = decoders or [stack for stack in complete if not _is_other(set(stack.split(".")) - {"encoder"})]
        # A list of projections, a tensor each, may be as long, too.
        layered = [stack for stack in complete if n_tensors_of_list[stack] > len(numbers_of_list[stack])]
        complete = layered or complete
        if len(complete) != 1:
            lists = ", ".join(sorted(complete)) or "none"
            raise UnsupportedModelError(
                f"the checkpoint names its layers in a form that is unknown (lists of {n_layers} layers: {lists}); use "
                "another architecture"
            )
        return cls(complete[0], n_layers)

    def layer_of(self, name: str) -> int | None:
        """Return the number of the layer that a tensor or a module belongs to; None if it belongs to no layer."""
        return self.split(name)[0]

    def is_in_layer(self, name: str) -> bool:
        """Return whether a tensor belongs to one of the N layers, whatever its name begins with."""
        *_, last = self.stack.split(".")
        numbered = re.search(rf"(?:^|\.){re.escape(last)}\.(\d+)\.", name) if last else re.match(r"(\d+)\.", name)
        if numbered is None or _is_other(set(name[: numbered.start()].split(".")) - set(self.stack.split("."))):
            return False
        return int(numbered[1]) < self.n_layers

    def is_predicting(self, name: str) -> bool:
        """Return whether a tensor belongs to a head that predicts further tokens."""
        layer = self.layer_of(name)
        return any(map(_PREDICTING.fullmatch, name.split("."))) or (layer is not None and layer >= self.n_layers)

    def renamed(self, name: str, kept: KeptBlocks) -> str | None:
        """Return the new name of a tensor or a module; None if it belongs to a removed part.

        Args:
            name: The name in the dense model.
            kept: The layers of the pruned model.

        Returns:
            The new name; None for a removed part.

        Raises:
            UnsupportedModelError: The halves of its layer do not stay together, and no half has it.
        """
        layer, within = self.split(name)
        if layer is None:
            return name
        number = kept.number_of(layer, within)
        dot = "." if within else ""
        return None if number is None else f"{self._prefix}{number}{dot}{within}"

    def split(self, name: str) -> tuple[int | None, str]:
        """Return the number of the layer that a tensor or a module belongs to, and its name within the layer.

        The number is None if it belongs to no layer; then the name is the whole one.
        """
        number, _, within = name.removeprefix(self._prefix).partition(".")
        if not name.startswith(self._prefix) or not number.isdecimal():
            return None, name
        return int(number), within

    @property
    def _prefix(self) -> str:
        return f"{self.stack}." if self.stack else ""


def _is_other(parts: Iterable[str]) -> bool:
    """Return whether a name with these parts is of another stack than the decoder."""
    return any(map(_OTHER_STACKS.fullmatch, parts))
