"""Numbers for people, at the edges of their units."""

from __future__ import annotations

from raysearch.core.estimate import Estimate, estimate_text
from raysearch.text.numbers import duration, short_duration, size, three_digits


def test_what_is_rounded_up_goes_to_the_next_unit() -> None:
    assert [size(n) for n in (999, 999.6, 1500, 999_600, 2.3e9)] == ["999 B", "1 kB", "1.5 kB", "1 MB", "2.3 GB"]
    assert [duration(s) for s in (59.4, 59.7, 3600)] == ["59 s", "1 min 00 s", "1 h 00 min"]
    assert [short_duration(s) for s in (0.999, 0.9996, 9.94, 9.96)] == ["999 ms", "1.0 s", "9.9 s", "10 s"]


def test_ticks_have_three_digits_and_no_rounding_errors() -> None:
    numbers = (-0.0, 1 - 0.9999999999999998, 24.46, 21999)
    assert [three_digits(number) for number in numbers] == ["0", "0", "24.5", "22,000"]


def test_no_standard_error_is_in_powers_of_ten() -> None:
    estimates = [Estimate(0.5, 0.0123), Estimate(3000.0, 210.0), Estimate(12_345.6, 1234.0), Estimate(7.0), None]
    texts = [estimate_text(estimate) for estimate in estimates]
    assert texts == ["0.500 ± 0.012", "3,000 ± 210", "12,346 ± 1,234", "7", ""]
