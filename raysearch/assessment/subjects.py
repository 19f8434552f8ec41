"""Reads the subjects of MMLU from files with all subjects, for lm-eval's task of each subject."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict


def rows_of_subject(subject: str, *, test: str, dev: str, **_: Any) -> DatasetDict:
    """Return the rows of one subject, as lm-eval's `custom_dataset`.

    Args:
        subject: The value of the field ``subject`` of these rows.
        test: The file of JSON lines with the questions.
        dev: The file of JSON lines with the worked examples.

    Returns:
        The rows of both files, as the splits ``test`` and ``dev``.

    Raises:
        LookupError: A file has no row of that subject.
    """
    splits = DatasetDict()
    for split, file in {"test": test, "dev": dev}.items():
        rows = _by_subject(file).get(subject)
        if rows is None:
            raise LookupError(f"{file} has no row whose subject is {subject}")
        splits[split] = Dataset.from_list(rows)
    return splits


@functools.cache  # 57 subjects read the same files
def _by_subject(file: str) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    with Path(file).open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            rows.setdefault(row["subject"], []).append(row)
    return rows
