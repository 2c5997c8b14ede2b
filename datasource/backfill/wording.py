"""What people are told, as they read it: amounts, names, lists of facts, and errors that several modules raise."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from backfill.errors import DefiniteError, OptionsError, SchemaChangedError


def in_option(name: str) -> str:
    """A column's name as the options that name columns want it."""
    return name if re.fullmatch(r"\w+", name) else '"' + name.replace('"', '""') + '"'


def no_column(table: str, name: str, present: Sequence[str]) -> str:
    """What is told of a name that none of the columns has, and is perhaps misspelt."""
    close = [each for each in present if each.lower() == name.lower()] or get_close_matches(name, present, 1)
    hint = f", did you mean {close[0]!r}?" if close else f"; it has {', '.join(present)}"
    return f"{table} has no column {name!r}{hint}"


def unusable(what: str, done: str, error: Exception) -> str:
    """What is told of a file or folder of ours that the system refuses: be it full, somebody else's, or not there."""
    return (
        f"{what} cannot be {done}: {error}. Make room there, or let the account that this runs as use it; or name "
        "another place"
    )


def columns_not_there(problems: Sequence[str], *, of_spark: bool) -> DefiniteError:
    """The error for columns of which this is wrong: those of the option, or those that Spark says are to be read."""
    if not of_spark:
        return OptionsError(f"the option columns: {'; '.join(problems)}")
    return SchemaChangedError(
        f"{'; '.join(problems)}. The DataFrame or the table of Spark's catalog is to have it: load() it or create its "
        "Spark table again, if either table was altered; leave out schema(…); the option columns chooses columns"
    )


def another_option(began: str, now: str) -> str:
    """What a stream is told that goes on with another value of an option that it keeps to its end."""
    return (
        f"the stream began with {began}, and is given {now} now. Set it back; or start over with a fresh "
        "checkpointLocation and onExistingState=restart"
    )


def size(count: int) -> str:
    """Bytes as people read them."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """A time as people read it, in its two largest units."""
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
    return f"{rows_per_second:,.0f} rows/s{left}"


def wrapped(facts: Sequence[str], width: int) -> Iterator[str]:
    """The facts, as many to a line as fit; one that is longer than a line is cut."""
    line = ""
    for fact in facts:
        if line and len(line) + 2 + len(fact) > width:
            yield f"{line},"[:width]
            line = ""
        line = f"{line}, {fact}" if line else fact[:width]
    yield line
