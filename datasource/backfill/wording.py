"""Names and sentences that the errors of several modules share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from backfill.errors import DefiniteError, OptionsError, SchemaChangedError

FRESH_START: Final = "a fresh checkpointLocation and onExistingState=restart"
"""What a stream that cannot go on is started over with, so that it reads the whole table again."""

ELSEWHERE: Final = "a fresh checkpointLocation and an empty stateDir"
"""What a stream is started over with in another database, since what it had in the former cannot be removed there."""

OF_A_READ: Final = (
    "A read of changes has no checkpoint: load() later changes, with a later startingPosition; for what was before, "
    "read the table"
)
"""Follows the advice for a stream, in errors that a read between two positions may meet in the change log as well."""

LOG_WHOLE_ROWS: Final = (
    "if the key is the primary key and all columns are published (virtual generated ones never are), run ALTER TABLE "
    "… REPLICA IDENTITY FULL on the table, and on each of its partitions"
)

IN_ITS_PLACE: Final = "if the query reads several sources, keep them in their order"
"""Spark knows a query's sources by their order alone, if they have no names."""


def too_new(version: int, newest: int) -> str:
    """The end of the error for something stored that a later release has written."""
    read = f"this release reads up to {newest}"
    return f"of version {version}, and {read}; install the release that wrote it, or a newer one"


def in_option(name: str) -> str:
    """A column's name as one writes it in an option: quoted where that is needed."""
    return name if re.fullmatch(r"\w+", name) else '"' + name.replace('"', '""') + '"'


def no_column(table: str, name: str, present: Sequence[str]) -> str:
    """The error for a name that no column has, with the column that was perhaps meant."""
    return f"{table} has no column {name!r}{_hint(name, present, 'it has')}"


def not_read(option: str, name: str, present: Sequence[str]) -> str:
    """The same for a name in an option: only columns that are read may be meant."""
    return f"{option} names {name!r}{_hint(name, present, 'the columns are')}"


def _hint(name: str, present: Sequence[str], otherwise: str) -> str:
    close = [each for each in present if each.lower() == name.lower()] or get_close_matches(name, present, 1)
    return f", did you mean {close[0]!r}?" if close else f"; {otherwise} {', '.join(present)}"


def unusable(what: str, done: str, error: Exception) -> str:
    """The error for a file or folder of ours that the system refuses: it is full, or somebody else's, or not there."""
    return (
        f"{what} cannot be {done}: {error}. Make room there, give this process's account access, or name another place"
    )


def columns_not_there(problems: Sequence[str], *, of_spark: bool) -> DefiniteError:
    """The error for these problems with the columns to read: the option names them or, if `of_spark`, Spark does."""
    if not of_spark:
        return OptionsError(f"the option columns: {'; '.join(problems)}")
    return SchemaChangedError(
        f"{'; '.join(problems)}. The schema of the DataFrame or of the table in Spark's catalog names it. If the "
        "table was altered, load() again or create its Spark table again; else leave out schema(…), and choose "
        "columns with the option columns"
    )


def another_option(began: str, now: str) -> str:
    """The error for a stream that is restarted with another value of an option which it keeps to its end."""
    return f"the stream began with {began}, and now has {now}. Set it back, or start over with {FRESH_START}"
