"""Whether a snapshot still has its rows, by the files that hold them."""

from __future__ import annotations

import pytest

from backfill.upstream.postgres.snapshot.files import Files

THEN = Files.parse("7:70,8:80,9:90-")


@pytest.mark.parametrize(
    ("now", "same", "holds"),
    [
        ("7:70,8:80,9:90-", True, True),
        ("7:70,8:80,9:90", True, True),  # rows have come to where there were none
        ("7:70-,8:80,9:90", True, True),  # the rows have been deleted, and no snapshot sees them any more
        ("7:70,8:80", True, True),  # an empty one was dropped
        ("7:70,8:80,9:90-,10:1-", True, True),  # an empty one was made
        ("7:70,8:80,9:91-", False, True),  # an empty one was truncated
        ("7:70,8:80,9:90-,10:1", False, False),  # one with rows was attached, or was made and filled
        ("7:70,9:90-", False, False),  # one with rows was detached or dropped
        ("7:70,8:81-,9:90-", False, False),  # one with rows was truncated
        ("7:70,8:81,9:90-", False, False),
        ("", False, False),
    ],
)
def test_a_state_can_be_read_while_its_rows_are_where_they_were_and_no_others_have_come(
    now: str, *, same: bool, holds: bool
) -> None:
    files = Files.parse(now)
    assert (files.are_those_of(THEN), files.hold_rows_of(THEN)) == (same, holds)


def test_an_empty_table_may_be_dropped() -> None:
    assert Files.parse("").hold_rows_of(Files.parse("7:70-"))
    assert Files.parse("") == Files({}, frozenset())
