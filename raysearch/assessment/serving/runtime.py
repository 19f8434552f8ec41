"""The contract of a runtime that serves models: which files its server reads, and how it is started."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from raysearch.assessment.serving.client import Client
from raysearch.assessment.serving.process import cause_of
from raysearch.core.mask import Mask
from raysearch.errors import UserError
from raysearch.models.export import kept_blocks, safetensors_folder, write_files
from raysearch.models.spec import ModelInfo
from raysearch.searching.serve_options import ServeOptions

_TIMEOUT_S = 600.0  # of a program that says its version


class ServingRuntime(ABC):
    """A runtime whose servers can be measured.

    Attributes:
        title: Its name for people.
        name: Its name as a value of ``assess.serve`` and ``speed.serve``.
        program: The words that start a server, before its arguments.
    """

    title: ClassVar[str]
    name: ClassVar[str]
    program: ClassVar[Sequence[str]]

    @abstractmethod
    def version_words(self, words: Sequence[str]) -> Sequence[str]:
        """Return the command that prints the version of the runtime, given the words that start a server."""

    @abstractmethod
    def served_version(self, client: Client) -> str:
        """Return the version that a server says that it has."""

    @abstractmethod
    def check(self, info: ModelInfo, options: ServeOptions) -> None:
        """Refuse a model whose files for the server cannot be written.

        Args:
            info: The dense model.
            options: How the server is measured.

        Raises:
            UserError: The runtime needs files in another form.
        """

    @abstractmethod
    def write(self, info: ModelInfo, mask: Mask, folder: Path, options: ServeOptions, files: ExitStack) -> Path:
        """Return the files of a model without the parts of a mask.

        Args:
            info: The dense model.
            mask: The parts to remove.
            folder: An empty folder for new files.
            options: How the server is measured.
            files: Closed when the files are no longer read.

        Returns:
            What the server is to load. For the empty mask it is the model's own file or folder if that is possible.

        Raises:
            UserError: The files cannot be read or written.
        """

    @abstractmethod
    def arguments(self, model: Path, port: int, options: ServeOptions, info: ModelInfo, mask: Mask) -> Sequence[str]:
        """Return the arguments of a server.

        Args:
            model: What it loads.
            port: Its port.
            options: The sequences and tokens that it needs room for.
            info: The dense model.
            mask: The removed layers.

        Returns:
            The arguments, without those of the user.
        """

    @abstractmethod
    def kv_cache(self, log: str, client: Client) -> Mapping[str, Any]:
        """Return what a server tells of its KV cache.

        Args:
            log: What it has written.
            client: A client of it.

        Returns:
            Plain values; ``kv_cache_bytes`` for its size in bytes, if the server tells it.
        """

    def memory_note(self, info: ModelInfo, options: ServeOptions) -> str:
        """Return what the peak memory of a server contains besides its need, as the end of a clause; empty for nothing.

        Args:
            info: The dense model.
            options: The sequences and tokens that the server has room for.

        Returns:
            The text.
        """
        return ""

    @property
    def environment(self) -> Mapping[str, str]:
        """Additional environment variables of the server."""
        return {}

    def words(self, options: ServeOptions) -> list[str]:
        """Return the words that start a server, before its arguments."""
        return options.command_words or [*self.program]

    def version(self, options: ServeOptions) -> str:
        """Return the version of the program that is to be measured.

        Raises:
            UserError: The program does not exist or fails.
        """
        words = [*self.version_words(self.words(options))]
        remedy = f"install {self.title}, or name the program with serve.command=…"
        setting = f"{self.title}: {' '.join(words[:2])}"
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, errors="replace"
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"{setting} cannot be run ({error}); {remedy}") from error
        lines = [line.strip() for line in [*done.stdout.splitlines(), *done.stderr.splitlines()] if line.strip()]
        if done.returncode or not lines:
            raise UserError(f"{setting} fails ({cause_of(lines)}); {remedy}")
        return self.version_in(lines)

    def version_in(self, lines: Sequence[str]) -> str:
        """Return the version in the lines that the program has printed."""
        return next((line.partition("version:")[2].strip() for line in lines if "version:" in line), lines[0])


def written_checkpoint(info: ModelInfo, mask: Mask, folder: Path, files: ExitStack) -> Path:
    """Return a folder with the safetensors of a model without the parts of a mask.

    Args:
        info: The dense model. Its adapter is left out, since to merge it changes no size.
        mask: The parts to remove.
        folder: An empty folder for the files of a pruned model.
        files: Closed when the files are no longer read.

    Returns:
        The folder; that of the dense model for the empty mask.

    Raises:
        UserError: The files cannot be read or written.
    """
    model = replace(info.model, adapter=None)
    source = files.enter_context(safetensors_folder(model))
    if not mask:
        return source
    write_files(folder, source, kept_blocks(info, mask), model.trust_remote_code)
    return folder


def as_words(settings: Mapping[str, object]) -> list[str]:
    """Return the arguments of a program that has these settings, by option."""
    return [word for option, value in settings.items() for word in (option, str(value))]
