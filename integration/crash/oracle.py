"""What must be true: of the sink at the end, and of the slot at any time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from backfill.offset import Barrier, InitialOffset, Offset
from backfill.upstream.postgres.position import Position, parse_lsn
from integration.crash.sink import Row, Sink
from integration.database import Database
from integration.fold import Fold


def require_history(
    history: Sequence[tuple[int, list[Row]]], key: tuple[str, ...], *, full: bool = False, supersedes: bool = False
) -> Fold:
    """Requires that no batch is missing, and that I2 and I3 hold over all of them; returns what they come to."""
    numbers = [number for number, _ in history]
    assert numbers == list(range(len(numbers))), f"batches are missing: {numbers}"
    fold = Fold(key, full, supersedes)
    for number, rows in history:
        try:
            fold.apply(rows)
        except AssertionError as error:
            raise AssertionError(f"in batch {number}: {error}") from error
    return fold


def require_exact(sink: Sink, database: Database, table: str, select: str, *, full: bool = False) -> None:
    """The sink's history and its copy must come to the table, and what was read twice be the same.

    With `full`, all updates and deletes must have come with the whole row before them.
    """
    fold = require_history(sink.batches(), sink.key, full=full, supersedes=sink.supersedes)
    expected = rows_of(database, table, select, sink.key)
    missing = [row for key, row in expected.items() if key not in fold.rows]
    surplus = [row for key, row in fold.rows.items() if key not in expected]
    differing = [(fold.rows[key], row) for key, row in expected.items() if fold.rows.get(key, row) != row]
    assert not missing, f"the sink lacks {len(missing)} rows, such as {missing[0]}"
    assert not surplus, f"the sink has {len(surplus)} rows too many, such as {surplus[0]}"
    assert not differing, f"{len(differing)} rows differ; the sink and the table have {differing[0]}"
    assert sink.state() == dict(map(sink.texts_of, fold.rows.values())), "the copy and the history of the sink differ"
    sink.require_equal_attempts()


def rows_of(database: Database, table: str, select: str, key: tuple[str, ...]) -> dict[tuple[Any, ...], Row]:
    query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(select), sql.SQL(table))
    with database.connect() as connection, connection.cursor(row_factory=dict_row) as cursor:
        return {tuple(row[name] for name in key): row for row in cursor.execute(query)}


def require_constant_sum(sink: Sink, offsets: Sequence[Offset], constant: int) -> int:
    """Requires that each batch after the backfill ends at a consistent state, in which the balances have their sum.

    Excepted are batches while keys are ahead of others, because their chunk was lost in a crash and read later.
    `offsets` are the ends of the batches. Returns how many batches were looked at.
    """
    fold = Fold(sink.key, supersedes=sink.supersedes)
    looked = 0
    following = [*offsets[1:], InitialOffset()]
    for (number, rows), offset, after in zip(sink.batches(), offsets, following, strict=True):
        fold.apply(rows)
        assert isinstance(offset, Barrier)
        read = not offset.progress.unfinished
        if read and not (isinstance(after, Barrier) and after.ahead):
            looked += 1
            now = sum(int(row["balance"]) for row in fold.rows.values())
            assert now == constant, f"after batch {number} the balances sum up to {now} and not to {constant}"
    return looked


def require_not_ahead(database: Database, slot: str, committed: Offset) -> None:
    """Requires that the slot keeps everything after what the engine has committed (I5)."""
    with database.connect(autocommit=True) as connection:
        confirmed = confirmed_lsn(connection, slot)
    if confirmed is None:
        return
    assert isinstance(committed, Barrier), f"slot {slot} is at {confirmed:X} and nothing has been committed"
    limit = Position.parse(committed.epoch.position).lsn
    assert confirmed <= limit, f"slot {slot} was advanced to {confirmed:X}, and only {limit:X} has been committed"


def confirmed_lsn(connection: psycopg.Connection[Any], slot: str) -> int | None:
    row = connection.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [slot]
    ).fetchone()
    return None if row is None or row[0] is None else parse_lsn(row[0])
