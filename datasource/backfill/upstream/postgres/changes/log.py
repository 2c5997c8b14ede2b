"""Reads the change log: peeks at the slot's messages, decodes them, keeps those of wanted transactions.

Peeking leaves the slot where it is, so the same changes can be had again until they are acknowledged; and it is
some four times as fast as START_REPLICATION, whose sender works message by message. Its price: each peek begins at
the slot's `restart_lsn`, which a long write transaction holds back. That is also why the log is not read in smaller
pieces, nor consumed from a copy of the slot: tried, both were slower.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from psycopg import sql

from backfill.arrow.arrays import Mask
from backfill.errors import ConnectionLostError
from backfill.readahead import read_ahead
from backfill.upstream.added import NOTHING_ADDED, Added
from backfill.upstream.postgres.changes.spool import Spool
from backfill.upstream.postgres.decoder.namesakes import Namesakes
from backfill.upstream.postgres.decoder.pgoutput import Decoder
from backfill.upstream.postgres.decoder.relation import WantedColumn
from backfill.upstream.postgres.decoder.transactions import Keep, Transactions
from backfill.upstream.postgres.description import QualifiedName, quoted
from backfill.upstream.postgres.position import LOG_BEGIN, Lsn, Position, format_lsn
from backfill.upstream.postgres.replication.place import Place
from backfill.upstream.postgres.session.connection import Connector, Session
from backfill.upstream.postgres.session.failures import about_slot, translating
from backfill.upstream.postgres.session.server import require_log_of
from backfill.upstream.postgres.tables.partitions import logs_keys_as_rows
from backfill.upstream.postgres.tables.table import Table

_BATCH_BYTES: Final = 4 << 20
"""About how much of the log is decoded at a time: enough for vectors to pay, little enough for a driver's memory."""

_BYTES_A_COLUMN: Final = 32 << 10
"""The same for each column: each is a vector of its own, which would be short where there are very many columns."""

_MOST_BATCH_BYTES: Final = 16 << 20
"""The most for any number of columns: `READ_AHEAD` such batches and one more may be in memory."""

_MOST_CELLS: Final = 8 << 20
"""How many values are decoded at a time. A null is one byte of the log and many times as much while it is decoded, so
bytes alone are no bound for rows of many nulls.
"""

READ_AHEAD: Final = 4
"""How many such batches may wait to be decoded."""

MOST_MESSAGES: Final = 2**31 - 1

MessageBatches: TypeAlias = Generator[pa.RecordBatch, None, None]


@dataclass(frozen=True, slots=True)
class Feed:
    """Which slot is read, for which table, and how its messages are decoded."""

    place: Place
    table_oid: int
    wanted: tuple[WantedColumn, ...]
    added: Added = NOTHING_ADDED
    keys_as_rows: bool = False
    """Whether the log may give an old key as if it were a whole row (see `partitions`)."""

    @classmethod
    def of(cls, session: Session, place: Place, table: Table, added: Added = NOTHING_ADDED) -> Feed:
        described = table.description
        keys_as_rows = described.partitioned and logs_keys_as_rows(session, described.oid)
        return cls(place, described.oid, table.wanted, added, keys_as_rows)

    def decoder(self, keep: Keep, namesakes: Namesakes | None = None) -> Decoder:
        """A decoder of the messages of the transactions that are to be kept."""
        return Decoder(
            self.table_oid, self.wanted, keep, self.added, namesakes=namesakes, keys_as_rows=self.keys_as_rows
        )


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the log to read: up to the first commit that reaches `upto`, the changes of the transactions that
    `shown` shows and `after` does not.
    """

    after: Position
    shown: Position
    upto: Lsn

    def wants(self, xids: NDArray[np.uint32], commit_lsns: NDArray[np.uint64]) -> Mask:
        return self.shown.shows(xids, commit_lsns) & ~self.after.shows(xids, commit_lsns)


@dataclass(frozen=True, slots=True)
class Peeked:
    """What has been read of a stretch: rows of wanted transactions, and every transaction that was looked at."""

    stretch: Stretch
    rows: Spool
    message_count: int
    complete: bool
    """Whether the stretch was read to its end, and not only up to the limit."""

    transactions: Transactions
    ignored: tuple[str, ...]
    """The table's columns that were not asked for, as far as the log named them."""

    @property
    def end(self) -> Lsn:
        """The end of the last transaction, wanted or not; LOG_BEGIN where there was none."""
        return self.transactions.last_end_lsn or LOG_BEGIN

    @property
    def timestamp(self) -> int | None:
        """When the last transaction was committed, in microseconds since 1970."""
        times = self.transactions.begun.timestamp
        return int(times[-1]) if len(times) else None

    @property
    def is_idle(self) -> bool:
        """Whether the stretch was read to its end, and holds nothing that is wanted."""
        return self.complete and self.rows.row_count == 0

    def sees_all(self, now: Position) -> bool:
        """Whether `now` shows everything that the position shows at which the stretch begins.

        Transactions that have been acknowledged were visible by then; the others are in the log that was read.
        """
        seen = self.transactions.begun
        shown = self.stretch.after.shows(seen.xid, seen.commit_lsn)
        return not (shown & ~now.shows(seen.xid, seen.commit_lsn)).any()

    def acknowledgeable(self, position: Position) -> Lsn:
        """Where the slot may stand once `position` has been committed; LOG_BEGIN for no move.

        That is the end of the last commit before the first one that `position` does not show; if it shows all and the
        stretch was read to its end, `stretch.upto`.
        """
        seen = self.transactions
        leading = seen.leading(position.shows(seen.begun.xid, seen.begun.commit_lsn))
        if len(leading) == len(seen) and self.complete:
            return self.stretch.upto
        return leading.last_end_lsn or LOG_BEGIN


