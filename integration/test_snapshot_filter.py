"""The option `snapshotFilter`: which rows the snapshot gives, and what becomes of those that enter or leave it.

What a keyed sink has to hold is told by a journal that a trigger writes: of the part of the table that was read, the
rows for which the condition holds, and those that have been changed since they were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from pyspark.errors import AnalysisException

from backfill.__main__ import main
from backfill.errors import DatabaseSetupError, OptionsError
from backfill.options import parse
from backfill.upstream import Pin
from backfill.upstream.postgres import PostgresUpstream
from backfill.upstream.postgres.snapshot.entering import Token
from backfill.vnode import WHOLE_TABLE
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.fold import Fold, Row, Rows
from integration.spark_stream import SparkStream, make_table
from integration.stream_harness import StreamRun, table_of
from integration.writers import BIGINT, TABLE, Writers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 1000
ENOUGH = 100_000
CONDITIONS = (
    "balance % 3 = 0 -- a third",
    "note IS DISTINCT FROM 'moved'",
    "balance < 100 AND note = 'moved'",
    "false",
)
JOURNAL = f"""
    CREATE TABLE journal (seq bigint GENERATED ALWAYS AS IDENTITY, id bigint);
    CREATE FUNCTION journal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP <> 'INSERT' THEN INSERT INTO journal (id) VALUES (old.id); END IF;
        IF TG_OP <> 'DELETE' THEN INSERT INTO journal (id) VALUES (new.id); END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER journal AFTER INSERT OR UPDATE OR DELETE ON {TABLE} FOR EACH ROW EXECUTE FUNCTION journal();
"""


@dataclass
class KeyedSink(Fold):
    """Takes an update as the row's new values, and deletes what may not be there."""

    unknown: int = 0
    """Changes of rows that it never had."""

    def _apply(self, row: Row, *, again: bool) -> None:
        key = tuple(row[name] for name in self.key)
        if row["_change_type"] != "insert" and key not in self.rows:
            self.unknown += 1
            if row["_change_type"] == "update_preimage":
                return
            self.rows[key] = {}
        super()._apply(row, again=again)


@dataclass
class Judge:
    """Tells at each pinned state what the sink must hold once the batch that ends there is committed."""

    run: StreamRun
    condition: str
    changed: set[tuple[Any, ...]] = field(default_factory=set)
    """Keys of rows that have been changed since they were read."""

    seen: set[int] = field(default_factory=set)
    outside: int = 0

    def batch(self, max_rows: int) -> None:
        if not self.run.plan(max_rows):
            return
        pin = self.run.pin
        expected = None if pin is None else self.expected(pin)
        self.run.commit(self.run.read())
        if expected is not None:
            self.require(expected)

    def require(self, expected: Rows) -> None:
        self.run.judged += 1
        self.run._require_sink(expected)

    def expected(self, pin: Pin | None) -> Rows:
        """As of the pin, or as of now, when everything has been read and nobody writes."""
        with self.run.database.connect() as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            everything: sql.Composable = sql.SQL("true")
            before = now = everything
            if pin is not None:
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(Token.parse(pin.token).name))
                end = self.run.barrier(len(self.run.offsets)).progress
                now = self.run._covered(connection, getattr(end, "coverage", ()))
                before = sql.SQL("false")
                if self.run.committed:
                    before = self.run._covered(connection, self.run.coverage)
            self._read_journal(connection, before)
            rows = self.run.table(connection, now)
            holds = sql.SQL("({}) AND ({}\n)").format(now, sql.SQL(self.condition))
            chosen = self.run.table(connection, holds)
        self.outside += sum(key in self.changed and key not in chosen for key in rows)
        return {key: row for key, row in rows.items() if key in chosen or key in self.changed}

    def _read_journal(self, connection: psycopg.Connection[Any], before: sql.Composable) -> None:
        """A key is changed from now on if its row had been read before the state in which the change first shows."""
        found = connection.execute(sql.SQL("SELECT seq, id, ({}) FROM journal").format(before)).fetchall()
        self.changed |= {(key,) for number, key, read in found if number not in self.seen and read}
        self.seen = {number for number, _, _ in found}


def backfill(run: StreamRun, max_rows: int) -> None:
    while not run.committed or not run.backfilled:
        assert run.batch(max_rows)


