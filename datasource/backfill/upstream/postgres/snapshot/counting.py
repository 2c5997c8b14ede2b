"""How many rows key ranges have, and at which key a range has had so many: the statements of one session.

Ranges are counted one after the other, by the index of the keys; or several by one bitmap, where
`plans.better_by_bitmap` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from backfill.plan import Extent, Measure
from backfill.upstream.postgres.session.connection import Session, one_row
from backfill.upstream.postgres.snapshot.plans import BITMAPS_ONLY, INDEX_PLANS_ONLY, no_index_alone
from backfill.upstream.postgres.tables.ranges import Form, KeyedTable, form

RANGES_AT_ONCE: Final = 32
"""How many ranges one bitmap is of. With fewer, pages are read more often; with more, each row is compared with more
ends, and comparing texts takes long.
"""

_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RangeCounter:
    """Counts in a session's transaction; it sends statements together, so that round trips do not add up."""

    session: Session
    table: KeyedTable
    only: str
    by_bitmap: bool

    def extents(self, requests: Sequence[Measure]) -> tuple[Extent, ...]:
        """The answers, in the order of the requests."""
        found = {at: request.limit + 1 for at, request in enumerate(requests) if request.known_more}
        if self.by_bitmap:
            found |= self._by_bitmaps(_others(requests, found))
        found |= self._by_index(_others(requests, found))
        self.session.execute(no_index_alone(self.table) if self.by_bitmap else INDEX_PLANS_ONLY)
        lasts = {
            at: self.session.execute(self._last(request))
            for at, request in enumerate(requests)
            if found[at] > request.limit
        }
        return tuple(
            Extent(request.limit, tuple(one_row(lasts[at]))) if at in lasts else Extent(found[at], None)
            for at, request in enumerate(requests)
        )

    def _by_bitmaps(self, requests: Mapping[int, Measure]) -> dict[int, int]:
        """How many rows each range has. One is left out where its group had more rows than were looked at, unless its
        own count is beyond its limit already: that may be too low, but is enough.
        """
        self.session.execute(BITMAPS_ONLY)
        places = list(requests)
        groups = [places[at : at + RANGES_AT_ONCE] for at in range(0, len(places), RANGES_AT_ONCE)]
        most = [min(sum(requests[at].limit for at in group) + 1, _MOST) for group in groups]
        counts = [
            self.session.execute(self.table.counts_at_once([requests[at].range for at in group], rows, self.only))
            for group, rows in zip(groups, most, strict=True)
        ]
        found: dict[int, int] = {}
        for group, enough, cursor in zip(groups, most, counts, strict=True):
            *rows, looked_at = map(int, one_row(cursor))
            found |= {
                at: count
                for at, count in zip(group, rows, strict=True)
                if looked_at < enough or count > requests[at].limit
            }
        return found

    def _by_index(self, requests: Mapping[int, Measure]) -> dict[int, int]:
        """How many rows each range has, up to one more than its limit: that many stand for more."""
        if not requests:
            return {}
        self.session.execute(INDEX_PLANS_ONLY)
        alike: dict[Form, list[int]] = {}
        for at, request in requests.items():
            alike.setdefault(form(request.range), []).append(at)
        counts = [self.session.execute(self._count([requests[at] for at in places])) for places in alike.values()]
        return {
            at: int(count)
            for places, cursor in zip(alike.values(), counts, strict=True)
            for at, (count,) in zip(places, cursor.fetchall(), strict=True)
        }

    def _count(self, requests: Sequence[Measure]) -> sql.Composed:
        most = [request.limit + 1 for request in requests]
        return self.table.counts([request.range for request in requests], most, self.only)

    def _last(self, request: Measure) -> sql.Composed:
        """A query for the last key within the limit.

        Only that is turned into texts: doing so for each row passed over costs more than passing over it.
        """
        rows = self.table.select(self.table.key_columns, request.range, self.only)
        return sql.SQL("SELECT {} FROM ({} ORDER BY {} LIMIT 1 OFFSET {}) AS r({})").format(
            self.table.alias_texts,
            rows,
            self.table.order,
            sql.Literal(request.limit - 1),
            sql.SQL(", ").join(self.table.aliases),
        )


def _others(requests: Sequence[Measure], found: Mapping[int, int]) -> dict[int, Measure]:
    return {at: request for at, request in enumerate(requests) if at not in found}
