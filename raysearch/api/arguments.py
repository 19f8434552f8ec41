"""The arguments that several functions and handles take: overrides, observers, repositories for exports."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysearch.core.paths import PathLike
from raysearch.core.validation import checked
from raysearch.errors import UserError
from raysearch.searching.notebook import NotebookProgress, in_notebook
from raysearch.searching.observer import Observer
from raysearch.searching.progress_lines import ProgressLines

if TYPE_CHECKING:
    from raysearch.checkpoints.hub import HubRepository
    from raysearch.configuration.overrides import Override


def all_overrides(overrides: Sequence[str], values: Mapping[str, Any]) -> list[Override]:
    """Return the overrides of a call: its texts, followed by its keyword arguments.

    Args:
        overrides: ``key=value`` texts.
        values: The keyword arguments of a call.

    Returns:
        ``key=value`` texts. The keyword arguments are last, so they win.

    Raises:
        UserError: An override is not a text, or a value is of a type that no key accepts.
    """
    from raysearch.configuration.overrides import as_overrides

    for override in overrides:
        if not isinstance(override, str):
            raise UserError(f"{reprlib.repr(override)} has no key; name it, as in remove=5 or masks=[[1]]")
    return [*overrides, *as_overrides(values)]


def observer_or_default(observer: Observer | None) -> Observer:
    """Return the user's observer; by default, one for a notebook or for a script.

    Raises:
        UserError: The argument is not an observer.
    """
    if observer is not None and not isinstance(observer, Observer):
        raise UserError(
            f"observer={reprlib.repr(observer)} is not an Observer; give an object of a class derived from it"
        )
    return observer or (NotebookProgress() if in_notebook() else ProgressLines())


def repository_for_export(push: str | None, public: bool, overwrite: bool) -> HubRepository | None:
    """Check the options of an export, and return the repository to upload it to; None for no upload.

    Args:
        push: The repository of the Hugging Face Hub, ``OWNER/NAME``; None for no upload.
        public: Whether to make the repository public.
        overwrite: Whether to replace an existing export.

    Returns:
        The checked repository; None if `push` is None.

    Raises:
        UserError: A value is not understood, or `public` is set without a repository.
    """
    checked(bool, "--overwrite", overwrite)
    checked(bool, "--public", public)
    if push is None:
        if public:
            raise UserError("--public is of a repository of the hub; name it with --push=OWNER/NAME")
        return None
    from raysearch.checkpoints.hub import HubRepository

    return HubRepository(push, public, overwrite)


def job_config(
    job: str, overrides: Sequence[Override], recorded_config: Mapping[str, Any], config_dir: PathLike | None
) -> dict[str, Any]:
    """Return the configuration of a job for a recorded search or study: on its cluster, unless overridden.

    Args:
        job: The job, ``assess`` or ``recover``.
        overrides: ``key=value`` texts.
        recorded_config: The configuration of the search or the study.
        config_dir: A folder of the user's own YAML files.

    Returns:
        The composed configuration of the job, as nested mappings of plain values.

    Raises:
        UserError: An override is not understood.
    """
    from raysearch.configuration.compose import compose, with_section

    return compose(job, with_section("cluster", recorded_config, overrides), config_dir)
