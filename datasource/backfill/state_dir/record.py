"""What the state directory says of a stream, and the rules when it and the checkpoint disagree.

The checkpoint is the truth: an offset alone can be resumed. The state store follows it at the barriers, never ahead
of what Spark has committed. Seven cases:

| checkpoint | state directory                 | what happens                                                       |
|------------|---------------------------------|--------------------------------------------------------------------|
| new        | empty                           | a stream begins                                                    |
| new        | has progress                    | an error; `onExistingState` says to resume from it or to restart   |
| new        | of another table                | an error, but for restarting, which gives that table's stream up   |
| new        | of another kind of upstream     | an error: what that made could not be removed                      |
| goes on    | of this stream, not ahead       | it is brought up to date                                           |
| goes on    | empty or lost                   | it is rebuilt from the offset                                      |
| goes on    | of another stream, or ahead     | an error: two checkpoints use one directory, or an old one is back |

Once nothing is left to do that depends on the order of keys, their columns may have got other types or another order:
then the directory is rebuilt as well.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from backfill.errors import StateBusyError, StateError
from backfill.offset import Barrier
from backfill.options import OnExistingState, StreamOptions
from backfill.progress import Finished, Frontier, Progress
from backfill.state_dir import recorded
from backfill.state_dir.failures import as_ours
from backfill.state_dir.kept_options import has_place, require_same_options, with_options
from backfill.state_dir.same_table import require_same_table
from backfill.upstream import Bookmark, Upstream
from backfill.vnode import Key
from backfill.wording import FRESH_START, IN_ITS_PLACE
from backfill_state import ProgressStore, StreamIdentity

logger = logging.getLogger("backfill")

OpenStore: TypeAlias = Callable[[], AbstractContextManager[ProgressStore]]

FOLLOW_INTERVAL: Final = 1.0
"""Seconds between two recordings once the backfill is over: then nothing but the epoch changes."""


@dataclass(frozen=True, slots=True)
class NamedStream:
    """A stream's name, and what it has to know about the upstream to go on; each of its barriers has both."""

    stream: str
    bookmark: Bookmark


