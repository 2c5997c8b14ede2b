"""A stream on a real database without Spark: Spark's log and commits, with the database itself as the judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from backfill import handoff
from backfill.handoff import Part
from backfill.opening import open_stream
from backfill.options import parse
from backfill.progress import Frontier
from backfill.stream import Stream
from backfill.upstream import Pin
from backfill.upstream.postgres.adapter import PostgresUpstream
from backfill.upstream.postgres.session.retries import RetryPolicy
from backfill.upstream.postgres.snapshot.entering import Token
from backfill.vnode import Coverage
from integration.database import Database
from integration.fold import Fold, Row, Rows
from tests.query import Query

QUICK = RetryPolicy(first=0.01, most=0.1, give_up_after=120.0)
"""What a stream does about transient errors here: as in production, only sooner."""


@dataclass(slots=True)
class Pauses:
    """How long pauses have been in all, in seconds."""

    passed: float = 0.0

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self.passed += seconds


def table_of(database: Database, rows: int, *, identity: str = "DEFAULT") -> None:
    """The table `t (id, v)` with the keys from 1 to `rows`."""
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    database.execute(f"INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, {rows}) i")
    database.execute("ANALYZE t")


def churn(database: Database, number: int) -> None:
    """Makes changes all over the table of `table_of`, different ones for each number."""
    database.execute(
        f"UPDATE t SET v = 'round {number}' WHERE id % 7 = {number % 7}; DELETE FROM t WHERE id % 31 = {number % 31};"
        f"INSERT INTO t SELECT i, 'new' FROM generate_series({number}, 400, 37) i ON CONFLICT (id) DO NOTHING;"
        f"UPDATE t SET id = id + 1000000 WHERE id % 61 = {number % 61} "
        "AND NOT EXISTS (SELECT FROM t o WHERE o.id = t.id + 1000000)"
    )


class StreamRun(Query[Row]):
    """One checkpoint over any number of processes of the driver; tasks run here.

    `key` names the columns by which the sink tells rows apart. `select` is what makes the database give the same
    values as the stream does, where `SELECT *` does not.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        table: str,
        *,
        key: tuple[str, ...] = ("id",),
        select: str = "*",
        **options: str,
    ) -> None:
        self.database = database
        self.folder = folder
        self.options: Mapping[str, str] = {
            **database.options,
            "dbtable": table,
            "stateDir": str(folder / "state"),
            **options,
        }
        self.select = select
        self.offsets: list[str] = []
        self.committed = 0
        self.fold = Fold(key, full=options.get("changelog") == "full" or "envelope" in options)
        self.judged = 0
        self._stream: Stream | None = None

    # -- the driver's process --------------------------------------------------------------------------------------

    def stream(self) -> Stream:
        if self._stream is None:
            self._stream = open_stream(parse(self.options, streaming=True))
            self.upstream._sessions.retries = QUICK
        return self._stream

    def give_up_after(self, seconds: float) -> None:
        """From now on the stream gives up on transient errors after this time. Only pauses count, so that a slow
        machine has as many tries.
        """
        pauses = Pauses()
        self.upstream._sessions.retries = replace(
            QUICK, give_up_after=seconds, clock=lambda: pauses.passed, sleep=pauses.sleep
        )

    @property
    def upstream(self) -> PostgresUpstream:
        upstream = self.stream()._upstream
        assert isinstance(upstream, PostgresUpstream)
        return upstream

    @property
    def pin(self) -> Pin | None:
        """What holds the state at which the planned batch reads snapshot rows."""
        return self.stream()._pin

    def stop(self) -> None:
        """Ends the driver; what follows happens in a new one."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    def restart(self, **options: str) -> None:
        """Ends the driver; a new one goes on from the checkpoint, with these options set to other values."""
        self.stop()
        self.options = {**self.options, **options}

    def new_checkpoint(self) -> StreamRun:
        """Another query with the same options and a checkpoint and a sink of its own."""
        other = StreamRun(self.database, self.folder, "", key=self.fold.key, select=self.select)
        other.options = self.options
        return other

    # -- one batch, step by step -----------------------------------------------------------------------------------

    def batches_of(self, part: Part) -> Iterator[list[Row]]:
        """What a task reads, batch by batch."""
        stream = self.stream()
        for batch in handoff.read(part, self.upstream.reader(), stream.rows):
            assert batch.schema.equals(stream.rows.schema)
            yield batch.to_pylist()

    def read_part(self, part: Part) -> list[Row]:
        return [row for batch in self.batches_of(part) for row in batch]

    def read(self) -> list[Row]:
        return [row for part in self.parts() for row in self.read_part(part)]

    def commit(self, rows: list[Row]) -> None:
        again = self.barrier(self.committed + 1).again
        self.fold.apply(rows, again=again is not None and isinstance(again.progress, Frontier))
        self.committed += 1

    def judged_batch(self, max_rows: int | None = None) -> bool:
        """Runs a batch after which the sink must be what the database itself shows at the batch's epoch (I1).

        This can be checked where the epoch is a state that readers are pinned to.
        """
        if not self.plan(max_rows):
            return False
        require = self.judge()
        self.commit(self.read())
        require()
        return True

    def judge(self) -> Callable[[], None]:
        """A check for the batch that is planned: called once it is committed, it requires that the sink is right."""
        if self.pin is None:
            return lambda: None
        expected = self._shown_at(self.pin)

        def require() -> None:
            self.judged += 1
            self._require_sink(expected)

        return require

    def backfill(self, max_rows: int | None = None) -> int:
        """Runs judged batches until every snapshot row has been read; returns how many.

        At least one of them had a pin to be judged by, unless all of them were planned before.
        """
        planned = bool(self.offsets) and not self.barrier(len(self.offsets)).progress.unfinished
        judged = self.judged
        for number in range(1, 501):
            self.judged_batch(max_rows)
            if self.backfilled:
                assert planned or self.judged > judged
                return number
        raise AssertionError(f"the backfill is not over after {number} batches")

    # -- where it stands -------------------------------------------------------------------------------------------

    @property
    def coverage(self) -> Coverage:
        return self.barrier().progress.coverage

    @property
    def slot(self) -> str:
        """The replication slot's name, and the publication's."""
        return dict(self.barrier().bookmark)["slot"]

    # -- the judge -------------------------------------------------------------------------------------------------

    def table(self, connection: psycopg.Connection[Any], where: sql.Composable | None = None) -> Rows:
        """What the database says the table holds."""
        query = sql.SQL("SELECT {} FROM {} WHERE {}").format(
            sql.SQL(self.select), sql.SQL(self.options["dbtable"]), where or sql.SQL("true")
        )
        with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            rows = cursor.execute(query).fetchall()
        return {tuple(row[name] for name in self.fold.key): row for row in rows}

    def require_equal(self) -> None:
        """Requires that the sink equals the table as it is now."""
        with self.database.connect() as connection:
            self._require_sink(self.table(connection))

    def finish(self) -> None:
        """Reads everything, requires that the sink equals the table, and ends the driver."""
        self.catch_up()
        assert self.backfilled
        self.require_equal()
        self.stop()

    def _shown_at(self, pin: Pin) -> Rows:
        barrier = self.barrier(len(self.offsets))
        with self.database.connect() as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(Token.parse(pin.token).name))
            return self.table(connection, self._covered(connection, barrier.progress.coverage))

    def _covered(self, connection: psycopg.Connection[Any], coverage: Coverage) -> sql.Composable:
        """The condition that a row's key lies in `coverage`: the text of a bound becomes a value of the column."""
        table = self.stream().rows.table
        # Not format_type, whose "character" is char(1).
        query = (
            "SELECT attname, format('%%s.%%I', typnamespace::regnamespace, typname) "
            "FROM pg_attribute JOIN pg_type t ON t.oid = atttypid WHERE attrelid = %s::regclass"
        )
        types: dict[str, str] = dict(connection.execute(query, [self.options["dbtable"]]).fetchall())

        def key(texts: Sequence[str]) -> sql.Composable:
            values = [
                sql.SQL("CAST({} AS {})").format(text, sql.SQL(types[name]))
                for text, name in zip(texts, table.key, strict=True)
            ]
            return sql.SQL("ROW({})").format(sql.SQL(", ").join(values))

        columns = sql.SQL("ROW({})").format(sql.SQL(", ").join(map(sql.Identifier, table.key)))
        alternatives: list[sql.Composable] = [sql.SQL("false")]
        for item in coverage:
            lower = sql.SQL("true") if item.after is None else sql.SQL("{} > {}").format(columns, key(item.after))
            upper = sql.SQL("true") if item.upto is None else sql.SQL("{} <= {}").format(columns, key(item.upto))
            alternatives.append(sql.SQL("({} AND {})").format(lower, upper))
        return sql.SQL(" OR ").join(alternatives)

    def _require_sink(self, expected: Rows) -> None:
        missing = [row for key, row in expected.items() if key not in self.fold.rows]
        surplus = [row for key, row in self.fold.rows.items() if key not in expected]
        differing = [(self.fold.rows[key], row) for key, row in expected.items() if self.fold.rows.get(key, row) != row]
        assert not missing, f"batch {self.committed}: the sink lacks {len(missing)} rows, such as {missing[0]}"
        assert not surplus, f"batch {self.committed}: the sink has {len(surplus)} rows too many, such as {surplus[0]}"
        assert not differing, (
            f"batch {self.committed}: {len(differing)} rows differ; the sink and the table have {differing[0]}"
        )


def next_changes(run: StreamRun) -> list[tuple[str, int, str | None]]:
    """Runs the next batch; returns its changes as `_change_type`, `id` and `v`."""
    assert run.plan()
    rows = sorted(run.read(), key=lambda row: row["_sequence"])
    run.commit(rows)
    return [(row["_change_type"], row["id"], row["v"]) for row in rows]