@pytest.mark.parametrize("options", [{}, {"changelog": "full"}], ids=str)
def test_at_every_barrier_a_keyed_sink_holds_the_chosen_rows_and_those_changed_since(
    database: Database, start_stream: StartStream, options: Mapping[str, str], rng: Random
) -> None:
    """With `changelog=full` any sink does, because a row that comes first with a change is then an insert."""
    BIGINT.create(database, SIZE, identity="DEFAULT" if options else rng.choice(["DEFAULT", "FULL"]))
    database.execute(JOURNAL)
    condition = rng.choice(CONDITIONS)
    run = start_stream(TABLE, maxBytesPerTrigger="2500", snapshotFilter=condition, **options)
    run.restart(vnodeCount="7", numPartitions="3")
    run.select = BIGINT.select
    if not options:
        run.fold = KeyedSink(("id",))
    judge = Judge(run, condition)
    judge.batch(ENOUGH)
    with Writers(database, BIGINT, SIZE, rng, clients=3):
        while not run.backfilled or len(run.offsets) < 12:
            judge.batch(20 if rng.random() < 0.1 else ENOUGH)
            if rng.random() < 0.2:
                run.restart()
            elif rng.random() < 0.2 and run.plan(ENOUGH):
                expected = judge.expected(run.pin) if run.pin is not None else None
                run.read()  # all of it is staged; then the driver is killed and another one runs the batch again
                run.restart()
                run.commit(run.read())
                if expected is not None:
                    judge.require(expected)
    run.catch_up()
    run._require_sink(judge.expected(None))
    assert run.judged >= 3  # where no row is chosen, a batch looks at three of the seven vnodes
    assert judge.outside > 0
    run.stop()


def test_rows_that_enter_and_leave_come_as_the_readme_says(database: Database, start_stream: StartStream) -> None:
    table_of(database, 30)
    run = start_stream(vnodeCount="1", numPartitions="1", snapshotFilter="id % 10 = 1 OR v = 'in'")
    run.fold = KeyedSink(("id",))
    run.batch(2)
    assert [row["id"] for row in run.fold.rows.values()] == [1, 11]
    run.database.execute("UPDATE t SET v = 'in' WHERE id IN (2, 25); UPDATE t SET v = 'x' WHERE id IN (3, 26)")
    run.database.execute("UPDATE t SET id = -id WHERE id = 11; DELETE FROM t WHERE id IN (4, 21)")
    assert run.plan(1000)
    rows = sorted(run.read(), key=lambda row: row["_sequence"])
    run.commit(rows)
    assert [(row["_change_type"], row["id"], row["v"]) for row in rows] == [
        ("update_postimage", 2, "in"),
        ("update_postimage", 3, "x"),
        ("delete", 11, None),
        ("insert", -11, "v11"),
        ("delete", 4, None),
        ("insert", 25, "in"),
    ]
    assert run.barrier().progress.row_count == 3


def test_a_chunk_that_was_lost_is_read_again_with_the_rows_that_are_chosen_then(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 5)
    database.execute("UPDATE t SET v = 'in' WHERE id IN (1, 2)")
    run = start_stream(vnodeCount="1", numPartitions="1", snapshotFilter="v = 'in'")
    assert run.plan()
    run.restart()
    run.database.execute("UPDATE t SET v = CASE id WHEN 1 THEN 'out' ELSE 'in' END WHERE id IN (1, 3)")
    run.batch()
    run.catch_up()
    assert sorted(run.fold.rows) == [(2,), (3,)]
    run.fold = KeyedSink(("id",))
    run.database.execute("UPDATE t SET v = v || '+' WHERE id IN (1, 4)")
    run.catch_up()
    assert sorted(row["v"] for row in run.fold.rows.values()) == ["out+", "v4+"]


def test_where_no_row_is_chosen_the_backfill_ends_and_all_changes_follow(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 300)
    run = start_stream(snapshotFilter="v IS NULL", vnodeCount="8", numPartitions="2")
    backfill(run, 10)
    assert (run.fold.rows, run.barrier().progress.row_count) == ({}, 0)
    run.fold = KeyedSink(("id",))
    run.database.execute("UPDATE t SET v = 'x' WHERE id <= 7")
    run.catch_up()
    assert sorted(run.fold.rows) == [(number,) for number in range(1, 8)]


