"""Where the log ends, and waiting until it is flushed up to there: logical decoding reads no further than that."""

from __future__ import annotations

import time
from typing import Final

from psycopg import sql
from psycopg.pq import TransactionStatus

from backfill.errors import TransientError
from backfill.upstream.postgres.position import Lsn, end_of_last_record, parse_lsn
from backfill.upstream.postgres.session.connection import Connector, Session, one_row
from backfill.upstream.postgres.session.failures import translating

ENDS_OF_LOG: Final = sql.SQL(
    "pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.pg_current_wal_flush_lsn()::text"
)
"""Where the log ends, and up to where it has been flushed by then."""

CLOCK: Final = sql.SQL("(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000::numeric)::bigint")
"""The time by the server's clock, in microseconds since 1970."""

_NUDGE: Final = (
    # Otherwise the commit would wait for a synchronous standby, and it is enough that this server flushes its log.
    "SET LOCAL synchronous_commit = local; SELECT pg_catalog.pg_logical_emit_message(true, 'backfill', '')"
)
"""Commits a small message, for which the server flushes its log. Sent together, the two are one transaction."""

FLUSH_PATIENCE: Final = 0.004
"""Seconds before the server is nudged. A busy server has flushed its log by then. One at rest often has not, because
reading rows for the first time may write to the log; then each state is taken so much later.
"""

FLUSH_INTERVAL: Final = 0.002
"""Seconds between two looks at whether the log has been flushed."""

FLUSH_GIVE_UP: Final = 60.0
"""Seconds after which the wait for a flush is given up."""


def flushed_end(session: Session, connector: Connector, inserted: str, flushed: str) -> Lsn:
    """The end of the last record, by what ENDS_OF_LOG gave; waits until the log is flushed up to there."""
    end = end_of_last_record(parse_lsn(inserted))
    if parse_lsn(flushed) < end:
        _wait_for_flush(session, connector, end)
    return end


def _wait_for_flush(session: Session, connector: Connector, lsn: Lsn) -> None:
    """Waits until the log is flushed up to `lsn`.

    With synchronous_commit=off a visible commit may not be flushed yet. The server flushes within its
    wal_writer_delay, except for the last, partly filled page, which may wait for the next commit; so a small
    message is committed to the log where waiting alone did not help.
    """
    give_up = time.monotonic() + FLUSH_GIVE_UP
    nudged = False
    patience = time.monotonic() + FLUSH_PATIENCE
    while not _flushed(session, lsn):
        if not nudged and time.monotonic() > patience:
            _nudge(session, connector)
            nudged = True
            continue
        if time.monotonic() > give_up:
            raise TransientError(
                f"the server has not flushed its log within {FLUSH_GIVE_UP:.0f} s: its disk may be slow or stuck. "
                "Start the query again once the server writes to it"
            )
        time.sleep(FLUSH_INTERVAL)


def _flushed(session: Session, lsn: Lsn) -> bool:
    (flushed,) = one_row(session.execute("SELECT pg_catalog.pg_current_wal_flush_lsn()::text"))
    return parse_lsn(flushed) >= lsn


def _nudge(session: Session, connector: Connector) -> None:
    if session.info.transaction_status is TransactionStatus.IDLE:
        session.execute(_NUDGE)
    else:
        with translating(), connector.session() as other:
            other.execute(_NUDGE)