def peek(connector: Connector, feed: Feed, stretch: Stretch, limit: int) -> Peeked:
    """The changes of a stretch.

    Stops after about `limit` messages, but not before it has got beyond the position where the stretch begins:
    transactions shown there may stand in the log behind one that is not, and are met again until that one is
    acknowledged.
    """
    peeked = _peeked(connector, feed, stretch, limit)
    while not peeked.complete and peeked.end <= stretch.after.lsn:
        peeked.rows.close()
        limit *= 4
        peeked = _peeked(connector, feed, stretch, limit)
    return peeked


def changes(connector: Connector, feed: Feed, stretch: Stretch, name: QualifiedName) -> Iterator[pa.RecordBatch]:
    """The changes as they are read, without a limit; TableError where another table that had this name was changed."""
    decoder = feed.decoder(stretch.wants, Namesakes(feed.table_oid, name))
    for messages in _read_ahead(connector, feed, stretch.upto, None):
        rows = decoder.feed(messages).rows
        if rows.num_rows:
            yield rows
    _require_whole(decoder)


def _require_whole(decoder: Decoder) -> None:
    if decoder.in_transaction:
        raise ConnectionLostError("the change log ended in the middle of a transaction")


def _peeked(connector: Connector, feed: Feed, stretch: Stretch, limit: int) -> Peeked:
    decoder = feed.decoder(stretch.wants)
    rows, transactions, count = Spool(decoder.schema), [], 0
    with ExitStack() as opened:
        opened.callback(rows.close)
        for messages in _read_ahead(connector, feed, stretch.upto, limit):
            decoded = decoder.feed(messages)
            if decoded.rows.num_rows:
                rows.add(decoded.rows)
            transactions.append(decoded.transactions)
            count += len(messages)
        _require_whole(decoder)
        rows.finish()
        opened.pop_all()
    return Peeked(stretch, rows, count, count < limit, Transactions.join(transactions), decoder.ignored_columns)


def _read_ahead(connector: Connector, feed: Feed, upto: Lsn, limit: int | None) -> Iterator[pa.Array[Any]]:
    """The slot's messages, in arrays that are each decoded at once, while the next ones are read."""
    for batch in read_ahead(_messages(connector, feed, upto, limit), READ_AHEAD):
        yield from parts(batch.column(0), len(feed.wanted))


def _messages(connector: Connector, feed: Feed, upto: Lsn, limit: int | None) -> MessageBatches:
    """The slot's messages (PostgreSQL manual, "Replication Management Functions"), as batches of one binary column.

    They come in commit order, up to the first commit that reaches `upto` or, where there is a limit, makes it `limit`
    messages.
    """
    statement = sql.SQL(
        "SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes("
        "{slot}, {upto}, {limit}, 'proto_version', '1', 'publication_names', {publication})"
    ).format(
        slot=sql.Literal(feed.place.slot),
        upto=sql.Literal(format_lsn(upto)),
        limit=sql.Literal(None if limit is None else min(limit, MOST_MESSAGES)),
        # A list of identifiers in one text, so a name is quoted as an identifier within it.
        publication=sql.Literal(quoted(feed.place.publication)),
    )
    with translating(), connector.arrow_session() as session:
        require_log_of(session, feed.place.log.system, feed.place.log.timeline)
        with translating(about_slot):
            yield from session.read(statement.as_string(None), batch_bytes=batch_bytes(len(feed.wanted)))


def batch_bytes(columns: int) -> int:
    """About how much of the log of a table with so many columns is decoded at a time."""
    return min(max(_BATCH_BYTES, columns * _BYTES_A_COLUMN), _MOST_BATCH_BYTES)


def parts(messages: pa.Array[Any], columns: int) -> Iterator[pa.Array[Any]]:
    """The messages in as many parts as it takes to decode no more than a bounded number of values at a time."""
    at_once = max(_MOST_CELLS // max(columns, 1), 1)
    for start in range(0, len(messages), at_once):
        yield messages.slice(start, at_once)