def test_a_snapshot_alone_has_the_chosen_rows(database: Database, start_stream: StartStream) -> None:
    table_of(database, 300)
    run = start_stream(snapshotFilter="t.id > 290", startupMode="snapshot", numPartitions="2")
    run.batch()
    assert sorted(run.fold.rows) == [(number,) for number in range(291, 301)]


def test_a_condition_that_divides_by_zero_is_named(database: Database, start_stream: StartStream) -> None:
    table_of(database, 40)
    run = start_stream(snapshotFilter="10 / (id - 5) >= 0")
    with pytest.raises(DatabaseSetupError, match=r"division by zero .* snapshotFilter divides, write NULLIF"):
        run.batch(ENOUGH)


def test_another_filter_is_refused_in_every_phase_and_by_every_way_in(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 30)
    run = start_stream(snapshotFilter="id > 10", vnodeCount="1")
    run.batch(5)
    run.ask(5)
    run.restart(snapshotFilter="id > 11")
    with pytest.raises(
        OptionsError, match="began with snapshotFilter='id > 10', and is given snapshotFilter='id > 11'"
    ):
        run.plan(5)
    run.restart(snapshotFilter="", onExistingState="resume")
    other = run.new_checkpoint()
    with pytest.raises(OptionsError, match="and is given no snapshotFilter now"):
        other.plan(5)
    other.stop()
    run.restart(snapshotFilter="id > 10")
    backfill(run, 5)
    assert len(run.fold.rows) == 20


def test_once_no_rows_are_left_to_read_a_filter_may_be_left_out_for_good(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 30)
    run = start_stream(snapshotFilter="id > 10", vnodeCount="1")
    run.batch(5)
    run.restart(snapshotFilter="")
    with pytest.raises(OptionsError, match="and is given no snapshotFilter now"):
        run.plan(5)
    run.restart(snapshotFilter="id > 10")
    backfill(run, 5)
    run.restart(snapshotFilter="")
    database.execute("UPDATE t SET v = 'new' WHERE id = 20")
    assert run.batch(5)
    assert main(["re-backfill", "--state-dir", run.options["stateDir"], "--to", "3"]) == 0
    assert run.plan(50)
    assert sorted(row["id"] for row in run.read()) == [1, 2, 3]
    run.restart(snapshotFilter="id > 10")
    with pytest.raises(OptionsError, match="began with no snapshotFilter"):
        run.read()


def test_a_new_checkpoint_that_resumes_after_the_backfill_needs_no_filter(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 30)
    run = start_stream(snapshotFilter="id > 10", vnodeCount="1")
    backfill(run, 50)
    run.catch_up()  # With it the end of the backfill is recorded.
    run.restart(snapshotFilter="", onExistingState="resume")
    other = run.new_checkpoint()
    other.fold.rows.update(run.fold.rows)
    database.execute("UPDATE t SET v = 'new' WHERE id = 20")
    other.catch_up()
    assert other.fold.rows[(20,)]["v"] == "new"
    other.stop()


