"""Amounts as people read them: sizes, times, how far a stream is behind, and how fast it reads."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

_LAST_MOMENT: Final = (1 << 63) - 1


def size(count: int) -> str:
    """A number of bytes, in a unit that fits."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if round(amount, 1) < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = max(0, round(seconds))
    for length, unit, smaller, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // smaller} {below}"
    return f"{whole} s"


def lag(lag_bytes: int | None, lag_seconds: float | None, retained_bytes: int | None) -> list[str]:
    """How far a stream is behind and what that costs the database, as far as it is known."""
    behind = [] if lag_bytes is None else [size(lag_bytes)]
    if lag_seconds is not None:
        behind.append(duration(lag_seconds))
    kept = [] if retained_bytes is None else [f"log kept by the slot {size(retained_bytes)}"]
    return [f"behind {' and '.join(behind)}", *kept] if behind else kept


def pace(rows_per_second: float, seconds_left: float | None) -> str:
    left = "" if seconds_left is None else f", about {duration(seconds_left)} left"
    rate, unit = (rows_per_second, "s") if rows_per_second >= 0.001 else (rows_per_second * 3600, "h")
    shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
    return f"{shown} rows/{unit}{left}"


def iso(microseconds: int) -> str:
    """A moment given in µs since 1970, as text for programs: to the millisecond, in UTC."""
    return f"{_cut(microseconds, 'ms')}+00:00"


def moment(microseconds: int) -> str:
    """A moment given in µs since 1970, as text for people: to the second, in UTC."""
    return f"{_cut(microseconds, 's').replace('T', ' ')} UTC"


def _cut(microseconds: int, unit: Literal["ms", "s"]) -> str:
    """A moment given in µs since 1970, in ISO format, cut to the unit.

    NumPy makes it, because Python's datetime ends with the year 9999: some program may have written a commit's time in
    another unit, and what is only shown must not end the program that shows it.
    """
    return str(np.datetime64(min(microseconds, _LAST_MOMENT), "us").astype(f"datetime64[{unit}]"))
