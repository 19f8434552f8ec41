"""Draws items of a data set: each item once, from every sub-task, independently of the order of the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt

from raysearch.calibration.formats.base import ImageQuestion, Item, Sample, Task
from raysearch.calibration.windows import DrawOptions
from raysearch.errors import UserError

_MOST_ROWS = 2**18  # the most rows to draw from: Commonsense170k has 170,420


@dataclass(frozen=True)
class ItemOptions(DrawOptions):
    """The options that draw items and select the scored tokens.

    Args:
        seq_len: The most tokens of a row, at least 2; longer rows are cut.
        sampling: ``random`` items, or the first items (``sequential``).
        balance: ``equal``: the same number of items from each sub-task; ``proportional``: numbers proportional to the
            sizes of the sub-tasks; ``none``: a draw from all items, whatever their sub-task.
        score: For objectives on text: the scored tokens, those of the ``answer`` or ``all``.
    """

    samples: PositiveInt | Literal["all"] = 64
    seq_len: Annotated[int, Field(ge=2)] = 2048
    sampling: Literal["random", "sequential"] = "random"
    balance: Literal["equal", "proportional", "none"] = "equal"
    score: Literal["all", "answer"] = "answer"


@dataclass(frozen=True)
class Located:
    """A sample and the name of its row."""

    where: str  #: the name of the row in messages: ``row 7``
    sample: Sample


@dataclass(frozen=True)
class DrawnItems:
    """The drawn samples, and counts of rows."""

    samples: tuple[Located, ...]
    rows_read: int  #: all rows, duplicates and skipped rows included
    duplicates: int  #: rows whose sample equals that of an earlier row
    skipped: int  #: rows that make no sample
    groups: Mapping[str, int]  #: samples drawn of each sub-task of the data; empty if there is only one sub-task


def draw_items(samples: Iterable[Located | None], options: ItemOptions, needs: str = "") -> DrawnItems:
    """Draw samples without duplicates.

    A random draw depends on the set of items and the seed, not on the order of the items.

    Args:
        samples: The sample of each row; None for a row that makes no sample.
        options: The options of the draw.
        needs: The condition that a row must meet to make a sample, for the message if no row meets it.

    Returns:
        The drawn samples, and the counts of rows.

    Raises:
        UserError: There are too few samples.
    """
    distinct: dict[Sample, Located] = {}
    rows_read = 0
    skipped = 0
    for located in islice(samples, _MOST_ROWS):
        rows_read += 1
        if located is None:
            skipped += 1
        else:
            distinct.setdefault(located.sample, located)
    duplicates = rows_read - skipped - len(distinct)
    n_available = max(1, int(min(options.most, len(distinct))))
    n_samples = n_available if options.samples == "all" else options.samples
    _check_enough(n_samples, len(distinct), duplicates, skipped, needs)

    groups: dict[str, list[Located]] = {}
    for located in distinct.values():
        name = "" if options.balance == "none" else _group(located)
        groups.setdefault(name, []).append(located)
    groups = dict(sorted(groups.items()))

    rng = np.random.default_rng(options.seed)
    sizes = {name: len(members) for name, members in groups.items()}
    if options.samples == "all" and n_samples == len(distinct):
        shares = sizes
    elif options.balance == "equal":
        shares = _equal(sizes, n_samples, rng)
    else:
        shares = _proportional(sizes, n_samples)
    drawn: list[Located] = []
    for name, members in groups.items():
        if options.sampling == "random":
            members.sort(key=lambda located: repr(located.sample))
            chosen = rng.choice(len(members), size=shares[name], replace=False)
            drawn += [members[index] for index in chosen]
        else:
            drawn += members[: shares[name]]
    names = sorted({_group(located) for located in distinct.values()})
    drawn_by_group = Counter(map(_group, drawn))
    counts = {name: drawn_by_group[name] for name in names} if len(names) > 1 else {}
    return DrawnItems(tuple(drawn), rows_read, duplicates, skipped, counts)


def _group(located: Located) -> str:
    """Return the sub-task of a sample; empty if there is only one sub-task."""
    return located.sample.group if isinstance(located.sample, Item | Task | ImageQuestion) else ""


def _check_enough(n_samples: int, n_distinct: int, duplicates: int, skipped: int, needs: str) -> None:
    if not n_distinct and skipped:
        remedy = f"it takes {needs}" if needs else "give other rows"
        raise UserError(f"none of the {skipped} rows of the data makes an item; {remedy}")
    if not n_distinct:
        raise UserError("data holds no rows; choose another source")
    if n_distinct < n_samples:
        counts = {"duplicates": duplicates, "rows that make no item": skipped}
        omissions = " and ".join(f"{count} {noun}" for noun, count in counts.items() if count)
        without = f", without {omissions}" if omissions else ""
        raise UserError(
            f"data.samples={n_samples} items were asked for, but the data holds {n_distinct}{without}; use "
            f"data.samples={n_distinct} or more data"
        )


def _equal(sizes: Mapping[str, int], samples: int, rng: np.random.Generator) -> dict[str, int]:
    """Return equal numbers for all groups; a remainder goes to random groups, one sample each."""
    share, remainder = divmod(samples, len(sizes))
    larger_groups = rng.permutation(len(sizes))[:remainder]
    shares = {name: share + 1 if index in larger_groups else share for index, name in enumerate(sizes)}
    short = min(sizes, key=lambda name: sizes[name] - shares[name])
    if sizes[short] < shares[short]:
        raise UserError(
            f"data.samples={samples} in equal parts takes {shares[short]} of each of {len(sizes)} sub-tasks, but "
            f"{short!r} has {sizes[short]}; use data.samples={sizes[short] * len(sizes)} or data.balance=proportional"
        )
    return shares


def _proportional(sizes: Mapping[str, int], samples: int) -> dict[str, int]:
    """Return numbers proportional to the groups' sizes; a remainder goes to the groups that were rounded down most."""
    total = sum(sizes.values())
    shares = {name: samples * size // total for name, size in sizes.items()}
    rounded_off = sorted(sizes, key=lambda name: -(samples * sizes[name] % total))
    for name in rounded_off[: samples - sum(shares.values())]:
        shares[name] += 1
    return shares