class Record:
    """The state directory of one stream, opened for each use: DuckDB allows a file one process at a time."""

    def __init__(
        self,
        upstream: Upstream,
        open_store: OpenStore,
        options: StreamOptions,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._upstream = upstream
        self._open_store = open_store
        self._options = options
        self._clock = clock
        self._written: Barrier | None = None
        self._written_at = 0.0
        self._logged_busy = False

    @contextmanager
    def _open(self) -> Iterator[ProgressStore]:
        """The store, with its errors as ours."""
        with as_ours(), self._open_store() as store:
            yield store

    def begin(self, forget: Callable[[str], object]) -> NamedStream | Barrier:
        """For a new checkpoint: names the stream, durably; or, where that was asked for, returns the barrier to resume
        from, which is still to be `checked`.

        `forget` is called with the name of a stream that is given up for this one, maybe more than once.
        """
        with self._open() as store:
            found = store.identity()
            if found is not None:
                self._require_same_upstream(found)
                if self._options.on_existing_state is OnExistingState.RESTART:
                    self._give_up(store, found, forget)
                    found = None
            if found is not None:
                # First: with the progress of another table nobody should be told to go on, or to give it up.
                require_same_table(found, self._upstream, order_matters=False)
            barrier = None if found is None else self._resumed(store, found)
            return self._begin_anew(store, found) if barrier is None else barrier

    def _require_same_upstream(self, found: StreamIdentity) -> None:
        if found.upstream != self._upstream.name:
            raise StateError(
                f"stateDir holds stream {found.stream_id} of the {found.upstream} table {found.table}, and the "
                f"options name a table of {self._upstream.name}; give each stream its own stateDir"
            )

    def _give_up(self, store: ProgressStore, found: StreamIdentity, forget: Callable[[str], object]) -> None:
        """Drops the stream that the directory belongs to, as `onExistingState=restart` asks."""
        if has_place(found.properties):
            self._upstream.detach(found.properties)
        forget(found.stream_id)
        store.reset()

    def _resumed(self, store: ProgressStore, found: StreamIdentity) -> Barrier | None:
        """The barrier to resume from; None where the stream has not come to one."""
        epoch = store.epoch()
        if epoch is not None and self._options.on_existing_state is not OnExistingState.RESUME:
            raise StateError(self._has_progress(found, epoch))
        return recorded.barrier(store)

    def _begin_anew(self, store: ProgressStore, found: StreamIdentity | None) -> NamedStream:
        """Names the stream: like one that was begun there and came to no barrier, if any. Removes the place that was
        made for that one if the options name another now.
        """
        stream = uuid.uuid4().hex[:8] if found is None else found.stream_id
        bookmark = with_options(self._upstream.bookmark(stream), self._options)
        identity = recorded.identity(stream, bookmark, self._upstream)
        if found != identity:
            # Also where a first start failed and the options now name another slot or publication.
            place = None if found is None or not has_place(found.properties) else found.properties
            if place is not None and self._upstream.is_own(place, stream):
                self._upstream.detach(place)
            store.reset()
            store.begin(identity)
        return NamedStream(stream, bookmark)

    def checked(self, barrier: Barrier, *, order_matters: bool) -> tuple[StreamIdentity | None, Bookmark]:
        """For a checkpoint that goes on, once in a process: the identity in the state directory, None where that was
        lost, and the bookmark to go on with. Raises where they do not fit the barrier or the upstream; writes nothing.

        `order_matters`: what is left to do depends on the order of keys, which must be the one in the bookmark. If not,
        keys may have another order by now, and the bookmark that is returned has that.
        """
        require_same_options(barrier.bookmark, self._options, order_matters=order_matters)
        bookmark = with_options(barrier.bookmark, self._options)
        with self._open() as store:
            found, epoch = store.identity(), store.epoch()
        if found is not None:
            self._require_own(found, epoch, barrier)
            require_same_table(found, self._upstream, order_matters=order_matters)
        else:
            self._upstream.require_same_key(bookmark)
        if not order_matters:
            return found, self._upstream.reordered(bookmark)
        self._upstream.require_same_order(bookmark)
        return found, bookmark

    def adopt(self, barrier: Barrier, found: StreamIdentity | None, bookmark: Bookmark) -> None:
        """Goes on with what is `checked`: makes the state directory anew where it was lost, or the key is another one.

        The upstream has to be attached before, or a directory made anew would belong to whatever the options name.
        """
        identity = recorded.identity(barrier.stream, bookmark, self._upstream)
        if found is None:
            with self._open() as store:
                store.begin(identity)
                if isinstance(barrier.progress, Frontier):
                    store.set_bounds(recorded.bounds(dict(barrier.progress.known_bounds()), self._upstream))
        elif found.key != identity.key:
            rows = recorded.finished(recorded.rows({}, self._upstream), barrier.progress.vnode_count)
            with self._open() as store:
                store.rebuild(identity, recorded.bounds({}, self._upstream), recorded.committed(barrier, rows))

    def _require_own(self, found: StreamIdentity, epoch: int | None, barrier: Barrier) -> None:
        """Raises where the state directory belongs to another stream than the checkpoint, or is ahead of it."""
        if found.stream_id != barrier.stream:
            raise StateError(
                f"the checkpoint belongs to stream {barrier.stream}, and stateDir to stream {found.stream_id} (table "
                f"{found.table}); give each stream its own stateDir, or an empty one to rebuild it; " + IN_ITS_PLACE
            )
        if epoch is not None and epoch > barrier.epoch.number:
            raise StateError(
                f"the checkpoint is at epoch {barrier.epoch.number} and stateDir at epoch {epoch}: an older "
                "checkpoint was restored, a file in its folder commits was lost, or two queries use this stateDir. "
                f"The upstream may no longer have the changes in between. Start over with {FRESH_START}"
                + self._or(
                    ", or resume after stateDir's epoch, if the sink has nothing beyond it, with a fresh "
                    "checkpointLocation and onExistingState=resume"
                )
            )

    def keep_bounds(self, bounds: tuple[Key, ...]) -> None:
        """Records the keys at which vnodes end; until the first barrier vnodes may be cut anew."""
        with self._open() as store:
            store.set_bounds(recorded.bounds(dict(enumerate(bounds)), self._upstream))

    def commit(self, barrier: Barrier, *, at_once: bool = False) -> bool:
        """Records a barrier that Spark has committed. Returns whether it was recorded. Doing so again changes nothing.

        Recording is put off while somebody looks into the state file, which then cannot be written; and, unless it is
        to be done `at_once`, while only changes are followed and the last recording is less than FOLLOW_INTERVAL old. A
        later barrier then says it all.
        """
        if self._written == barrier:
            return True
        if not at_once and self._followed_lately(barrier):
            return False
        try:
            with self._open() as store:
                self._require_still_own(store, barrier)
                store.commit(recorded.committed(barrier, self._moved(store, barrier.progress)))
        except StateBusyError as error:
            if not self._logged_busy:  # A stream that has nothing to read looks again at once.
                logger.warning("progress could not be recorded yet, and will be later: %s", error)
            self._logged_busy = True
            return False
        self._written, self._written_at, self._logged_busy = barrier, self._clock(), False
        return True

    def _require_still_own(self, store: ProgressStore, barrier: Barrier) -> None:
        """Raises where somebody has removed the directory, or put another in its place, while the stream runs."""
        found = store.identity()
        if found is None or found.stream_id != barrier.stream:
            holds = "nothing of it any more" if found is None else f"stream {found.stream_id} (table {found.table})"
            raise StateError(
                f"stateDir holds {holds}, expected stream {barrier.stream}: it was removed or replaced while the "
                "query ran. Put back the stateDir of this stream, or name an empty one, and start the query again "
                "with the same checkpoint"
            )

    def _moved(self, store: ProgressStore, progress: Progress) -> pa.Table:
        """The rows of the vnodes that stand elsewhere than when the last barrier was recorded.

        All of them, where the store is not at that barrier: somebody has put an older copy of it back.
        """
        last = self._written
        before = None if last is None or store.epoch() != last.epoch.number else last.progress
        if isinstance(progress, Frontier):
            return recorded.rows(recorded.changed(before, progress), self._upstream)
        if isinstance(before, Finished):
            return recorded.rows({}, self._upstream)
        return recorded.finished(store.progress(), progress.vnode_count)

    def _followed_lately(self, barrier: Barrier) -> bool:
        return (
            isinstance(barrier.progress, Finished)
            and self._written is not None
            and isinstance(self._written.progress, Finished)
            and self._written.again == barrier.again
            and self._clock() - self._written_at < FOLLOW_INTERVAL
        )

    def _has_progress(self, found: StreamIdentity, epoch: int) -> str:
        resume = (
            f" onExistingState=resume to go on after epoch {epoch}, if the sink has everything up to there and "
            "nothing beyond (if the query was killed, or stopped while it waited for its trigger, the sink has one "
            "batch more, or, once only changes are followed, those of about a second); or"
        )
        return (
            f"stateDir already holds the progress of stream {found.stream_id} (table {found.table}, epoch {epoch}), "
            f"and the checkpoint is new. Use the checkpoint that this progress belongs to; or set{self._or(resume)} "
            "onExistingState=restart to read everything again"
        )

    def _or(self, resuming: str) -> str:
        """The advice to resume; none where last rows are kept, which may be some batches ahead of the record."""
        return resuming if self._options.last_rows is None else ""
