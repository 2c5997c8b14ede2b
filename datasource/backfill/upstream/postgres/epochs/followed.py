"""Epochs that nobody is pinned to: places in the log, or what was visible at one moment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from backfill.epoch import Epoch
from backfill.upstream.postgres.changes.log import Peeked, Stretch
from backfill.upstream.postgres.epochs.reading import Reading
from backfill.upstream.postgres.position import LOG_BEGIN, Lsn, Position
from backfill.upstream.postgres.session.server import ask_log, require_log

HEARTBEAT_BYTES: Final = 16 << 20
"""How far the log may grow without anything for us before an empty batch lets the slot follow."""

EVERY_COMMIT: Final = Position(Lsn((1 << 63) - 1))


@dataclass(frozen=True, slots=True)
class SearchedLog:
    """How far the log was read by steps that read no rows: nothing is left to be found before there."""

    upto: Lsn = LOG_BEGIN
    found_after: Position | None = None
    """Where the last such reading began, if it found changes: a step from there must find them again, although they lie
    before `upto`.
    """

    def has_nothing(self, after: Position, upto: Lsn) -> bool:
        """Whether nothing is to be found after this position and up to this LSN."""
        return upto <= self.upto and after != self.found_after

    def having_read(self, peeked: Peeked) -> SearchedLog:
        if peeked.complete:
            stretch = peeked.stretch
            return SearchedLog(max(self.upto, stretch.upto), None if peeked.is_idle else stretch.after)
        # An earlier plan, which nobody logged, may have had room for more: the rest has to be found again.
        return replace(self, upto=min(self.upto, peeked.end))


class FollowedEpochs:
    """Finds the next epoch by the log alone; it is the one before where nothing has happened since."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.searched = SearchedLog()
        self._held_at: Position | None = None
        """The state up to which nothing was found while the snapshot was held."""

    def logged(self, after: Epoch | None, max_changes: int, until: str | None) -> Epoch:
        """The epoch after the next commits in the log, visible yet or not: no snapshot rows are read any more."""
        reading = self._reading
        if after is None:
            now = self._first()
            # Which commits were visible is known only once the log has been read.
            return reading.first(Position(now.lsn, unseen=LOG_BEGIN), reading.looked_at)
        began = Position.parse(after.position)
        seen = Position.parse(until) if until else reading.look(reading.session)
        # At least to the end of a gap: what lies between a position that was asked for and there is lost for good.
        upto = max(seen.lsn, reading.log.lost_up_to)
        if upto < self.searched.upto and not until:
            # The log ends before where it was read to: another server, or this one as it was some time ago.
            require_log(ask_log(reading.session), system=reading.log.place.log.system, reached=self.searched.upto)
        if self.searched.has_nothing(began, upto) and reading.read_lately:
            return reading.stayed(after)
        peeked = reading.read(Stretch(began, EVERY_COMMIT, upto), max_changes)
        self.searched = self.searched.having_read(peeked)
        if peeked.is_idle and self._may_stay(began, upto):
            return reading.stayed(after)
        # Where the log was read to its end, the epoch is there: a chunk may be ahead, behind the table's last commit.
        end = max(upto, peeked.end) if peeked.complete else peeked.end
        position = Position(max(end, began.lsn))
        seen_upto = peeked.acknowledgeable(seen)
        if seen_upto < position.lsn:
            position = replace(position, unseen=seen_upto)
        return reading.led(after, position, peeked, reading.looked_at)

    def held(self, after: Epoch | None, max_changes: int) -> Epoch:
        """The epoch of what is visible now, as far as the log is read: later the snapshot must see all of it."""
        reading = self._reading
        if after is not None and Position.parse(after.position).snapshot is None:
            return self.logged(after, max_changes, None)
        if after is None:
            return reading.first(self._first(), reading.looked_at)
        now = reading.look(reading.session)
        if now == self._held_at and reading.read_lately:
            return reading.stayed(after)
        began = Position.parse(after.position)
        peeked = reading.read(Stretch(began, now, now.lsn), max_changes)
        if peeked.is_idle:
            self._held_at = now
            if self._may_stay(began, now.lsn):
                return reading.stayed(after)
        position = now if peeked.complete else replace(now, lsn=peeked.end)
        return reading.led(after, position, peeked, reading.looked_at)

    def _first(self) -> Position:
        """The present state, of the log in which the stream's place was made."""
        reading = self._reading
        now = reading.look(reading.session)
        reading.log.require_same_log(reading.session)
        return now

    def _may_stay(self, began: Position, upto: Lsn) -> bool:
        """Whether the stream may stay where it is although the log was read up to `upto`, which has nothing for it.

        It may not stay before a gap that it was told to pass: the next start would find the gap again.
        """
        return upto - began.lsn < HEARTBEAT_BYTES and not self._reading.log.has_gap_after(began)
