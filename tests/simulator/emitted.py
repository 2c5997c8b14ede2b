"""The rows that a stream has emitted by a barrier, computed from the simulated database."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_

from backfill.offset import Barrier
from backfill.staging.manifest import Manifest, ReadLater
from backfill.vnode import KeyRange
from tests.simulator.database import Key, Row, View, inside
from tests.simulator.upstream import Server


@dataclass(frozen=True, slots=True)
class Emitted:
    """The rows that a sink has to hold at this barrier; `manifest` is that of the batch which ended there."""

    server: Server
    barrier: Barrier
    manifest: Manifest | None

    @property
    def view(self) -> View:
        return View.parse(self.barrier.epoch.position)

    def rows(self) -> dict[Key, Row]:
        database = self.server.database
        table = database.table(self.view)
        emitted = {row[:2]: row for item in self.barrier.progress.coverage for row in table.within(item)}
        for span, seen in self._ahead():
            emitted = {key: row for key, row in emitted.items() if not inside(key, span)}
            emitted |= {row[:2]: row for row in database.table(self.view | seen).within(span)}
        return emitted

    def looked_up_early(self) -> set[Key]:
        """The keys whose rows were looked up at a later state than the barrier's, because its own was gone."""
        return {
            key
            for key, view in self.server.looked_up.items()
            if any(view.shows(lsn) and not self.view.shows(lsn) for lsn in range(1, view.lsn))
        }

    def latest_seen(self) -> View:
        return reduce(or_, (seen for _, seen in self._ahead()), self.view)

    def _ahead(self) -> list[tuple[KeyRange, View]]:
        """The key ranges that were read at a later state than the barrier's. Such states only get later."""
        reread = () if self.manifest is None else self.manifest.splits
        carried = [(item.range, item.position) for item in self.barrier.ahead]
        later = [(item.reading.position, item.split.ranges) for item in reread if isinstance(item.reading, ReadLater)]
        found = [(span, position) for position, ranges in later for span in ranges]
        return [(span, View.parse(position)) for span, position in (*carried, *found)]
