"""What ties a stream to its state directory, its place in the change log and the chunks that were staged for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

from backfill.chunks import pieces_to_read, planned_manifest
from backfill.control import Control
from backfill.offset import Ahead, Barrier
from backfill.options import StreamOptions
from backfill.staging import Staging
from backfill.staging.batch_files import BatchFiles
from backfill.staging.manifest import AsPlanned, Manifest
from backfill.state_dir.record import NamedStream, Record
from backfill.upstream import Upstream
from backfill.vnode import Key


class Attachment:
    """Finds the stream's place once in a process, and moves it to each barrier that Spark commits; not thread-safe."""

    def __init__(
        self,
        upstream: Upstream,
        record: Record,
        staging: Staging,
        options: StreamOptions,
        require_last_rows: Callable[[Barrier, Barrier], None],
    ) -> None:
        """`require_last_rows` raises if last rows are kept, and stand at neither of the two barriers it is given."""
        self._upstream = upstream
        self._record = record
        self._staging_root = staging
        self._stagings: dict[str, Staging] = {}
        self._options = options
        self._require_last_rows = require_last_rows
        self._attached: NamedStream | None = None
        self._acknowledged: Barrier | None = None
        self._manifest: tuple[int, Manifest] | None = None

    def staging(self, stream: str) -> Staging:
        # Kept, since on an object store each has a client of its own.
        return self._stagings.setdefault(stream, self._staging_root.of_stream(stream))

    def _files(self, end: Barrier) -> BatchFiles:
        return self.staging(end.stream).of_batch(end.epoch.number)

    # -- finding the place -----------------------------------------------------------------------------------------

    def begin(self, control: Control) -> tuple[NamedStream, Barrier | None]:
        """For a new checkpoint: makes the record and a place in the log, or finds them.

        Returns the stream, and the barrier that the record says to resume from, if any.
        """
        found = self._record.begin(lambda stream: self.staging(stream).forget_all())
        if isinstance(found, Barrier):
            return self.attach(found, found, control), found
        if not self._options.only_snapshot:
            # Before a slot is made, which would hold the database's log for a stream that cannot begin.
            self.staging(found.stream).require_writable()
            found = replace(found, bookmark=self._upstream.attach(found.bookmark, None))
        self._attached = found
        return found, None

    def bounds(self) -> tuple[Key, ...]:
        """The keys at which vnodes end. They are recorded only for people who look into the state file."""
        bounds = self._upstream.bounds(self._options.vnode_count)
        self._record.keep_bounds(bounds)
        return bounds

    def attach(self, committed: Barrier | None, planned: Barrier, control: Control) -> NamedStream:
        """Finds the stream's place again, from the last barrier that was committed, if any, and the last one planned.

        The bookmark of the planned one notes the order of keys, as far as that still matters.
        """
        if self._attached is not None and self._attached.stream == planned.stream:
            return self._attached
        barrier = replace(committed or planned, bookmark=planned.bookmark)
        found, bookmark = self._record.checked(barrier, order_matters=self._order_matters(committed, planned, control))
        if committed is not None:
            # Before anything is written: without them this start has to fail each time, and another one may go on.
            self._require_last_rows(committed, planned)
        if not self._options.only_snapshot:
            bookmark = self._upstream.attach(bookmark, barrier.epoch, self._seen(committed, planned))
        if found is None:
            self._replace_lost_manifests(committed, planned)
        elif committed is None or committed.epoch != planned.epoch:
            # The sink may have the batch that an earlier process logged. Without its manifest it would be read again as
            # of a later state, and no batch would give the changes up to that state.
            self.staging(planned.stream).require_manifest(planned)
        self._record.adopt(barrier, found, bookmark)
        self._attached = NamedStream(planned.stream, bookmark)
        return self._attached

    def _seen(self, committed: Barrier | None, planned: Barrier) -> set[str]:
        """The positions of the states from which the sink may have rows beyond the committed barrier: that of the
        planned batch, of which it may have got some, and those at which chunks were read again, later than planned.
        """
        barriers = [planned] if committed in (None, planned) else [committed, planned]
        ahead = [barrier.ahead for barrier in barriers]
        ahead += [manifest.ahead for manifest in map(self._manifest_of, barriers) if manifest is not None]
        return {planned.epoch.position, *(item.position for item in chain.from_iterable(ahead))}

    def _manifest_of(self, barrier: Barrier) -> Manifest | None:
        """The manifest of the batch that ends at this barrier; None where it had none, or that is lost."""
        return self._files(barrier).manifest() if barrier.has_manifest else None

    def _order_matters(self, committed: Barrier | None, planned: Barrier, control: Control) -> bool:
        """Whether something that depends on the order of keys is left to do, in the planned batch or after it."""
        if committed != planned:
            return planned.has_manifest or planned.order_matters
        if self._options.only_snapshot:
            return False  # It was the only batch.
        if committed.again is not None and control.pending(committed.stream, committed.again.request).stop is not None:
            return replace(committed, again=None).order_matters
        found = self._manifest_of(committed)
        missed = found is not None and any(item.reading != AsPlanned() for item in found.splits)
        return missed or committed.order_matters

    def _replace_lost_manifests(self, committed: Barrier | None, planned: Barrier) -> None:
        """Makes manifests anew that were lost with `stateDir`, where staged files are kept by default.

        The manifest of the committed batch may have said that chunks were read at a later state, after a crash, or
        that some of the rows to read again were given up; without it they count as read. Ending the stream for that
        would be worse. This one is not made anew where last rows are kept, since they were in `stateDir` as well.
        """
        if committed is not None and self._options.last_rows is None:
            self._keep_where_lost(committed, Manifest(()))
        if committed is None or committed.epoch != planned.epoch:
            to_read = pieces_to_read(committed, planned)
            self._keep_where_lost(planned, planned_manifest(to_read, planned.epoch, self._options.num_partitions))

    def _keep_where_lost(self, end: Barrier, manifest: Manifest) -> None:
        if end.has_manifest and self._manifest_of(end) is None:
            self._files(end).keep_manifest(manifest)

    # -- keeping it ------------------------------------------------------------------------------------------------

    def settle(self, start: Barrier, *, at_once: bool = False) -> None:
        """For a barrier that Spark has committed: records it, lets the upstream forget, and removes older chunks.

        All of that is put off where `Record.commit` puts off recording; `at_once` is its argument.
        """
        # What is not recorded yet is not forgotten either, so that a new checkpoint can go on from the record.
        if start == self._acknowledged or not self._record.commit(start, at_once=at_once):
            return
        if self._options.only_snapshot:
            # It was the only batch, and no other one will remove what this one has left.
            self._files(start).forget()
        else:
            self._upstream.acknowledge(start.epoch)
        self.staging(start.stream).forget_before(start.epoch.number)
        self._acknowledged = start

    # -- what the batch before has left ----------------------------------------------------------------------------

    def manifest(self, begin: Barrier) -> Manifest:
        """What the batch up to `begin` read. Remembered, since an idle stream asks for it many times a second."""
        if self._manifest is None or self._manifest[0] != begin.epoch.number:
            self._manifest = begin.epoch.number, self.staging(begin.stream).require_manifest(begin)
        return self._manifest[1]

    def ahead(self, begin: Barrier) -> tuple[Ahead, ...]:
        """The keys whose rows were read at a state that `begin` has not come to yet, each range with that state."""
        carried = [item for item in begin.ahead if not self._upstream.reached(begin.epoch, item.position)]
        return (*carried, *self.manifest(begin).ahead)