def test_a_query_of_spark_has_the_chosen_rows(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    make_table(database, 300)
    stream = SparkStream(spark, database, tmp_path, {"snapshotFilter": "id % 3 = 0", "maxRowsPerTrigger": "60"})
    stream.catch_up()
    assert sorted(row["id"] for row in stream.rows()) == list(range(3, 301, 3))
    with pytest.raises(AnalysisException, match="OptionsError: snapshotFilter is 'at < now"):
        stream.load(snapshotFilter="at < now()")
    plain = spark.read.format("backfill").options(**database.options, dbtable="t", snapshotFilter="id = 3").load()
    with pytest.raises(AnalysisException, match=r"snapshotFilter is for a stream; spark\.read takes the option filter"):
        plain.count()


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("nope = 1", 'no condition on a row of "public"."t": column "nope" does not exist'),
        ("id", "must be type boolean"),
        ("id > $1", "bind message supplies 0 parameters"),
        ("id = 1) OR (id > 1", 'syntax error at or near ")"'),
        ("true; DELETE FROM t", "cannot insert multiple commands"),
        ("true); DROP TABLE t; --", "syntax error"),
        ("true /* open", "unterminated /* comment"),
        ("count(*) > 1", "aggregate functions are not allowed"),
        ("id IN (SELECT max(id) FROM t)", "do not decide alone: cannot use subquery"),
        ("random() < 0.5", "do not decide alone: functions in index predicate must be marked IMMUTABLE"),
        ("at > now() - interval '1 day'", "must be marked IMMUTABLE. Leave out subselects"),
        ("at::date = '2026-01-01'", "must be marked IMMUTABLE"),
        ("at > 'now'", "do not decide alone: the server takes 'now' for the time at which it is asked"),
        ("v = 'now' AND at < 'Today 12:00'", "takes 'today'"),
        ("at > $$now$$", "takes 'now'"),
        ("v = $a$ $$ today $a$ AND at < $b_1$tomorrow$b_1$", "takes 'tomorrow'"),
        ("at < 'today12:00' -- and not later", "takes 'today'"),
        ("""'it''s' <> v AND at = E'\ttomorrow_'""", "takes 'tomorrow'"),
        ("at <@ '[yesterday,tomorrow)'::tstzrange", "takes 'tomorrow'"),
        ("ctid = '(0,1)'", "do not decide alone: index creation on system columns"),
    ],
)
def test_what_is_no_condition_on_a_row_alone_is_refused_before_the_stream_starts(
    database: Database, condition: str, problem: str, tmp_path: Path
) -> None:
    table_of(database, 3)
    database.execute("ALTER TABLE t ADD at timestamptz")
    options = {**database.options, "dbtable": "t", "stateDir": str(tmp_path / "state"), "snapshotFilter": condition}
    upstream = PostgresUpstream.of(parse(options))
    try:
        with pytest.raises(OptionsError, match="snapshotFilter is ") as caught:
            upstream.schema()
    finally:
        upstream.close()
    assert problem in str(caught.value)
    assert database.execute("SELECT count(*) FROM t") == [(3,)]
    assert database.execute("SELECT count(*) FROM pg_class WHERE relname = 't'") == [(1,)]


def test_the_doctor_says_it_too_and_literals_are_fine(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table_of(database, 3)
    database.execute("ALTER TABLE t ADD at timestamptz")
    command = ["doctor", "--url", database.url(tmp_path), "--dbtable", "t", "--option"]
    for condition in (
        "t.at > '2026-01-01 12:00+01' OR at IS NULL AND v LIKE '%now%' OR v = 'today'",
        "at > '2026-01-01' /* until 'today' */ -- 'now'",
        "at > $x$2026-01-01$x$ AND v <> $$now$$",
        """jsonb '{"now": 1, "now": 2}' @> '{}' OR bytea 'now' = '' OR "t".v <> 'a--''now'""",
    ):
        main([*command, f"snapshotFilter={condition}"])
        assert "snapshotFilter" not in capsys.readouterr().out
    assert main([*command, "snapshotFilter=at > now()"]) == 1
    assert "refused: snapshotFilter is 'at > now()', which the values of a row" in capsys.readouterr().out


def test_where_the_role_may_not_make_temporary_tables_that_is_said(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    table_of(database, 3)
    options = {**database.options, "dbtable": "t", "snapshotFilter": "id > 1"}
    options["sessionInitStatement"] = "SET default_transaction_read_only = on"
    upstream = PostgresUpstream.of(parse(options))
    try:
        assert upstream.schema().key == ("id",)
    finally:
        upstream.close()
    assert "could not be checked: cannot execute CREATE TABLE in a read-only transaction" in caplog.text


def test_a_limit_of_what_gin_finds_leaves_out_no_row(database: Database, start_stream: StartStream) -> None:
    """The server would take so many rows of an index at random, without a word."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int[], v text); CREATE INDEX ON t USING gin (a);"
        "INSERT INTO t SELECT i, ARRAY[i % 50], repeat('x', 200) FROM generate_series(1, 50000) i"
    )
    database.execute("VACUUM ANALYZE t")
    database.execute(f"ALTER DATABASE {database.name} SET gin_fuzzy_search_limit = 50")
    run = start_stream(snapshotFilter="a @> ARRAY[7]", startupMode="snapshot", columns="id")
    run.batch(1_000_000)
    assert len(run.fold.rows) == 1000
    upstream = PostgresUpstream.of(parse({**database.options, "dbtable": "t", "filter": "a @> ARRAY[7]"}))
    try:
        assert sum(batch.num_rows for batch in upstream.reader().scan([WHOLE_TABLE])) == 1000
    finally:
        upstream.close()
