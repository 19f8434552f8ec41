"""Numbers for people, at the edges of their units."""

from __future__ import annotations

from raysearch.core.formatting import duration, size


def test_what_is_rounded_up_goes_to_the_next_unit() -> None:
    assert [size(n) for n in (999, 999.6, 1500, 999_600, 2.3e9)] == ["999 B", "1 kB", "1.5 kB", "1 MB", "2.3 GB"]
    assert [duration(s) for s in (59.4, 59.7, 3600)] == ["59 s", "1 min 00 s", "1 h 00 min"]
