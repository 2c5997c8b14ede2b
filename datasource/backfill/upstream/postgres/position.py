"""Positions: which transactions a state of PostgreSQL shows.

A transaction belongs to a position if its commit record starts before `lsn` *and* `snapshot`, where there is one,
sees it:

- `(lsn, snapshot)` with the insert position taken just after the snapshot: exactly what the snapshot sees. The LSN
  alone would be wrong, because a commit record is in the log before the commit becomes visible, and stays so for as
  long as a synchronous standby does not answer.
- `(lsn, snapshot)` with an earlier LSN: a part of that, in commit order, to work off a backlog in bounded batches.
- `(lsn, snapshot, timeline)`: the same, for a state at which rows were read later than planned. The timeline of the
  server's log tells whether that state was undone when a standby was promoted.
- `(lsn,)`: once no snapshot rows are read any more, visibility no longer matters. But rows may be read again, and then
  a snapshot follows, which must see all that this position shows. So what readers did not see yet when the position was
  taken stays in the log until a later one says that they do: `unseen` is where that begins.

Two transactions that write the same row or key are never on the wrong sides of a position: the later one waits for the
earlier one to become visible before it can commit.

Text: `16/B374D848`, or with a snapshot as PostgreSQL writes it `16/B374D848 740:745:741,743`, or with `unseen`
`16/B374D848 16/B374D000`; a timeline stands behind the snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

import numpy as np
import numpy.typing as npt

from backfill.arrow.arrays import Mask
from backfill.upstream.noted import not_one

Lsn = NewType("Lsn", int)
"""A byte position in the log (PostgreSQL manual, "pg_lsn Type")."""

LOG_BEGIN: Final = Lsn(0)
"""Before all of the log; where an LSN was looked for, it means that there is none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A `pg_snapshot`: sees transactions below `xmin`, and those below `xmax` that are not in `running`.

    Transaction ids have 64 bits here (PostgreSQL manual, "Transaction ID and Snapshot Information Functions").
    """

    xmin: int
    xmax: int
    running: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(xid) for xid in running.split(",") if xid))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def sees(self, xids: npt.NDArray[np.uint32]) -> Mask:
        """For each 32-bit transaction id, as the change log has it, whether its transaction is visible.

        The log's ids are taken to be within 2^31 of the snapshot, which wraparound protection guarantees.
        """
        distance = (xids - np.uint32(self.xmax & 0xFFFFFFFF)).astype(np.int32).astype(np.int64)
        full = distance + self.xmax
        return (full < self.xmin) | ((full < self.xmax) & ~np.isin(full, np.array(self.running, np.int64)))

    def sees_all_of(self, other: Snapshot) -> bool:
        """Whether every transaction that `other` sees is visible here too."""
        hidden = (xid for xid in self.running if xid < other.xmax)
        return self.xmax >= other.xmax and all(xid in other.running for xid in hidden)


@dataclass(frozen=True, slots=True)
class Position:
    """See the module's description."""

    lsn: Lsn
    snapshot: Snapshot | None = None
    unseen: Lsn | None = None
    """Without a snapshot: where the first commit stands that readers might not see; None where they saw all."""

    timeline: str = ""
    """Empty on the first timeline, and in the positions of epochs, which are on the one that the bookmark names."""

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position of this text; OffsetError where it is none."""
        lsn, _, more = text.partition(" ")
        try:
            if "/" in more:
                return cls(parse_lsn(lsn), unseen=parse_lsn(more))
            snapshot, _, timeline = more.partition(" ")
            return cls(parse_lsn(lsn), Snapshot.parse(snapshot) if snapshot else None, timeline=timeline)
        except ValueError:
            raise not_one("PostgreSQL", text) from None

    def __str__(self) -> str:
        more = self.snapshot if self.unseen is None else format_lsn(self.unseen)
        return " ".join([format_lsn(self.lsn), *(str(part) for part in (more, self.timeline) if part)])

    @property
    def seen(self) -> Lsn:
        """Without a snapshot: readers saw all up to here, and no later snapshot has to be checked for that."""
        return self.lsn if self.unseen is None else self.unseen

    def shows(self, xids: npt.NDArray[np.uint32], commit_lsns: npt.NDArray[np.uint64]) -> Mask:
        """For each transaction, given by its id and the start of its commit record, whether this position shows it."""
        before = commit_lsns < np.uint64(self.lsn)
        return before if self.snapshot is None else before & self.snapshot.sees(xids)

    def shows_all_until(self, end: Lsn) -> bool:
        """Whether this position shows every commit before `end`; False where one may not have been visible yet."""
        return self.lsn >= end and (self.snapshot is None or not self.snapshot.running)

    def shows_all_of(self, other: Position) -> bool:
        """Whether this position shows all that `other` does; False where that cannot be told from the two alone."""
        if self.lsn < other.lsn:
            return False
        if self.snapshot is None:
            return True
        return other.snapshot is not None and self.snapshot.sees_all_of(other.snapshot)


def end_of_last_record(insert_lsn: Lsn) -> Lsn:
    """Where the last record ends, given where the next one will begin, as `pg_current_wal_insert_lsn` tells.

    It is the same place, unless the last record fills its page: then the head of the next page lies between, of 24
    bytes, or of 40 where a segment begins (PostgreSQL, xlog_internal.h). No commit is that short, so whatever the size
    of pages, none lies there.
    """
    into_page = insert_lsn % 8192
    behind_head = into_page == 24 or insert_lsn % (1 << 20) == 40
    return Lsn(insert_lsn - into_page) if behind_head else insert_lsn


def parse_lsn(text: str) -> Lsn:
    high, low = text.split("/")
    return Lsn((int(high, 16) << 32) | int(low, 16))


def format_lsn(lsn: Lsn) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
