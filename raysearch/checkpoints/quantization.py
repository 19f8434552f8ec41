r"""Mends the names of modules in a description of quantised weights, once layers are removed.

Every method has lists or keys with names of modules: ``ignore``, ``modules_to_not_convert``, ``ignored_layers``,
``quantized_layers`` and others. A name may be whole (``model.layers.7.mlp``) or omit its beginning (``layers.7``), have
wildcards (``*layers.7*``), or be a regular expression (``re:.*layers\.(7|9)\.mlp``, or ``-:…`` of GPTQModel).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.layer_names import LayerNames

#: Files, besides ``config.json``, that describe the quantisation of a checkpoint.
QUANTISATION_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json", "quantization_config.json")
_EXPRESSION = re.compile(r"(re:|[+-]:)(.*)")
#: The parts that a name may have before the list of layers, in any model.
_STEMS = {"", "model", "language_model", "text_model", "transformer", "decoder", "backbone", "base_model"}


@dataclass(frozen=True)
class ModuleNames:
    """The names of a checkpoint's modules before and after layers are removed.

    Args:
        layers: The names of the layers.
        kept: The layers of the pruned model.
        modules: The names of all modules of the dense model that have a tensor.
    """

    layers: LayerNames
    kept: KeptBlocks
    modules: frozenset[str]

    @classmethod
    def of(cls, layers: LayerNames, kept: KeptBlocks, tensors: Iterable[str]) -> ModuleNames:
        """Return the names of the modules that hold tensors.

        Args:
            layers: The names of the layers.
            kept: The layers of the pruned model.
            tensors: The names of all tensors.

        Returns:
            The names of the modules.
        """
        return cls(layers, kept, frozenset(name.rpartition(".")[0] for name in tensors))

    def mend(self, description: Any) -> Any:
        """Return a description of a quantisation with the new names: a config, or a part of one."""
        if isinstance(description, dict):
            return {name: self.mend(value) for key, value in description.items() for name in self._new_names(str(key))}
        if isinstance(description, list):
            names: list[Any] = []
            for item in description:
                names += self._new_names(item) if isinstance(item, str) else [self.mend(item)]
            return names
        return description

    def _new_names(self, name: str) -> list[str]:
        """Return what replaces a name: one name, none if it is removed, or several for an expression.

        A name of a whole layer whose halves do not stay together is replaced by the names of its modules.
        """
        expression = _EXPRESSION.fullmatch(name)
        if expression is not None:
            return self._of_expression(name, expression[2])
        place = self._place(name)
        if place is None:
            return [name]
        start, end = place
        layer = int(name[start:end])
        within = name[end:].strip(".*")
        if not within and not self.kept.is_together(layer):
            prefix = f"{self.layers.stack}.{layer}."
            modules = sorted(module.removeprefix(prefix) for module in self.modules if module.startswith(prefix))
            numbers = {module: self.kept.number_of(layer, module) for module in modules}
            return [f"{name[:start]}{number}.{module}" for module, number in numbers.items() if number is not None]
        number = self.kept.number_of(layer, within)
        return [] if number is None else [f"{name[:start]}{number}{name[end:]}"]

    def _place(self, name: str) -> tuple[int, int] | None:
        """Return where a name has the number of a layer of the decoder; None if it has none."""
        *stems, last = self.layers.stack.split(".")
        numbered = re.search(rf"(?:^|[.*]){re.escape(last)}\.(\d+)(?![^.*])", name)
        if numbered is None:
            return None
        before = name[: numbered.start()].replace("*", "").split(".")
        return numbered.span(1) if set(before) <= _STEMS | set(stems) else None

    def _of_expression(self, name: str, expression: str) -> list[str]:
        """Return an expression itself if it matches the same modules as before; otherwise expressions for each module.

        Args:
            name: The expression with its mark, such as ``re:``.
            expression: The expression.
        """
        pattern = re.compile(expression)
        mark = name.removesuffix(expression)
        before = {module for module in self.modules if pattern.match(module)}
        wanted = {self.layers.renamed(module, self.kept) for module in before} - {None}
        after = {self.layers.renamed(module, self.kept) for module in self.modules} - {None}
        if {module for module in after if module is not None and pattern.match(module)} == wanted:
            return [name]
        return [f"{mark}{re.escape(module)}$" for module in sorted(module for module in wanted if module is not None)]
