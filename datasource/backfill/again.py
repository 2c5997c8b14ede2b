"""Taking rows once more while a stream runs: from what a person asked for to a second frontier.

Rows that are taken again still count as emitted: changes to them are passed on as before, so nothing is lost meanwhile.
Such a row is read exactly as of the end of its batch, and comes after all of that batch's changes. So it is what the
sink should hold for its key by then; a consumer that takes the last row for each key ends right, whatever it held
before.

The first backfill goes first, because only what has been emitted can be taken again. Requests that are made meanwhile
wait, as they do while the snapshot is held. Several requests are carried out one after the other, in the order in which
they were made.
"""

from __future__ import annotations

import logging
from typing import Final

from backfill.control import Control, ReadAgain
from backfill.errors import KeyTextError
from backfill.offset import Barrier
from backfill.options import StreamOptions
from backfill.progress import Again, Finished, Frontier, settled
from backfill.upstream import Upstream
from backfill.vnode import WHOLE_TABLE, KeyRange

logger = logging.getLogger("backfill")


def _with_reopened(again: Again | None, lost: tuple[KeyRange, ...]) -> Again | None:
    """What is taken again after a barrier, with the ranges `lost`, whose chunks its batch gave up, to be read anew."""
    if again is None or not isinstance(again.progress, Frontier):
        return again
    return Again(again.request, settled(again.progress.reopened(lost)))


class RequestQueue:
    """Takes up what a stream was asked for, one request after the other.

    It remembers what it has logged about requests that it passes over, because it meets them at each call until the
    offset of a batch says that they are done.
    """

    def __init__(self, upstream: Upstream, options: StreamOptions) -> None:
        self._upstream = upstream
        self._vnodes = options.vnode_count
        self.why_never: Final = _why_never(options)
        """Why the stream takes nothing again, whatever it is asked for; empty where it may."""

        self._refused: set[str] = set()
        self._logged_never = False

    def next_up(self, begin: Barrier, lost: tuple[KeyRange, ...], control: Control) -> Again | None:
        """What the batch after `begin` takes again: the request that is under way, else the next one that waits, else
        the last one taken up, if any. `lost` are the ranges that the batch up to `begin` gave up.
        """
        if self.why_never:
            self._pass_over(begin.stream, control)
            return None
        again = _with_reopened(begin.again, lost)
        waiting = control.pending(begin.stream, _request_of(again))
        if waiting.stop is not None:
            done = Finished(0, 0) if again is None else again.progress
            again = Again(waiting.stop.id, Finished(done.vnode_count, done.row_count))
        if begin.progress.unfinished or control.holds:
            return again
        for request in waiting.to_read:
            if again is not None and again.frontier is not None:
                break
            again = self._begun(request)
        return again

    def has_pending(self, stream: str, again: Again | None, control: Control) -> bool:
        """Whether requests wait for their turn, where `again` is what was taken up last."""
        return not self.why_never and bool(control.pending(stream, _request_of(again)))

    def _begun(self, request: ReadAgain) -> Again:
        if request.id not in self._refused:
            try:
                within = self._range_of(request)
                return Again(request.id, Frontier.at_start(self._upstream.bounds(self._vnodes, within), within))
            except KeyTextError as error:
                # A mistyped key is no reason to end the stream.
                logger.error("request %s to read rows again was refused: %s", request.id, error.message)  # noqa: TRY400
                self._refused.add(request.id)
        return Again(request.id, Finished(0, 0))

    def _range_of(self, request: ReadAgain) -> KeyRange:
        if request.first is None and request.last is None:
            return WHOLE_TABLE
        return self._upstream.range_of(request.first, request.last)

    def _pass_over(self, stream: str, control: Control) -> None:
        if control.pending(stream, None) and not self._logged_never:
            self._logged_never = True
            logger.warning("requests to read rows again were refused: %s", self.why_never)


def _why_never(options: StreamOptions) -> str:
    if options.only_snapshot:
        return "a stream with startupMode=snapshot is one batch"
    if options.order_column:
        return "with orderColumn the sink may have a later row than the table, which reading it again would undo"
    return ""


def _request_of(again: Again | None) -> str | None:
    return None if again is None else again.request
