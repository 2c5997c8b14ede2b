"""How many messages of the log to ask for, where a certain number of changes is wanted.

The server's limit counts messages, and each commit has two more messages than changes. So each change is expected to
take as many messages as changes took lately: then a backlog of small commits makes as few batches as one of large
commits. And the server counts from where the slot stands, which does not move while quick batches follow one another.
"""

from __future__ import annotations

from typing import Final

from backfill.upstream.postgres.changes.log import MOST_MESSAGES, Peeked
from backfill.upstream.postgres.position import Position

FEW_CHANGES: Final = 100
"""Fewer changes than these do not tell how many messages to expect for many."""


class ExpectedMessages:
    """Predicts how many messages the next reading takes, from the readings before."""

    def __init__(self) -> None:
        self._per_change = 1.0
        self._passed_to = 0
        """The LSN up to which the log was read last."""

        self._passed = 0
        """The number of messages between where the slot stands and there."""

    def of(self, changes: int, after: Position) -> int:
        """The number of messages to ask for to get about so many changes after this position."""
        return min(int(changes * self._per_change) + self._met_again(after), MOST_MESSAGES)

    def _met_again(self, after: Position) -> int:
        """The number of messages before this position that are known to be met again."""
        return self._passed if after.lsn >= self._passed_to else 0

    def learn(self, peeked: Peeked) -> None:
        changes = peeked.rows.row_count
        if changes >= FEW_CHANGES:
            found = (peeked.message_count - self._met_again(peeked.stretch.after)) / changes
            # Three where each change has a commit of its own. Whatever else is skipped counts as well, and may be most.
            self._per_change = min(max(found, 1.0), 3.0)
        self._passed_to, self._passed = peeked.end, peeked.message_count

    def slot_moves(self) -> None:
        """Notes that the slot moves, so that the messages read since it stood still are not met again."""
        self._passed_to = self._passed = 0
