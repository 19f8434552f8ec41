"""Sends an export to a repository of the Hugging Face Hub, private unless asked otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raysearch.errors import UserError, first_line
from raysearch.models.card import RECORD

_OWN = (".gitattributes",)  # what the hub itself puts into a new repository


@dataclass(frozen=True)
class HubRepository:
    """A model repository of the hub that an export goes to.

    Raises:
        UserError: That is no name.
    """

    name: str  #: ``OWNER/NAME``
    public: bool = False  #: whether everyone may read it
    overwrite: bool = False  #: whether an earlier export in it is replaced

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", self.name):
            raise UserError(f"--push={self.name} names no repository; write OWNER/NAME, as in me/shallower")

    def check(self) -> None:
        """Refuse what cannot go well, before hours are spent; nothing is written.

        Raises:
            UserError: There is no token or no network, or the name is taken.
        """
        from huggingface_hub import get_token

        if get_token() is None:
            raise UserError(f"--push={self.name} needs a token of the hub; set HF_TOKEN, or log in with: hf auth login")
        self._files()

    def send(self, files: Mapping[str, Path | str], left: Path) -> str:
        """Put files into the repository in one commit, in place of an earlier export.

        Args:
            files: By place in the repository, a file or the text of one.
            left: The export on this machine, for the message of an error.

        Returns:
            The repository's address.

        Raises:
            UserError: The hub refuses it, or is gone. What lies on this machine stays.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        kept = f"; {left} is written, so only this is left: hf upload {self.name} {left}"
        before = self._files(kept)
        api = HfApi()
        stale = set(before or ()) - {*files, *_OWN}
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(place, str(content) if isinstance(content, Path) else content.encode())
            for place, content in files.items()
        ]
        operations += map(CommitOperationDelete, sorted(stale))
        with self._asking(kept):
            if before is None:
                api.create_repo(self.name, private=not self.public)
            api.create_commit(self.name, operations, commit_message="Write what raysearch export has written")
        return f"{api.endpoint}/{self.name}"

    def _files(self, kept: str = "") -> list[str] | None:
        """Return the files of the repository, if it may be written to; None if there is none yet."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._asking(kept):
            try:
                found = HfApi().model_info(self.name, timeout=10)
            except RepositoryNotFoundError as error:
                if error.response.status_code != 404:  # the hub also says so to a token that it does not know
                    raise
                return None
        files = [one.rfilename for one in found.siblings or ()]
        if set(files) - set(_OWN) and RECORD not in files:
            raise UserError(f"--push={self.name} holds other things than an export; name another repository{kept}")
        if not self.overwrite:
            raise UserError(
                f"--push={self.name} is there already; name another repository, or replace it with --overwrite{kept}"
            )
        if bool(found.private) == self.public:
            is_, remedy = ("private", "leave out --public") if found.private else ("public", "say so with --public")
            raise UserError(f"--push={self.name} is there already and {is_}; {remedy}{kept}")
        return files

    @contextmanager
    def _asking(self, kept: str) -> Iterator[None]:
        """Within the context the hub is asked; its refusals are one sentence."""
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's own

        try:
            yield
        except (HTTPError, OSError) as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            remedy = f"check the network, and that the token may write there{kept}"
            raise UserError(f"--push={self.name} cannot be written ({why}); {remedy}") from error
