"""The figure of a recommendation: the knee of a search by budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raysearch.core.paths import as_name, write_files
from raysearch.figures.knee import Knee, KneePanel, draw_knee
from raysearch.figures.picture import png
from raysearch.searching.recommendation import Recommendation
from raysearch.text.numbers import size as size_text

if TYPE_CHECKING:
    from raysearch.figures.picture import Figure


def knee_file(search_id: str, store: Path) -> Path:
    """Return the file of the figure of a search, which need not be there.

    Args:
        search_id: The id of the search.
        store: The folder of the store.

    Returns:
        The path of the file.
    """
    return store / "reports" / as_name("SEARCH", search_id) / "knee.png"


def write_knee(recommendation: Recommendation, store: Path) -> Path:
    """Draw the figure of a search by budget, and return its file.

    Args:
        recommendation: The recommendation of the search.
        store: The folder of the store.

    Returns:
        The path of the PNG file.

    Raises:
        UserError: The file cannot be written.
    """
    file = knee_file(recommendation.search_id, store)
    write_files("store", store, {str(file.relative_to(store)): png(_figure(recommendation))})
    return file


def _figure(recommendation: Recommendation) -> Figure:
    """Draw the loss over the dense model's by size; speed and memory if measured; the KV cache if limited.

    The recommended number is marked. Dashed lines are the budget, bars are one standard error.
    """
    budget = recommendation.budget
    losses = {size.n_removed: (size.delta, size.delta_error) for size in recommendation.sizes}
    panels = [KneePanel(f"loss over dense\n({recommendation.measure.unit})", losses, budget.loss)]
    speeds = {size.n_removed: size.speed for size in recommendation.sizes if size.speed is not None}
    if speeds:
        decoding = {size: (speed.speedup, speed.error) for size, speed in speeds.items()}
        panels.append(KneePanel("decoding speed\n(× dense)", decoding, budget.speedup))
        sizes = {size: (speed.memory_bytes, None) for size, speed in speeds.items() if speed.memory_bytes is not None}
        changes = {size: (speed.memory, None) for size, speed in speeds.items() if speed.memory is not None}
        if sizes and budget.is_of_bytes("memory"):
            panels.append(KneePanel("peak memory", sizes, budget.memory, size_text))
        elif changes:
            panels.append(KneePanel("peak memory\n(change)", changes, budget.memory, "{:+.0%}".format))
        if budget.latency_ms is not None:
            latencies = {
                size: (speed.latency_ms, speed.latency_error_ms)
                for size, speed in speeds.items()
                if speed.latency_ms is not None
            }
            panels.append(KneePanel("request (ms)", latencies, budget.latency_ms))
    kv_memories = {size.n_removed: size.kv_memory for size in recommendation.sizes if size.kv_memory is not None}
    if kv_memories and budget.is_of_bytes("kv_memory"):
        kv_sizes = {size: (float(kv_memory.size_bytes), None) for size, kv_memory in kv_memories.items()}
        panels.append(KneePanel("KV cache", kv_sizes, budget.kv_memory, size_text))
    elif kv_memories:
        kv_changes = {size: (kv_memory.change, None) for size, kv_memory in kv_memories.items()}
        panels.append(KneePanel("KV cache\n(change)", kv_changes, budget.kv_memory, "{:+.0%}".format))
    plural = recommendation.space.plural
    return draw_knee(
        Knee(
            title=f"{recommendation.model}: {recommendation.n_removed} {plural} can go by {budget}",
            sizes=[size.n_removed for size in recommendation.sizes],
            recommended_size=recommendation.n_removed,
            recommended_mask=str(recommendation.removed),
            panels=panels,
            plural=plural,
        )
    )
