"""How many messages of the log are to be asked for, where a certain number of changes is wanted.

The server's limit counts messages, and each commit has two more of them than it has changes. So as many messages for
each change are expected as there were lately: then a backlog of small commits makes as few batches as one of large
commits. And the server counts from where the slot stands, which does not move while quick batches follow one another.
"""

from __future__ import annotations

from typing import Final

from backfill.upstream.postgres.changes.log import MOST_MESSAGES, Peeked
from backfill.upstream.postgres.position import Position

FEW_CHANGES: Final = 100
"""Fewer do not tell what is to be expected of many."""


class ExpectedMessages:
    """What is expected of the next reading, by those before."""

    def __init__(self) -> None:
        self._per_change = 1.0
        self._passed_to = 0
        """Up to which LSN the log was read last."""

        self._passed = 0
        """How many messages that took from where the slot stands."""

    def of(self, changes: int, after: Position) -> int:
        """How many messages have about that many changes after this position."""
        return min(int(changes * self._per_change) + self._met_again(after), MOST_MESSAGES)

    def _met_again(self, after: Position) -> int:
        """How many messages before those after this position are known to be met again."""
        return self._passed if after.lsn >= self._passed_to else 0

    def learn(self, peeked: Peeked) -> None:
        changes = peeked.rows.row_count
        if changes >= FEW_CHANGES:
            found = (peeked.message_count - self._met_again(peeked.stretch.after)) / changes
            # Three where each change has a commit of its own. What else is skipped counts as well, and may be all.
            self._per_change = min(max(found, 1.0), 3.0)
        self._passed_to, self._passed = peeked.end, peeked.message_count

    def slot_moves(self) -> None:
        """What was passed since it stood still is not met again."""
        self._passed_to = self._passed = 0
