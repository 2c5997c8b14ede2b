"""How fast a stream reads, told from looks at what it has recorded, one after the other."""

from __future__ import annotations

from collections import deque
from typing import Final

from backfill.command.status import Pace, Status

LOOKS: Final = 30
"""The pace is taken over so many batches that were seen to end."""


class PaceMeter:
    """Remembers when the stream's last batches were seen to end. One that had ended before the first look might have
    done so long ago, and tells nothing.

    What counts is when it looked, not the moments of the states that batches end at: those of a backlog are long past,
    and so are those of a Delta table that nobody writes to.
    """

    def __init__(self) -> None:
        self._before: Status | None = None
        self._ends: deque[tuple[float, Status]] = deque(maxlen=LOOKS)

    def pace(self, now: Status, seconds: float) -> Pace | None:
        """The pace after this look, taken at so many `seconds` of a clock that nobody sets.

        None where no rows are being read, or too little of their reading has been seen.
        """
        before, self._before = self._before, now
        if before is None or _what_is_read(before) != _what_is_read(now):
            self._ends.clear()
        if before is not None and before.epoch != now.epoch:
            self._ends.append((seconds, now))
        if _what_is_read(now) is None or not self._ends:
            return None
        (began, first), (ended, last) = self._ends[0], self._ends[-1]
        rows = last.reading.rows - first.reading.rows
        if rows <= 0 or ended <= began:
            return None
        left = now.reading.rows_left
        rate = rows / (ended - began)
        return Pace(rate, None if left is None else left / rate)


def _what_is_read(of: Status) -> tuple[str, str | None] | None:
    """The stream whose rows are being read, and the request if they are read again; None where no rows are read."""
    if of.control.holds or of.barrier is None or of.phase not in ("snapshot", "again"):
        return None
    return of.stream, of.barrier.taken_up if of.phase == "again" else None
