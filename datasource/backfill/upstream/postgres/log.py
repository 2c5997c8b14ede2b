"""Reads the change log: peeks at the slot's messages, decodes them, keeps those of wanted transactions.

Peeking leaves the slot where it is, so the same changes can be had again until they are acknowledged; and it is
some four times as fast as START_REPLICATION, whose sender works message by message. Its price: each peek begins at
the slot's `restart_lsn`, which a long write transaction holds back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from psycopg import sql

from backfill.upstream.postgres.connection import Connector
from backfill.upstream.postgres.failures import translating
from backfill.upstream.postgres.pgoutput import Decoder
from backfill.upstream.postgres.position import Position, format_lsn
from backfill.upstream.postgres.relation import WantedColumn
from backfill.upstream.postgres.transactions import Keep, Transactions

MESSAGE_BATCH_BYTES: Final = 4 << 20
"""About how much of the log is decoded at a time: enough for vectors to pay, little enough for a driver's memory."""

MOST_CHANGES: Final = 2**31 - 1


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

    rows: pa.RecordBatch | None
    transactions: Transactions
    messages: int


def peek(connector: Connector, feed: Feed, keep: Keep, *, upto: int | None, limit: int | None) -> Iterator[Peeked]:
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


def _statement(feed: Feed, upto: int | None, limit: int | None) -> str:
    statement = sql.SQL(
        "SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes("
        "{slot}, {upto}, {limit}, 'proto_version', '1', 'publication_names', {publication})"
    ).format(
        slot=sql.Literal(feed.slot),
        upto=sql.Literal(None if upto is None else format_lsn(upto)),
        limit=sql.Literal(None if limit is None else min(limit, MOST_CHANGES)),
        # A list of identifiers in one text, so a name is quoted as an identifier within it.
        publication=sql.Literal(sql.Identifier(feed.publication).as_string(None)),
    )
    return statement.as_string(None)


def keeping(after: Position | None, upto: Position) -> Keep:
    """The transactions that `upto` shows and `after` does not."""
    if after is None:
        return upto.shows
    return lambda xids, lsns: upto.shows(xids, lsns) & ~after.shows(xids, lsns)


def acknowledgeable(transactions: Sequence[Transactions], position: Position) -> tuple[int | None, bool]:
    """Where the slot may stand once `position` has been committed, by what a peek saw: an LSN, or None for no move.

    That is the end of the last commit before the first one that `position` does not show. Also says whether there
    was none of those.
    """
    seen = Transactions.join(transactions)
    leading = seen.leading(position.shows(seen.begun.xid, seen.begun.commit_lsn))
    return leading.last_end_lsn, len(leading) == len(seen)
