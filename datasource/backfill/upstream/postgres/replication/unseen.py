"""What a new stream's slot does not tell of, and no reader sees yet: waited for before the first state is taken.

*Commits before the slot.* A slot tells of the commits whose records come after it was complete. Of those before,
readers see a commit only some time after its record was written: most often at once, but with a synchronous standby
when that has answered. Making a slot waits for all transactions that were open when it was begun, and not for those
that came later. One of them whose record was written before the slot was complete, and which is invisible when the
table is first read, would come neither with the rows nor with the changes. Which transactions wait for a standby and
which are at work cannot be told from outside, but those at work will come with the changes: where there is no
synchronous standby, a moment is enough.

*Changes before the publication.* pgoutput goes by the publication as it was when a change was made. A slot that was
there already may be older. Then changes from before the publication, or before the table was in it, are left out, in
PostgreSQL 18 without a word, also those of a transaction that commits much later.
"""

from __future__ import annotations

import time
from itertools import count
from typing import Final

from backfill.upstream.postgres.replication.blockers import saying_what_blocks
from backfill.upstream.postgres.session.connection import Connector, Session, one_row

LOOKS: Final = 20
"""How often a commit that is logged may be found invisible, unless it waits for a standby. Not how many seconds: those
pass for a server too that is suspended in between, which answers no look.
"""

INTERVAL: Final = 0.05
"""Seconds between two looks."""

PATIENCE: Final = LOOKS * INTERVAL
"""Seconds, for whom nothing is lost if it was too short."""

_NEXT: Final = (
    # A commit waits for the synchronous standby, as do those that are waited for here.
    "SET LOCAL synchronous_commit = local; SELECT pg_catalog.pg_current_xact_id()::text"
)
_OLDEST: Final = """
    SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text,
           pg_catalog.current_setting('synchronous_standby_names') <> ''
"""


def wait_for_unseen(connector: Connector, session: Session, slot: str) -> None:
    """Waits until readers see every commit whose record has been written; says whom for."""
    _wait(connector, session, slot, LOOKS)


def wait_for_open(connector: Connector, session: Session, slot: str) -> None:
    """Waits until every transaction that has written anything has ended; says whom for."""
    _wait(connector, session, slot, None)


def _wait(connector: Connector, session: Session, slot: str, looks: int | None) -> None:
    """Waits for all that is open, where there is no synchronous standby for so many looks at the most."""
    # Not the end of a snapshot of now: that lies before transactions which are open, where none after them has ended.
    upto = _next_transaction(session)
    with saying_what_blocks(connector, session, f"what was open before replication slot {slot}"):
        for look in count(1):
            oldest, has_standby = one_row(session.execute(_OLDEST))
            given_up = looks is not None and look > looks and not has_standby
            if int(oldest) >= upto or given_up:
                return
            time.sleep(INTERVAL)


def _next_transaction(session: Session) -> int:
    """The number of a transaction: those of all that have begun to write before are smaller."""
    with session.transaction():
        cursor = session.execute(_NEXT)
        cursor.nextset()
        (number,) = one_row(cursor)
    return int(number)
