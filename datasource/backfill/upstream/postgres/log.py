"""Reads the change log: peeks at the slot's messages, decodes them, keeps those of wanted transactions.

Peeking leaves the slot where it is, so the same changes can be had again until they are acknowledged; and it is
some four times as fast as START_REPLICATION, whose sender works message by message. Its price: each peek begins at
the slot's `restart_lsn`, which a long write transaction holds back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from psycopg import sql

from backfill.upstream.postgres.connection import Connector
from backfill.upstream.postgres.failures import translating
from backfill.upstream.postgres.pgoutput import Decoder
from backfill.upstream.postgres.position import Position, format_lsn
from backfill.upstream.postgres.relation import WantedColumn
from backfill.upstream.postgres.spool import Spool
from backfill.upstream.postgres.transactions import Keep, Transactions

MESSAGE_BATCH_BYTES: Final = 4 << 20
"""About how much of the log is decoded at a time: enough for vectors to pay, little enough for a driver's memory."""

MOST_MESSAGES: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Feed:
    """Whose messages a peek returns and how they are decoded."""

    slot: str
    publication: str
    table_oid: int
    wanted: tuple[WantedColumn, ...]


@dataclass(frozen=True, slots=True)
class Peeked:
    """One decoded piece of a peek: the rows of kept transactions, and all transactions that ended in it."""

    rows: pa.RecordBatch
    transactions: Transactions
    messages: int


def peek(connector: Connector, feed: Feed, keep: Keep, *, upto: int, limit: int) -> Iterator[Peeked]:
    """The log from where the slot stands, in commit order, up to the first commit that reaches `upto` or `limit`.

    `limit` counts messages, and only ends a peek between transactions (PostgreSQL manual, 9.28.6).
    """
    decoder = Decoder(feed.table_oid, feed.wanted, keep)
    with translating(), connector.arrow_session() as session, session.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(MESSAGE_BATCH_BYTES)})
        cursor.execute(_statement(feed, upto, limit))
        for batch in cursor.fetch_record_batch():
            decoded = decoder.feed(batch.column(0))
            yield Peeked(decoded.rows, decoded.transactions, batch.num_rows)


def _statement(feed: Feed, upto: int, limit: int) -> str:
    statement = sql.SQL(
        "SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes("
        "{slot}, {upto}, {limit}, 'proto_version', '1', 'publication_names', {publication})"
    ).format(
        slot=sql.Literal(feed.slot),
        upto=sql.Literal(format_lsn(upto)),
        limit=sql.Literal(min(limit, MOST_MESSAGES)),
        # A list of identifiers in one text, so a name is quoted as an identifier within it.
        publication=sql.Literal(sql.Identifier(feed.publication).as_string(None)),
    )
    return statement.as_string(None)


def keeping(after: Position, upto: Position) -> Keep:
    """The transactions that `upto` shows and `after` does not."""
    return lambda xids, lsns: upto.shows(xids, lsns) & ~after.shows(xids, lsns)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one reading of the log found: rows of wanted transactions, and every transaction that was looked at."""

    rows: Spool
    transactions: Transactions
    complete: bool
    """Whether the log was read up to where it was asked for, and not only up to the limit."""

    @property
    def end(self) -> int:
        """The end of the last transaction, wanted or not; 0 where there was none."""
        return self.transactions.last_end_lsn or 0

    @property
    def timestamp(self) -> int | None:
        """When the last transaction was committed, in microseconds since 1970."""
        times = self.transactions.begun.timestamp
        return int(times[-1]) if len(times) else None

    def acknowledgeable(self, position: Position, upto: int) -> int:
        """Where the slot may stand once `position` has been committed; 0 for no move.

        That is the end of the last commit before the first one that `position` does not show; and where there is no
        such commit and the log was read up to `upto`, that.
        """
        seen = self.transactions
        leading = seen.leading(position.shows(seen.begun.xid, seen.begun.commit_lsn))
        if len(leading) == len(seen) and self.complete:
            return upto
        return leading.last_end_lsn or 0


def read(connector: Connector, feed: Feed, *, after: Position, shown: Position, upto: int, limit: int) -> Reading:
    """The changes of transactions that `shown` shows and `after` does not, as far as they end before `upto`.

    Stops after about `limit` messages, but not before it got beyond `after`: transactions that `after` shows may
    stand in the log behind one that it does not, and are met again until that one is acknowledged.
    """
    while True:
        reading = _read_once(connector, feed, keeping(after, shown), upto, limit)
        if reading.complete or reading.end > after.lsn:
            return reading
        reading.rows.close()
        limit *= 4


def _read_once(connector: Connector, feed: Feed, keep: Keep, upto: int, limit: int) -> Reading:
    spool: Spool | None = None
    seen: list[Transactions] = []
    messages = 0
    for piece in peek(connector, feed, keep, upto=upto, limit=limit):
        spool = spool or Spool(piece.rows.schema)
        spool.add(piece.rows)
        seen.append(piece.transactions)
        messages += piece.messages
    spool = spool or Spool(pa.schema([]))
    spool.finish()
    return Reading(spool, Transactions.join(seen), messages < limit)
