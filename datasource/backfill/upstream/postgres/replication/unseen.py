"""What a new stream's slot does not tell of, and no reader sees yet: waited for before the first state is taken.

*Commits before the slot.* A slot tells of the commits whose records come after it was complete. An earlier commit
becomes visible to readers some time after its record was written: most often at once, but with a synchronous standby
only when that has answered. Making a slot waits for all transactions that were open when it was begun, and not for
those that came later. If one of the later ones wrote its record before the slot was complete, and is still invisible
when the table is first read, it comes neither with the rows nor with the changes. Which transactions wait for a standby
and which are at work cannot be told from outside, but those at work will come with the changes: where there is no
synchronous standby, a moment is enough.

*Changes before the publication.* pgoutput goes by the publication as it was when a change was made. A slot that was
there already may be older. Then changes from before the publication, or before the table was in it, are left out, in
PostgreSQL 18 without a word, also those of a transaction that commits much later.
"""

from __future__ import annotations

import time
from itertools import count
from typing import Final

from backfill.upstream.postgres.replication.blockers import logging_blockers
from backfill.upstream.postgres.session.connection import Connector, Session, one_row

LOOKS: Final = 20
"""How many looks may find a logged commit invisible, unless it waits for a standby. Looks are counted and not seconds,
which also pass while the server is suspended and answers no look.
"""

INTERVAL: Final = 0.05
"""Seconds between two looks."""

PATIENCE: Final = LOOKS * INTERVAL
"""The same in seconds, for callers that lose nothing if it was too short."""

_NEXT: Final = (
    # Otherwise the commit would wait for the synchronous standby, as do those that are waited for here.
    "SET LOCAL synchronous_commit = local; SELECT pg_catalog.pg_current_xact_id()::text"
)
_OLDEST: Final = """
    SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text,
           pg_catalog.current_setting('synchronous_standby_names') <> ''
"""


def wait_for_unseen(connector: Connector, session: Session, slot: str) -> None:
    """Waits until readers see every commit whose record has been written; says whom it waits for."""
    _wait(connector, session, slot, LOOKS)


def wait_for_open(connector: Connector, session: Session, slot: str) -> None:
    """Waits until every transaction that has written anything has ended; says whom it waits for."""
    _wait(connector, session, slot, None)


def _wait(connector: Connector, session: Session, slot: str, looks: int | None) -> None:
    """Waits for all open transactions; where there is no synchronous standby, for so many `looks` at the most."""
    # The xmax of a snapshot would not do: it lies before open transactions where none after them has ended.
    upto = _next_transaction(session)
    with logging_blockers(connector, session, f"transactions that were open before replication slot {slot}"):
        for look in count(1):
            oldest, has_standby = one_row(session.execute(_OLDEST))
            given_up = looks is not None and look > looks and not has_standby
            if int(oldest) >= upto or given_up:
                return
            time.sleep(INTERVAL)


def _next_transaction(session: Session) -> int:
    """The number of a new transaction: all that have begun to write before have smaller ones."""
    with session.transaction():
        cursor = session.execute(_NEXT)
        cursor.nextset()
        (number,) = one_row(cursor)
    return int(number)
