"""Draws items of a data set: each once, from every sub-task, whatever their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt

from raysearch.calibration.formats.base import Item, Sample, Task
from raysearch.calibration.windows import DrawOptions
from raysearch.errors import UserError

_MOST_ROWS = 2**18  # the most rows to draw from: more than the 170,420 of Commonsense170k


@dataclass(frozen=True)
class ItemOptions(DrawOptions):
    """How items are drawn, and which tokens are scored.

    Args:
        seq_len: The most tokens of a row, at least 2; longer ones are cut.
        sampling: ``random`` items, or the first ones (``sequential``).
        balance: Items of sub-tasks in ``equal`` numbers, or ``proportional`` to their numbers in the data; or ``none``:
            of all items alike.
        score: For objectives on text: the tokens of the ``answer``, or ``all``.
    """

    samples: PositiveInt | Literal["all"] = 64
    seq_len: Annotated[int, Field(ge=2)] = 2048
    sampling: Literal["random", "sequential"] = "random"
    balance: Literal["equal", "proportional", "none"] = "equal"
    score: Literal["all", "answer"] = "answer"


@dataclass(frozen=True)
class Located:
    """A sample and the name of its row for messages."""

    where: str
    sample: Sample


@dataclass(frozen=True)
class DrawnItems:
    """The drawn samples and counts of the rows."""

    samples: tuple[Located, ...]
    rows_read: int  #: duplicates and skipped ones included
    duplicates: int  #: rows equal to an earlier one
    skipped: int  #: rows that make no sample
    groups: Mapping[str, int]  #: samples drawn of each sub-task of the data; empty where there is only one


def draw_items(samples: Iterable[Located | None], options: ItemOptions, needs: str = "") -> DrawnItems:
    """Draw samples without duplicates, and refuse too few; a row that is skipped is None among them.

    A random draw depends on the set of items and the seed, not on their order. `needs` says what a row needs to make a
    sample, for the message where none does.
    """
    known: dict[Sample, Located] = {}
    rows_read = skipped = 0
    for located in islice(samples, _MOST_ROWS):
        rows_read += 1
        if located is None:
            skipped += 1
        else:
            known.setdefault(located.sample, located)
    duplicates = rows_read - skipped - len(known)
    wanted = max(1, int(min(options.most, len(known)))) if options.samples == "all" else options.samples
    _check_enough(wanted, len(known), duplicates, skipped, needs)

    groups: dict[str, list[Located]] = {}
    for located in known.values():
        groups.setdefault("" if options.balance == "none" else _group(located), []).append(located)
    groups = dict(sorted(groups.items()))

    rng = np.random.default_rng(options.seed)
    sizes = {name: len(members) for name, members in groups.items()}
    if options.samples == "all" and wanted == len(known):
        shares = sizes
    else:
        shares = _equal(sizes, wanted, rng) if options.balance == "equal" else _proportional(sizes, wanted)
    drawn: list[Located] = []
    for name, members in groups.items():
        if options.sampling == "random":
            members.sort(key=lambda located: repr(located.sample))
            chosen = rng.choice(len(members), size=shares[name], replace=False)
            drawn += [members[place] for place in chosen]
        else:
            drawn += members[: shares[name]]
    names = sorted({_group(located) for located in known.values()})
    taken = Counter(map(_group, drawn))
    counts = {name: taken[name] for name in names} if len(names) > 1 else {}
    return DrawnItems(tuple(drawn), rows_read, duplicates, skipped, counts)


def _group(located: Located) -> str:
    """Return the sub-task of a sample; empty where there is only one."""
    return located.sample.group if isinstance(located.sample, Item | Task) else ""


def _check_enough(samples: int, found: int, duplicates: int, skipped: int, needs: str) -> None:
    if not found and skipped:
        remedy = f"it takes {needs}" if needs else "give other rows"
        raise UserError(f"none of the {skipped} rows of the data makes an item; {remedy}")
    if not found:
        raise UserError("data holds no rows; choose another source")
    if found < samples:
        counts = {"duplicates": duplicates, "rows that make no item": skipped}
        left_out = " and ".join(f"{count} {what}" for what, count in counts.items() if count)
        without = f", without {left_out}" if left_out else ""
        raise UserError(
            f"data.samples={samples} items were asked for, but the data holds {found}{without}; use "
            f"data.samples={found} or more data"
        )


def _equal(sizes: Mapping[str, int], samples: int, rng: np.random.Generator) -> dict[str, int]:
    """Return equal numbers for all groups; a remainder goes to random groups."""
    each, left = divmod(samples, len(sizes))
    lucky = rng.permutation(len(sizes))[:left]
    shares = {name: each + (place in lucky) for place, name in enumerate(sizes)}
    short = min(sizes, key=lambda name: sizes[name] - shares[name])
    if sizes[short] < shares[short]:
        raise UserError(
            f"data.samples={samples} in equal parts takes {shares[short]} of each of {len(sizes)} sub-tasks, but "
            f"{short!r} has {sizes[short]}; use data.samples={sizes[short] * len(sizes)} or data.balance=proportional"
        )
    return shares


def _proportional(sizes: Mapping[str, int], samples: int) -> dict[str, int]:
    """Return numbers proportional to the groups' sizes; a remainder goes to those that were rounded down most."""
    total = sum(sizes.values())
    shares = {name: samples * size // total for name, size in sizes.items()}
    rounded_off = sorted(sizes, key=lambda name: -(samples * sizes[name] % total))
    for name in rounded_off[: samples - sum(shares.values())]:
        shares[name] += 1
    return shares
