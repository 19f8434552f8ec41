"""Writes the page of the documents about all families, docs/families.md, from `results.jsonl`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from experiments.families.results import LARGEST_GAP, ROOT, FamilyResult, read_results
from raysearch.core.versions import VERSION

PAGE = ROOT / "docs" / "families.md"
_YES, _NO = "✓", "–"


def main() -> None:
    PAGE.write_text(page(read_results()), encoding="utf-8")


def page(results: Sequence[FamilyResult]) -> str:
    """Return the page in Markdown.

    Args:
        results: What was seen of each family.
    """
    releases = ", ".join(sorted({result.transformers for result in results}))
    date = max(result.date for result in results)
    searched = [result for result in results if result.masks]
    n_masks = len(searched[0].masks) - 1
    largest_loss_gap = max(mask.loss_gap for result in searched for mask in result.masks)
    exports = [mask for result in searched for mask in result.masks if mask.is_exported]
    largest_logit_gap = max(mask.logit_gap or 0.0 for mask in exports)
    refused = [result for result in results if result.refused]
    others = [result for result in results if result.unbuilt or result.failed]
    return "\n".join(
        [
            "# Families",
            "",
            f"This page lists what raysearch {VERSION} does with {len(results)} model types for which transformers "
            f"{releases} has a class of causal or of multimodal language models. It was written on {date} by "
            "[a program](../experiments/families), which you can run again.",
            "",
            "For each type the program makes a tiny random model with the layers of its family: their kinds, periods, "
            "windows, experts, towers for images and sounds. It compares raysearch with transformers alone:",
            "",
            "- **Scored**: the losses of the model, and of the model without some layers, are those of plain "
            f"forwards of transformers. The largest relative difference is {largest_loss_gap:.0e}.",
            f"- **Exported**: {n_masks} masks are exported: the first layer, the last one, and three in the middle. "
            f"Plain transformers loads each export; its logits differ by at most {largest_logit_gap:.0e} of the "
            "largest. Every tensor that is of no removed layer has its bytes, and so has every file of tokenizer, "
            "processor and chat templates.",
            "- **Generates**: with a cache, the export continues a prompt as the masked model does.",
            "- **GGUF**: llama.cpp's converter makes a file of the dense model, raysearch prunes it, and the result is "
            "the file that the converter makes of the export, tensor by tensor. The sign – says that the converter has "
            "no such architecture, or refuses the tiny model.",
            "",
            *_counts(results),
            "",
            "## Searched",
            "",
            "| family | reads | exported | generates | GGUF | why not |",
            "|---|---|---|---|---|---|",
            *(_row(result, n_masks) for result in searched),
            "",
            "## Refused",
            "",
            "raysearch refuses these before a search, with this sentence.",
            "",
            "| family | reads | sentence |",
            "|---|---|---|",
            *(f"| {result.family} | {_reads(result)} | {_cell(result.refused or '')} |" for result in refused),
            "",
            "## Not checked",
            "",
            "There is no tiny model of these, or transformers does not run it, dense or without some layers.",
            "",
            "| family | reads | reason |",
            "|---|---|---|",
            *(
                f"| {result.family} | {_reads(result)} | {_cell(result.unbuilt or result.failed or '')} |"
                for result in others
            ),
            "",
        ]
    )


def is_whole(result: FamilyResult) -> bool:
    """Return whether a family has exports, and all of them are right."""
    return any(mask.is_exported for mask in result.masks) and not result.wrong


def _counts(results: Sequence[FamilyResult]) -> list[str]:
    """Return a table of numbers of families."""
    columns = {
        "text alone": [result for result in results if not result.multimodal],
        "images or sounds, with a causal class": [result for result in results if result.multimodal and result.causal],
        "images or sounds, without one": [result for result in results if result.multimodal and not result.causal],
        "all": list(results),
    }
    rows: dict[str, Callable[[FamilyResult], bool]] = {
        "families": lambda result: True,
        "scored, and right": lambda result: bool(result.masks) and _are_scored(result),
        "exported, whole and right": is_whole,
        "all masks exported": lambda result: is_whole(result) and all(mask.is_exported for mask in result.masks[1:]),
        "generate": lambda result: is_whole(result) and _all(mask.generates for mask in result.masks[1:]),
        "GGUF files compared": lambda result: any(mask.gguf is True for mask in result.masks),
        "wrong": lambda result: bool(result.wrong),
        "refused": lambda result: bool(result.refused),
        "not checked": lambda result: bool(result.unbuilt or result.failed),
    }
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for name, holds in rows.items():
        lines.append(f"| {name} | {' | '.join(str(sum(map(holds, column))) for column in columns.values())} |")
    return lines


def _are_scored(result: FamilyResult) -> bool:
    return all(mask.loss_gap <= LARGEST_GAP for mask in result.masks)


def _all(values: Iterable[bool | str | None]) -> bool:
    """Return whether all values that are not None are True, and there are some."""
    present = [value for value in values if value is not None]
    return bool(present) and all(value is True for value in present)


def _row(result: FamilyResult, n_masks: int) -> str:
    masks = result.masks[1:]
    n_exported = sum(mask.is_exported for mask in masks)
    generates = [mask.generates for mask in masks if mask.is_exported]
    n_generating = sum(value is True for value in generates)
    pruned = [mask.gguf for mask in masks if mask.gguf is not None]
    n_pruned = sum(value is True for value in pruned)
    reasons = [mask.refused for mask in masks if mask.refused]
    reasons += [value for value in (*generates, *pruned) if isinstance(value, str)]
    cells = [
        result.family,
        _reads(result),
        _share(n_exported, n_masks),
        _share(n_generating, len(generates)),
        _share(n_pruned, len(pruned)),
        _cell("; ".join(dict.fromkeys([*result.wrong, *map(_without_mask, reasons)]))),
    ]
    return f"| {' | '.join(cells)} |"


def _reads(result: FamilyResult) -> str:
    return "more than text" if result.multimodal else "text"


def _share(number: int, total: int) -> str:
    if not total:
        return _NO
    return _YES if number == total else f"{number} of {total}"


def _without_mask(sentence: str) -> str:
    """Return a sentence of a refusal without its mask, number and remedy, so that several masks have the same."""
    text = re.sub(r" without \{[\d,]+\}", " without some layers", sentence)
    text = re.sub(r"\{[\d,]+\}", "the mask", text)
    text = re.sub(r"differ by [\d.e+-]+ of the largest", "differ", text)
    return text.partition("; ")[0].replace("dense.gguf", "the GGUF file")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("{", "&#123;")


if __name__ == "__main__":
    main()
