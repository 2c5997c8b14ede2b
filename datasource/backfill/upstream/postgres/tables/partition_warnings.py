"""Rows that come or go together with their partition: the change log has nothing of them.

Attaching a partition with rows in it logs no inserts, detaching or dropping one logs no deletes, and a publication with
`publish_via_partition_root` leaves out the TRUNCATE of a single partition (PostgreSQL manual, CREATE PUBLICATION). The
catalog, as it is after each reading, shows that there was something, but not with which rows: a partition may have been
emptied before it was dropped, or filled since it was attached. So this ends no stream, and is only logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from backfill.upstream.postgres.description import TableDescription
from backfill.upstream.postgres.position import Snapshot
from backfill.upstream.postgres.session import locks
from backfill.upstream.postgres.session.connection import Session, one_row
from backfill.upstream.postgres.tables.partitions import Partition

logger = logging.getLogger("backfill")

# A partition that CREATE TABLE … PARTITION OF makes has had no rows before. One command of its transaction makes its
# columns, and the second or third after that its place among the partitions. Where a table is made and attached in one
# transaction, it is the fifth at the earliest. (Seen with PostgreSQL 15 and 18.) Catalog rows that were replayed, after
# a crash or on a standby, have lost these numbers: there a partition may be taken for attached, which is better than
# passing over one that was. Asking for the size of one waits for whoever has locked it, as VACUUM FULL does: that is
# left for later.
_LOOK: Final = sql.SQL(
    """
    WITH RECURSIVE partitions AS (
        SELECT {root}::oid AS relid, false AS attached
        UNION ALL
        SELECT h.inhrelid, attached OR h.inhrelid = ANY ({new}::oid[]) AND NOT (
                   h.xmin = a.xmin AND h.cmin::text::int8 - a.cmin::text::int8 BETWEEN 1 AND 4)
        FROM partitions
        JOIN pg_catalog.pg_inherits h ON h.inhparent = relid AND NOT h.inhdetachpending
        JOIN pg_catalog.pg_attribute a ON a.attrelid = h.inhrelid AND a.attnum = -1
    )
    SELECT relid::int8, CASE WHEN attached THEN pg_catalog.pg_relation_size(relid) > 0 END
    FROM partitions
    WHERE relid = ANY ({new}::oid[]) AND NOT (attached AND EXISTS (
        SELECT FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d ON d.oid = l.database
        WHERE d.datname = pg_catalog.current_database() AND l.relation = relid AND l.mode = 'AccessExclusiveLock'))
    ORDER BY 1
    """
)

_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Since:
    """What has come between two states of one server."""

    before: Snapshot
    now: Snapshot

    def may_have_come(self, xid: int) -> bool:
        """Whether a row that is there now came in between, by the 32-bit id of the transaction that wrote it.

        A row keeps that for ever, and after 2^32 transactions the ids begin anew: an old row may have one of those that
        were used in between, which is as unlikely as these are few.
        """
        full = self.before.xmin + (xid - self.before.xmin) % (1 << 32)
        return full < self.now.xmax and (full >= self.before.xmax or full in self.before.running)


class PartitionWarnings:
    """Logs, once for each partition, that the change log lacks what has become of its rows."""

    def __init__(self, root: TableDescription, known: Iterable[int], listed_in: Snapshot | None) -> None:
        """`known`: the OIDs of all partitions when the query was started before; none where they were not noted.
        `listed_in` is the state of the catalog in which they were, if that was noted.
        """
        self._root = root
        self._listed_in = listed_in
        self._known: dict[int, Partition | None] = dict.fromkeys(known)
        self._locked: set[int] = set()
        """The OIDs of partitions that are new and could not be looked at yet, because somebody had locked them."""

        self._since = "since the query was last started, "

    def report(self, session: Session, partitions: Sequence[Partition]) -> None:
        """Compares `partitions`, those of now, with the ones of before, and logs what the change log does not tell."""
        now = {each.oid: each for each in partitions}
        known = self._known or {**now}
        new = [oid for oid in now if oid not in known or oid in self._locked]
        come = self._looked_at(session, new)
        self._locked = set(new).difference(come)
        gone = [(oid, was) for oid, was in known.items() if oid not in now and (was is None or was.is_leaf)]
        kept = [(before, now[oid]) for oid, before in known.items() if before and oid in now]
        placed_anew = [after for before, after in kept if after.placed != before.placed]
        placed_anew += self._placed_anew(session, [now[oid] for oid, was in known.items() if not was and oid in now])
        self._warn(
            "was attached, and has rows: those that it had before are not in the change log. If there were any, read "
            "them with backfill re-backfill, unless the backfill has not reached them yet",
            [now[oid].name.quoted() for oid, has_rows in come.items() if has_rows],
        )
        self._warn(
            "was detached or dropped: the change log has no deletes for its rows, so the sink keeps them",
            [was.name.quoted() if was else f"with the OID {oid}" for oid, was in gone],
        )
        self._warn(
            "was detached and attached again: changes to its rows in between are not in the change log. If there "
            "were any, read the rows again with backfill re-backfill, which removes none from the sink",
            [each.name.quoted() for each in placed_anew],
        )
        self._warn(
            "was truncated by itself, or rewritten: the change log has no deletes for truncated rows, so the sink "
            "keeps them",
            _truncated([(before, after) for before, after in kept if before.is_leaf]),
        )
        self._known, self._since = {**now}, ""

    def _placed_anew(self, session: Session, known: Sequence[Partition]) -> list[Partition]:
        """Which of those that there were when the query was started before have got their place since."""
        if self._listed_in is None or not known:
            return []
        (now,) = one_row(session.execute("SELECT pg_catalog.pg_current_snapshot()::text"))
        since = Since(self._listed_in, Snapshot.parse(now))
        return [each for each in known if each.placed is not None and since.may_have_come(int(each.placed))]

    def _looked_at(self, session: Session, new: Sequence[int]) -> dict[int, bool | None]:
        """For each new partition that is not locked: whether it, or one above it, was attached, and it has rows."""
        if not new:
            return {}
        query = _LOOK.format(root=sql.Literal(self._root.oid), new=sql.Literal(list(new)))
        return dict(locks.asked(session, query))

    def _warn(self, what: str, names: Sequence[str]) -> None:
        if names:
            listed = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
            logger.warning("%spartition %s of %s %s", self._since, listed, self._root.name.quoted(), what)


def _truncated(leaves: Sequence[tuple[Partition, Partition]]) -> list[str]:
    """The leaves, each before and now, that got another file. None if all have: that was done to the whole table."""
    anew = [now for before, now in leaves if now.file != before.file]
    return [now.name.quoted() for now in anew if now.is_uncounted] if len(anew) < len(leaves) else []
