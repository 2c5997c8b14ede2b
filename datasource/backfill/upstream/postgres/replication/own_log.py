"""The log that a stream reads: which one it is, and whether a server goes on with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from backfill.errors import BackfillError, DataLossError
from backfill.upstream.postgres.position import LOG_BEGIN, Lsn, format_lsn
from backfill.upstream.postgres.replication import timelines
from backfill.upstream.postgres.session.connection import Asked, Connector, Session
from backfill.upstream.postgres.session.server import NO_WAY_ON, ask_log, require_log

_AGAIN: Final = "Start the query again: it goes on if nothing was lost, or says what was"

_UNDONE: Final = (
    f"Some of what was read may have been undone, and new changes may lie before that position, {NO_WAY_ON}"
)


@dataclass(frozen=True, slots=True)
class OwnLog:
    """The log that a stream follows: that of one system, on one of its timelines."""

    system: str
    timeline: str
    began: str = ""
    """Where the timeline began, once that was asked: another log may have a timeline of the same number."""

    def require_same(self, asked: Asked, reached: Lsn, *, way_out: str = _AGAIN) -> None:
        """Raises DataLossError unless this server goes on with the log in which the LSN was reached, on its timeline.

        `asked` is what `ask_log` returned. The default `way_out` is for a query that runs: the next start finds out
        whether anything is lost.
        """
        now = require_log(asked, system=self.system, reached=reached)
        if now != self.timeline:
            raise DataLossError(f"{timelines.another(self.timeline, now)}. {way_out}")

    def on_timeline_of_now(self, connector: Connector, session: Session, reached: Mapping[str, Lsn]) -> OwnLog:
        """The same log, on the timeline that the server is on.

        Raises DataLossError unless the log of that has all that was read: `reached` is how far each timeline was read.
        What it lacks was undone, and what has come in its place lies where the stream has been already: there is no
        going on from there.
        """
        now = require_log(ask_log(session), system=self.system, reached=max(reached.values(), default=LOG_BEGIN))
        others = {timeline: lsn for timeline, lsn in reached.items() if timeline != now}
        left = timelines.history(connector, self.system, now) if others else {}
        for timeline, lsn in others.items():
            if left.get(timeline, LOG_BEGIN) < lsn:
                has = f"as far as {format_lsn(left[timeline])}" if timeline in left else "nowhere"
                raise DataLossError(
                    f"the log was read as far as {format_lsn(lsn)} on timeline {timeline}, and this server is on "
                    f"timeline {now}, which has that log {has}: it was restored to an earlier point in time, or it is "
                    "a standby that was promoted without the end of the log, or an old primary that another one has "
                    f"replaced (then point url at the new one). {_UNDONE}"
                )
        if self.timeline in left:
            self._require_beginning(_beginning(left, self.timeline))
        return self if now == self.timeline else replace(self, timeline=now, began=_beginning(left, now))

    def with_beginning(self, connector: Connector) -> OwnLog:
        """The same log, noting where its timeline began, if the server tells the role that.

        Raises DataLossError where it began elsewhere than is noted.
        """
        try:
            left = timelines.history(connector, self.system, self.timeline)
        except BackfillError:
            return self
        began = _beginning(left, self.timeline)
        self._require_beginning(began)
        return replace(self, began=began)

    def _require_beginning(self, began: str) -> None:
        """Raises DataLossError where the timeline began elsewhere than is noted: each of two standbys may have been
        promoted by itself, or a server restored twice.
        """
        if self.began not in ("", began):
            raise DataLossError(
                f"timeline {self.timeline} of the log that was read began at {self.began}, and this server's timeline "
                f"{self.timeline} began at {began}: it is another server, which branched off from the same one. "
                f"{_UNDONE}"
            )


def _beginning(left: Mapping[str, Lsn], timeline: str) -> str:
    """Where this timeline began: one in the history, or the one that the history is of; empty for the first one."""
    before = [lsn for number, lsn in left.items() if int(number) < int(timeline)]
    return format_lsn(max(before)) if before else ""
