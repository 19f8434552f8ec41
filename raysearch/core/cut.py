"""The cuts of a mask: where what it removes has been between two halves that stay."""

from __future__ import annotations

from dataclasses import dataclass

from raysearch.core.mask import PARTS, Half, Mask


@dataclass(frozen=True)
class Cut:
    """A run of removed halves of layers.

    Args:
        before: The last half that stays before the run; None if the run is the beginning of the model.
        removed: The halves of the run, in the order of the model.
        after: The first half that stays after the run; None if the run is the end of the model.
    """

    before: Half | None
    removed: tuple[Half, ...]
    after: Half | None

    @property
    def mask(self) -> Mask:
        """The run alone."""
        return Mask.of_halves(self.removed)

    def __str__(self) -> str:
        return str(self.mask)


def cuts_of(mask: Mask, n_layers: int) -> tuple[Cut, ...]:
    """Return the cuts of a mask, in the order of the model.

    Args:
        mask: The removed layers and halves.
        n_layers: N, the layers of the dense model.

    Returns:
        The cuts. No two of them are adjacent.
    """
    cuts = []
    before: Half | None = None
    run: list[Half] = []
    for half in (Half(layer, part) for layer in range(n_layers) for part in PARTS):
        if mask.removes(half):
            run.append(half)
            continue
        if run:
            cuts.append(Cut(before, tuple(run), half))
        before = half
        run = []
    if run:
        cuts.append(Cut(before, tuple(run), None))
    return tuple(cuts)
