"""The changes that were read for a batch, kept until it is committed or another one is planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from backfill.epoch import Epoch
from backfill.upstream.postgres.changes.log import Peeked
from backfill.upstream.postgres.position import LOG_BEGIN, Lsn, Position


@dataclass(frozen=True, slots=True)
class _Last:
    """What was read, and the position up to which it leads."""

    upto: str
    peeked: Peeked


class KeptChanges:
    """The changes that were read last; and for each batch that was planned, how far the server may forget the log."""

    def __init__(self) -> None:
        self._last: _Last | None = None
        self._acknowledgeable: dict[str, Lsn] = {}

    def keep(self, upto: Epoch, peeked: Peeked) -> None:
        """Keeps what was read, which leads to the epoch `upto`."""
        self.let_go()
        self._last = _Last(upto.position, peeked)
        position = Position.parse(upto.position)
        if position.snapshot is not None:
            self._acknowledgeable[upto.position] = peeked.acknowledgeable(position)

    def let_go(self) -> None:
        """Keeps nothing any longer."""
        if self._last is not None:
            self._last.peeked.rows.close()
        self._last = None

    def between(self, after: Epoch, upto: Epoch) -> Iterator[pa.RecordBatch] | None:
        """The changes between the two epochs; None where they are not what was read last."""
        last = self._last
        if last is None or last.upto != upto.position or last.peeked.stretch.after != Position.parse(after.position):
            return None
        return iter(last.peeked.rows)

    def committed(self, epoch: Epoch) -> Lsn:
        """Up to where the server may forget the log once `epoch` has been committed; LOG_BEGIN where that is not known.

        The changes that led to it are kept no longer: they may fill a disk, and it may be a while until the next ones.

        For a position with a snapshot this is known only to the process that read the log up to it. After a restart
        nothing is acknowledged; the next batch makes up for it.
        """
        if self._last is not None and self._last.upto == epoch.position:
            self.let_go()
        position = Position.parse(epoch.position)
        known = position.seen if position.snapshot is None else LOG_BEGIN
        found = self._acknowledgeable.pop(epoch.position, known)
        self._acknowledgeable = {}
        return found
