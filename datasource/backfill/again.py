"""Taking rows once more while a stream runs: from what a person asked for to a second frontier.

What has been emitted stays so: all its changes are passed on as before, and so nothing is lost while its rows are
taken again. Such a row is read exactly as of the end of its batch, and comes after all of that batch's changes. So it
says of its key what the sink should hold by now; a consumer that takes the last row for each key ends right, whatever
it held before.

The first backfill goes first, because what has not been emitted yet must not be. What was asked for meanwhile waits,
and so it does while the snapshot is held. Several requests are carried out one after the other, in the order in which
they were made.
"""

from __future__ import annotations

import logging

from backfill.control import Control, ReadAgain
from backfill.errors import KeyTextError
from backfill.progress import Again, Finished, Frontier, Progress, settled
from backfill.upstream import Upstream
from backfill.vnode import WHOLE_TABLE, KeyRange

logger = logging.getLogger("backfill")


def with_reopened(again: Again | None, lost: tuple[KeyRange, ...]) -> Again | None:
    """What is taken again at a barrier. `lost` are the ranges whose chunks its batch gave up: they are left to do."""
    if again is None or not isinstance(again.progress, Frontier):
        return again
    return Again(again.request, settled(again.progress.reopened(lost)))


class InTurn:
    """Takes up what a stream was asked for, one request after the other, each cut into `vnodes` at the most.

    It remembers what it has logged about requests that it passes over: it meets them at each call, until there is a
    batch whose offset says that they are done.
    """

    def __init__(self, upstream: Upstream, vnodes: int) -> None:
        self._upstream = upstream
        self._vnodes = vnodes
        self._refused: set[str] = set()
        self._said_never = False

    def next_up(self, again: Again | None, progress: Progress, control: Control, stream: str) -> Again | None:
        """What the next batch takes again: what is under way, else what was asked for next, else the last that was."""
        taken_up = None if again is None else again.request
        waiting = control.waiting(stream, taken_up)
        if waiting.stop is not None:
            done = Finished(0, 0) if again is None else again.progress
            again = Again(waiting.stop.id, Finished(done.vnode_count, done.row_count))
        if isinstance(progress, Frontier) or control.holds:
            return again
        for request in waiting.to_read:
            if again is not None and again.frontier is not None:
                break
            again = self._begun(request)
        return again

    def _begun(self, request: ReadAgain) -> Again:
        if request.id not in self._refused:
            try:
                within = self._range_of(request)
                return Again(request.id, Frontier.at_start(self._upstream.bounds(self._vnodes, within), within))
            except KeyTextError as error:
                # A mistyped key is no reason to end the stream.
                logger.error("request %s to read rows again is passed over: %s", request.id, error.message)  # noqa: TRY400
                self._refused.add(request.id)
        return Again(request.id, Finished(0, 0))

    def _range_of(self, request: ReadAgain) -> KeyRange:
        if request.first is None and request.last is None:
            return WHOLE_TABLE
        return self._upstream.range_of(request.first, request.last)

    def pass_over(self, control: Control, stream: str, why: str) -> None:
        """For a stream that takes nothing again: says so where it is asked to."""
        if control.waiting(stream, None) and not self._said_never:
            self._said_never = True
            logger.warning("requests to read rows again are passed over: %s", why)
