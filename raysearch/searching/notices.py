"""What an observer gets before the first round: data that take some time to read, and problems that stop nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from raysearch.calibration.calibration import Calibration
from raysearch.checkpoints.half_formats import formats_of
from raysearch.core.hub import is_asked
from raysearch.core.mask import Mask
from raysearch.core.problem import AUTO, Problem, sizes_of
from raysearch.core.space import Space
from raysearch.evaluation.spec import EvaluationSpec
from raysearch.models.description import describe
from raysearch.models.devices import has_instructions
from raysearch.models.source import is_hub_id
from raysearch.models.spec import ModelInfo, ModelSpec
from raysearch.searching.gguf_masks import refused_masks
from raysearch.searching.observer import Observer
from raysearch.searching.spec import SearchSpec
from raysearch.text.numbers import size
from raysearch.text.sentences import listed

_LARGE = 10**7  # bytes; a file of this size takes some seconds to read


def describe_model(model: ModelSpec, observer: Observer) -> ModelInfo:
    """Return the sizes of a model (`raysearch.models.description.describe`).

    Args:
        model: The model.
        observer: Gets a line if the hub is asked, which may be slow.

    Returns:
        The number of layers, their sizes, and the other facts that a search needs.
    """
    if is_hub_id(model) and is_asked():
        observer.reading(f"reading model={model.name} from the Hugging Face hub, or its copy on this machine")
    return describe(model)


def announce_large_files(spec: EvaluationSpec, observer: Observer) -> None:
    """Report data that take some time to read: large files, and data of the hub, which may not answer.

    Args:
        spec: The calibrations with their data.
        observer: Gets a line for each file and each data set of the hub.
    """
    sources = [calibration.data.rows for calibration in spec.calibrations]
    for name in dict.fromkeys(source.name for source in sources if source.path is None):
        if name is not None:
            observer.reading(f"reading data.name={name} from the Hugging Face hub, or its copy on this machine")
    for path in dict.fromkeys(source.path for source in sources):
        with suppress(OSError):  # reading the file will raise the error
            if path is not None and (n_bytes := Path(path).expanduser().stat().st_size) >= _LARGE:
                observer.reading(f"reading and tokenising data.path={path} ({size(n_bytes)})")


def warn_of_unknown_tokens(calibrations: Sequence[Calibration], observer: Observer) -> None:
    """Warn of texts with tokens that are unknown to the model's tokenizer.

    Args:
        calibrations: The calibrations; their descriptions have the share of unknown tokens if it is large.
        observer: Gets a warning for each source.
    """
    shares: dict[str, float] = {}
    for description in (calibration.description for calibration in calibrations):
        source = str(description.get("path") or description.get("name") or description.get("source"))
        shares[source] = max(description.get("unknown", 0.0), shares.get(source, 0.0))
    for source, share in shares.items():
        if share:
            observer.warn(
                f"{share:.0%} of the tokens of {source} are unknown to the model's tokenizer, so losses say little; "
                "use a text that it was made for, or the tokenizer that the model was trained with"
            )


def warn_of_dtype(info: ModelInfo, observer: Observer) -> None:
    """Warn if the model runs on the CPU in a dtype for which the CPU has no instructions.

    Args:
        info: The model.
        observer: Gets the warning.
    """
    if info.model.device == "cpu" and has_instructions(info.dtype) is False:
        observer.warn(
            f"this machine's CPU has no instructions for {info.dtype} and takes longer than in float32; "
            "model.dtype=float32 is faster on it, in more memory"
        )


def warn_of_image_layers(info: ModelInfo, problem: Problem, observer: Observer) -> None:
    """Warn if a search may remove a layer at whose place features of images are added: an export needs it.

    Args:
        info: The model.
        problem: The space of legal masks.
        observer: Gets the warning.
    """
    needed = info.image_layers
    if not problem.sites.in_layers(needed) <= problem.protected:
        observer.warn(
            f"{info.model.name} adds features of images at the places of its layers {list(needed)}, so a mask that "
            f"removes one of them cannot be exported; protect them with protect={list(needed)}"
        )


def warn_of_formats(info: ModelInfo, space: Space, observer: Observer) -> None:
    """Warn if a format of exports cannot hold the masks of a search.

    Args:
        info: The model.
        space: What the masks can remove.
        observer: Gets the warning.
    """
    formats = formats_of({**info.config, **info.code}, space)
    usable = [form.title for form in formats if form.why_not is None]
    reasons = "; ".join(f"{form.title}: {form.why_not}" for form in formats if form.why_not is not None)
    if not usable:
        observer.warn(
            f"masks of space={space.name} can be searched and assessed, but not exported, since no format holds such a "
            f"{info.model.name} ({reasons}); space=pairs gives models that every runtime loads"
        )
    elif reasons:
        observer.warn(
            f"masks of space={space.name} can be exported as {listed(usable)} only ({reasons}); space=pairs gives "
            "models that every runtime loads"
        )


def warn_of_refused_masks(model: ModelSpec, problem: Problem, remove: int | str, observer: Observer) -> None:
    """Warn if `export --gguf` would refuse some or all masks of a search.

    Args:
        model: The model.
        problem: The space of legal masks.
        remove: The number of layers to remove, a range, or ``"auto"``.
        observer: Gets the warning.
    """
    sizes = range(1, problem.size + 1) if remove == AUTO else sizes_of(remove)
    whole = [index for index, site in enumerate(problem.sites) if len(site.halves) == len(problem.sites[0].halves)]
    unprotected = replace(problem, protected=frozenset(range(len(problem.sites))).difference(whole))
    ends: list[Mask] = []  # no layer changes its position
    moved: list[Mask] = []  # every layer moves by one position, or by one group
    for number in sizes:
        if number % problem.group == 0 and number <= problem.size:
            of_size = replace(unprotected, n_remove=number // problem.group)
            ends.append(problem.sites.mask_of(of_size.completed(Mask(), reversed(whole))))
            moved.append(problem.sites.mask_of(of_size.completed(Mask.of(0), reversed(whole))))
    refused = refused_masks(model, [*ends, *moved])
    if refused:
        quantity = "all masks" if all(end in refused for end in ends) else "some masks"
        observer.warn(f"export --gguf will refuse {quantity} of this search: {next(iter(refused.values()))}")


def warn_before_search(
    spec: SearchSpec, info: ModelInfo, calibrations: Sequence[Calibration], observer: Observer
) -> None:
    """Warn of all problems of a search that stop nothing.

    Args:
        spec: The search.
        info: Its model.
        calibrations: Its calibrations.
        observer: Gets the warnings.
    """
    warn_of_unknown_tokens(calibrations, observer)
    warn_of_dtype(info, observer)
    problem = spec.problem(info)
    warn_of_formats(info, spec.space, observer)
    warn_of_refused_masks(spec.evaluation.model, problem, spec.remove, observer)
    warn_of_image_layers(info, problem, observer)
