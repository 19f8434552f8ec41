"""What was seen of each family, as plain values, and the file of them: a line for each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.jsonl"
#: The largest relative difference of two results in float32 that must be the same.
LARGEST_GAP = 1e-5


@dataclass(frozen=True)
class MaskResult:
    """What was seen of one mask.

    Args:
        removed: The removed layers.
        loss_gap: The relative difference of the loss to the oracle's.
        refused: The sentence that refused the export; None if it was written, and for the dense model.
        logit_gap: The largest difference of the reloaded model's logits to the oracle's, relative to the largest; None
            if there is no export.
        equal_tensors: The number of tensors with the bytes of the dense model's.
        wrong_tensors: The names of tensors that are missing, left over, or have other bytes.
        wrong_files: The names of other files that are missing or have other bytes.
        generates: Whether the reloaded model continues a prompt as the oracle does; a text if it raises an error; None
            if there is no export.
        gguf: Whether raysearch's pruned GGUF file is what llama.cpp's converter makes of the export; a sentence if it
            was refused; None if it was not compared.
        wrong_gguf: The names of tensors and metadata that differ in it.
    """

    removed: Sequence[int]
    loss_gap: float
    refused: str | None = None
    logit_gap: float | None = None
    equal_tensors: int = 0
    wrong_tensors: Sequence[str] = ()
    wrong_files: Sequence[str] = ()
    generates: bool | str | None = None
    gguf: bool | str | None = None
    wrong_gguf: Sequence[str] = ()

    @property
    def is_exported(self) -> bool:
        """Whether there is an export."""
        return self.logit_gap is not None

    @property
    def wrong(self) -> list[str]:
        """What is wrong: not refused, and not as it must be."""
        wrong = []
        if not self.loss_gap <= LARGEST_GAP:
            wrong.append(f"loss differs by {self.loss_gap:.0e}")
        if self.logit_gap is not None and not self.logit_gap <= LARGEST_GAP:
            wrong.append(f"logits differ by {self.logit_gap:.0e}")
        if self.generates is False:
            wrong.append("other tokens are generated")
        wrong += [f"{name} of the GGUF file differs" for name in self.wrong_gguf]
        return wrong + [f"{name} differs" for name in (*self.wrong_tensors, *self.wrong_files)]


@dataclass(frozen=True)
class FamilyResult:
    """What was seen of one family.

    Args:
        family: The model type.
        transformers: The version of transformers.
        source: A digest of the code of raysearch and of these checks.
        date: The day, in ISO format.
        multimodal: Whether transformers has a class of multimodal models for it.
        causal: Whether transformers has a class of causal language models for it.
        parameters: Of the tiny model.
        unbuilt: Why there is no tiny model; None if there is.
        refused: The sentence that refused the search; None if it was scored.
        masks: What was seen of each mask; empty if the search was refused.
        unconverted: Why llama.cpp's converter makes no GGUF file of the dense model; None if it does, or is not there.
        failed: What ended the check: an error, or the limit of time; None if it came to its end.
        seconds: The time of the check.
    """

    family: str
    transformers: str
    source: str
    date: str
    multimodal: bool = False
    causal: bool = False
    parameters: int = 0
    unbuilt: str | None = None
    refused: str | None = None
    masks: Sequence[MaskResult] = ()
    unconverted: str | None = None
    failed: str | None = None
    seconds: float = 0.0

    @property
    def wrong(self) -> list[str]:
        """What is wrong, of all masks."""
        return [f"without {list(mask.removed)}: {what}" for mask in self.masks for what in mask.wrong]


def read_results() -> list[FamilyResult]:
    """Return the recorded results; of a family that was checked several times, the last one."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.is_file() else []
    results = {}
    for line in lines:
        values = json.loads(line)
        result = FamilyResult(**values | {"masks": [MaskResult(**mask) for mask in values["masks"]]})
        results[result.family] = result
    return [results[family] for family in sorted(results)]


def record(result: FamilyResult) -> None:
    """Append a result to the file."""
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def tidy() -> None:
    """Keep only the last result of each family, sorted."""
    RESULTS.write_text("".join(json.dumps(asdict(result)) + "\n" for result in read_results()), encoding="utf-8")


def source_digest() -> str:
    """Return a digest of the code of raysearch and of these checks."""
    files = sorted([*(ROOT / "raysearch").rglob("*.py"), *HERE.glob("*.py")])
    content = b"".join(file.read_bytes() for file in files if file.name != "page.py")
    return hashlib.sha256(content).hexdigest()[:12]


def transformers_version() -> str:
    """Return the version of transformers; it is not imported."""
    return metadata.version("transformers")
