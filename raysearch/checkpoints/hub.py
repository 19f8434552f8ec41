"""Pushes an export to a repository of the Hugging Face Hub, which is private by default."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raysearch.checkpoints.card import RECORD
from raysearch.errors import UserError
from raysearch.text.sentences import first_line

_FILES_OF_THE_HUB = (".gitattributes",)  # the hub puts them into a new repository


@dataclass(frozen=True)
class HubRepository:
    """A model repository of the hub to which an export is pushed.

    Args:
        name: The name, ``OWNER/NAME``.
        public: Whether everyone may read the repository.
        overwrite: Whether to replace an earlier export in it.

    Raises:
        UserError: The name has another form.
    """

    name: str
    public: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", self.name):
            raise UserError(f"--push={self.name} names no repository; write OWNER/NAME, as in me/shallower")

    def check(self) -> None:
        """Check that the push can succeed, before hours of work. Nothing is written.

        Raises:
            UserError: There is no token or no network, or the repository exists and must not be replaced.
        """
        from huggingface_hub import get_token

        if get_token() is None:
            raise UserError(f"--push={self.name} needs a token of the hub; set HF_TOKEN, or log in with: hf auth login")
        self._files()

    def send(self, files: Mapping[str, Path | str], local_export: Path) -> str:
        """Put files into the repository in one commit, which replaces an earlier export.

        Args:
            files: A file, or the text of one, by its path in the repository.
            local_export: The export on this machine, for the message of an error.

        Returns:
            The repository's address.

        Raises:
            UserError: The hub refuses the commit or does not answer. The export on this machine stays.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        note = f"; {local_export} is written, so only this is left: hf upload {self.name} {local_export}"
        old_files = self._files(note)
        api = HfApi()
        stale = set(old_files or ()) - {*files, *_FILES_OF_THE_HUB}
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(path, str(content) if isinstance(content, Path) else content.encode())
            for path, content in files.items()
        ]
        operations += map(CommitOperationDelete, sorted(stale))
        with self._connected(note):
            if old_files is None:
                api.create_repo(self.name, private=not self.public)
            api.create_commit(self.name, operations, commit_message="Write what raysearch export has written")
        return f"{api.endpoint}/{self.name}"

    def _files(self, note: str = "") -> list[str] | None:
        """Return the files of the repository; None if it does not exist. Refuse one that must not be replaced.

        Args:
            note: The end of an error message.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._connected(note):
            try:
                repository = HfApi().model_info(self.name, timeout=10)
            except RepositoryNotFoundError as error:
                if error.response.status_code != 404:  # the hub reports the same for an unknown token
                    raise
                return None
        files = [file.rfilename for file in repository.siblings or ()]
        if set(files) - set(_FILES_OF_THE_HUB) and RECORD not in files:
            raise UserError(f"--push={self.name} holds other things than an export; name another repository{note}")
        if not self.overwrite:
            raise UserError(
                f"--push={self.name} is there already; name another repository, or replace it with --overwrite{note}"
            )
        if repository.private and self.public:
            raise UserError(f"--push={self.name} is there already and private; leave out --public{note}")
        if not repository.private and not self.public:
            raise UserError(f"--push={self.name} is there already and public; confirm that with --public{note}")
        return files

    @contextmanager
    def _connected(self, note: str) -> Iterator[None]:
        """Turn errors of the hub and of the network into one sentence that ends with a note."""
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's own

        try:
            yield
        except (HTTPError, OSError) as error:
            cause = f"{type(error).__name__}: {first_line(error)}"
            remedy = f"check the network, and that the token may write there{note}"
            raise UserError(f"--push={self.name} cannot be written ({cause}); {remedy}") from error
