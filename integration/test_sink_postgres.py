"""A second table of PostgreSQL follows the first one through `foreachBatch`; the server compares the two."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from backfill.errors import (
    ConnectionLostError,
    OptionsError,
    StateError,
    TableError,
    TableLockedError,
    UnchangedToastError,
    UnsupportedTypeError,
    ValueOutOfRangeError,
)
from backfill.sinks.postgres import PostgresSink, apply_to, start_over
from backfill.upstream.postgres.session.retries import RetryPolicy
from integration.database import Database
from integration.servers import LocalServer
from integration.spark_stream import SparkStream, make_table, wait_for, write
from integration.standby import become_primary, become_standby
from integration.versions import require_yen
from integration.writers import COMPOSITE, TABLE, Writers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Apply = Callable[[DataFrame, int], None]

WIDE = """
    CREATE TYPE colour AS ENUM ('red', 'green');
    CREATE TABLE t (
        region varchar(8), id int, ref uuid, doc jsonb, tags text[], refs uuid[], amounts numeric(9,2)[], ids bigint[],
        price numeric(12,2), exact numeric, at timestamptz, local timestamp, day date, clock time, raw bytea,
        code char(5), kind colour, address inet, small smallint, real real, double double precision, flag boolean,
        span interval, "Größe" int, deleted boolean, _deleted boolean, c0 int,
        total numeric GENERATED ALWAYS AS (price * 2) STORED, PRIMARY KEY (id, region));
    INSERT INTO t SELECT 'r' || i % 3, i, gen_random_uuid(), jsonb_build_object('i', i, 'q', '"'),
        ARRAY['a', NULL, 'c,"' || i], ARRAY[gen_random_uuid()], ARRAY[i / 3.0, NULL], ARRAY[i, NULL, -i],
        i / 7.0, i / 7.0, now(), now(), current_date, '12:34:56.789', decode(md5(i::text), 'hex'),
        'c' || i % 10, 'red', '10.0.0.1/8', i, i / 3.0, i / 3.0, i % 2 = 0, make_interval(hours => i), i,
        i % 2 = 0, i % 3 = 0, i
    FROM generate_series(1, 60) i;
    INSERT INTO t (region, id) SELECT 'none', i FROM generate_series(1, 40) i;
    ANALYZE t;
    CREATE TABLE copy (LIKE t INCLUDING ALL)
"""


def sink(stream: SparkStream, *key: str, query: str = "t") -> PostgresSink:
    made = apply_to(url=stream.database.url(stream.folder), table="copy", key=key or ("id",), query=query)
    assert isinstance(made, PostgresSink)
    return made


def follow(stream: SparkStream, apply: Apply, **options: str) -> None:
    """Runs until what has happened up to now has come."""
    writer = stream.load(**options).writeStream.foreachBatch(apply)
    writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start().awaitTermination()


def require_equal(database: Database, table: str = "t") -> None:
    query = f"(TABLE {table} EXCEPT ALL TABLE copy) UNION ALL (TABLE copy EXCEPT ALL TABLE {table})"
    assert database.execute(query) == []


def versions(database: Database) -> list[tuple[object, ...]]:
    """The rows of the copy and of the record with what says that nobody has written them since."""
    rows = database.execute("SELECT xmin::text, ctid::text, copy::text FROM copy ORDER BY 2")
    return rows + database.execute("SELECT xmin::text, ctid::text, batch_id FROM backfill_batches")


@pytest.fixture
def stream(spark: SparkSession, database: Database, tmp_path: Path) -> SparkStream:
    """A stream of `t`, some three batches long, and an empty table `copy`."""
    make_table(database, 300)
    database.execute("CREATE TABLE copy (LIKE t INCLUDING ALL)")
    return SparkStream(spark, database, tmp_path, {"maxRowsPerTrigger": "120"})


def test_a_batch_that_is_applied_again_changes_nothing(stream: SparkStream) -> None:
    """Spark runs a batch again that was applied, and whose commit it has not written."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - reads the environment

    apply = sink(stream)
    ids: list[int] = []

    def twice(batch: DataFrame, batch_id: int) -> None:
        apply(batch, batch_id)
        before = versions(stream.database)
        apply(batch, batch_id)
        assert versions(stream.database) == before
        write(stream.database, 20 + batch_id)
        ids.append(batch_id)

    def dies(batch: DataFrame, batch_id: int) -> None:
        twice(batch, batch_id)
        if batch_id == 1:
            raise RuntimeError("after the batch was applied")

    with pytest.raises(StreamingQueryException, match="after the batch was applied"):
        follow(stream, dies)
    before = versions(stream.database)
    seen: list[bool] = []

    def first_again(batch: DataFrame, batch_id: int) -> None:
        apply(batch, batch_id)
        seen.append(versions(stream.database) == before)
        ids.append(batch_id)

    follow(stream, first_again)
    assert ids[:3] == [0, 1, 1]
    assert seen[0]
    assert not all(seen[1:])
    require_equal(stream.database)


# Of the zone below: an hour that comes twice and one that does not come at all, local mean time, and the day's end.
MOMENTS = ("2025-11-02 01:30:00", "2025-03-09 02:30:00", "1884-01-01 12:34:56.789012", "2026-06-30 23:59:59.999999")


@pytest.mark.parametrize("changelog", ["logged", "full"])
def test_the_zone_of_the_session_changes_no_instant_and_no_local_time(
    spark: SparkSession, database: Database, tmp_path: Path, changelog: str
) -> None:
    database.execute(
        "CREATE TABLE t (at timestamptz, local timestamp, day date, v text, PRIMARY KEY (at, local, day));"
        "CREATE TABLE copy (LIKE t INCLUDING ALL)"
    )
    rows = [(f"{at}+00", local, local[:10]) for at in MOMENTS for local in MOMENTS]
    values = ", ".join(["(%s, %s, %s, 'old')"] * len(rows))
    database.execute(f"INSERT INTO t VALUES {values}", [cell for row in rows for cell in row])
    elsewhere = spark.newSession()
    elsewhere.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    stream = SparkStream(elsewhere, database, tmp_path, {"changelog": changelog, "maxRowsPerTrigger": "5"})
    apply = sink(stream, "at", "local", "day")
    follow(stream, apply)
    require_equal(database)
    database.execute("UPDATE t SET v = 'new' WHERE local < '2025-06-01'")
    database.execute("UPDATE t SET at = at + interval '1 h', local = local + interval '1 h' WHERE day > '2026-01-01'")
    database.execute("DELETE FROM t WHERE day < '1900-01-01' AND at > '2025-04-01'")
    follow(stream, apply)
    require_equal(database)


def test_the_copy_follows_while_clients_write(
    spark: SparkSession, database: Database, tmp_path: Path, rng: Random
) -> None:
    """Key changes, deletes, savepoints and rollbacks, with a composite key of text."""
    COMPOSITE.create(database, 400, identity="DEFAULT")
    database.execute(f"CREATE TABLE copy (LIKE {TABLE} INCLUDING ALL)")
    stream = SparkStream(spark, database, tmp_path, {"maxRowsPerTrigger": "60", "dbtable": TABLE})
    apply = sink(stream, "b", "a")
    ((balance,),) = database.execute(f"SELECT sum(balance) FROM {TABLE}")
    writer = stream.load().writeStream.foreachBatch(apply).option("checkpointLocation", str(stream.checkpoint))
    query = writer.start()
    try:
        with Writers(database, COMPOSITE, 400, rng, clients=2):
            wait_for(lambda: (query.lastProgress or {"batchId": 0})["batchId"] >= 8, query)
        query.processAllAvailable()
    finally:
        query.stop()
    require_equal(database, TABLE)
    assert database.execute("SELECT sum(balance) FROM copy") == [(balance,)]


def test_values_of_every_type_arrive_and_a_truncate_empties_the_copy(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    database.execute(WIDE)
    if database.server.version < 180_000:  # which logs no generated column
        database.execute("ALTER TABLE t DROP total; ALTER TABLE copy DROP total")
    stream = SparkStream(spark, database, tmp_path, {"onTruncate": "emit"})
    apply = sink(stream, "region", "id")
    follow(stream, apply)
    require_equal(database)
    database.execute(
        "UPDATE t SET tags = '{}', amounts = '{1.5}', raw = NULL, code = 'x ' WHERE id % 3 = 0;"
        "UPDATE t SET id = id + 1000, region = 'far' WHERE id % 5 = 0 AND region <> 'none'; DELETE FROM t WHERE id < 9"
    )
    follow(stream, apply)
    require_equal(database)
    database.execute("INSERT INTO t (region, id) VALUES ('late', 1); TRUNCATE t")
    database.execute("INSERT INTO t (region, id, price) VALUES ('new', 1, 2), ('far', 1010, 3)")
    follow(stream, apply)
    require_equal(database)
    assert database.execute("SELECT count(*) FROM copy") == [(2,)]


def test_large_values_that_the_log_leaves_out_stay(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    large = "(SELECT string_agg(md5((s * 1000 + i)::text), '') FROM generate_series(1, 200) i)"
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, title text, body text NOT NULL, extra text, _kept_0 text, kept0 text);"
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER extra SET STORAGE EXTERNAL;"
        f"INSERT INTO t SELECT s, 'title', {large}, {large} FROM generate_series(1, 12) s; ANALYZE t;"
        "CREATE TABLE copy (LIKE t INCLUDING ALL)"
    )
    stream = SparkStream(spark, database, tmp_path, {"onUnchangedToast": "mark"})
    apply = sink(stream)
    follow(stream, apply)
    database.execute(
        "UPDATE t SET title = 'a' WHERE id % 2 = 0; UPDATE t SET body = 'small' WHERE id % 3 = 0;"
        "UPDATE t SET extra = NULL WHERE id = 4; UPDATE t SET title = 'b' WHERE id > 6; DELETE FROM t WHERE id = 5;"
        f"INSERT INTO t SELECT s, 'new', {large}, {large} FROM generate_series(100, 101) s;"
        "UPDATE t SET title = 'c' WHERE id >= 100"
    )
    follow(stream, apply)
    require_equal(database)


@dataclass(frozen=True)
class Rows:
    """What the sink asks of a DataFrame."""

    table: pa.Table

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self.table


NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
ROW = {"id": 1, "v": "secret words", "_change_type": "insert", "_commit_version": 1, "_sequence": 1}


@pytest.mark.parametrize(
    ("table", "row", "error", "message"),
    [
        ("none", ROW, TableError, "there is no table 'none'"),
        ("keyless", ROW, TableError, r'no unique index on exactly \("id"\).*ALTER TABLE keyless ADD PRIMARY KEY'),
        ("shown", ROW, TableError, "shown is not a table"),
        ("later", ROW, TableError, r'no unique index on exactly \("id"\), or it is DEFERRABLE'),
        (
            "counted",
            ROW,
            TableError,
            r'"v" .* GENERATED ALWAYS .* ALTER TABLE "public"."counted" ALTER "v" SET GENERATED BY DEFAULT',
        ),
        ("copy", ROW | {"more": 1}, OptionsError, 'table "public"."copy" has no column more'),
        ("copy", ROW | {"v": {"a": 1}}, UnsupportedTypeError, r"column 'v' is a struct.*with to_json"),
        ("copy", ROW, TableError, "value too long for type character varying.*a column of the sink's table"),
        ("copy", ROW | {"v": "a", "id": 2**31}, TableError, "integer out of range.*a column of the sink's table"),
        ("picky", ROW, TableError, "violates check constraint.*a constraint of the sink's table"),
        ("owned", ROW, TableError, r'column "owner" .* SET DEFAULT … for a column that the batch does not have'),
        ("copy", ROW | {"v": "a\0b"}, ValueOutOfRangeError, r"a text of the batch has the character U\+0000"),
        ("copy", ROW | {"v": "a", "kind": "secret red"}, TableError, r"lacks a label .* ALTER TYPE … ADD VALUE there"),
        (
            "copy",
            ROW | {"v": "a", "price": Decimal("1.005")},
            TableError,
            r'"price" .* is numeric\(9,2\), which would round .* TABLE "public"."copy" ALTER "price" TYPE numeric$',
        ),
        ("copy", ROW | {"v": "a", "price": "1.005"}, TableError, r"numeric\(9,2\), which would round"),
        (
            "copy",
            ROW | {"v": "a", "prices": [None, Decimal("0.05")]},
            TableError,
            r"is numeric\(9,1\)\[\], which would",
        ),
        (
            "copy",
            ROW | {"v": "a", "at": NEW_YEAR + timedelta(milliseconds=5)},
            TableError,
            r"is timestamp\(2\) without time zone, which .* TYPE timestamp without time zone$",
        ),
        ("copy", ROW | {"v": "a", "bits": "10101"}, TableError, r"not match type bit\(3\).*a column of the sink's"),
        ("copy", ROW | {"v": "a", "clock": "12:34:56.789"}, TableError, r"is time\(2\) without time zone, which would"),
        (
            "copy",
            ROW | {"v": "a", "_unchanged_columns": ["v"], "_change_type": "update_postimage"},
            UnchangedToastError,
            "has no row",
        ),
    ],
)
def test_what_cannot_be_applied_is_refused_and_not_noted(
    database: Database, tmp_path: Path, table: str, row: dict[str, object], error: type[Exception], message: str
) -> None:
    database.execute(
        "CREATE TYPE colour AS ENUM ('red');"
        "CREATE TABLE keyless (id int, v text); CREATE TABLE copy (id int PRIMARY KEY, v varchar(4), "
        "price numeric(9,2), prices numeric(9,1)[], at timestamp(2), clock time(2), kind colour, bits bit(3));"
        "CREATE TABLE later (id int PRIMARY KEY DEFERRABLE, v text); CREATE VIEW shown AS TABLE copy;"
        "CREATE TABLE picky (id int PRIMARY KEY, v text CHECK (v = ''));"
        "CREATE TABLE owned (id int PRIMARY KEY, v text, owner text NOT NULL);"
        "CREATE TABLE counted (id int PRIMARY KEY, v int GENERATED ALWAYS AS IDENTITY)"
    )
    apply = apply_to(url=database.url(tmp_path), table=table, key=["id"], query="t")
    with pytest.raises(error, match=message) as caught:
        apply(Rows(pa.Table.from_pylist([row])), 0)
    assert "secret" not in str(caught.value)
    assert database.execute("TABLE copy") == []
    if database.execute("SELECT to_regclass('backfill_batches')") != [(None,)]:
        assert database.execute("TABLE backfill_batches") == []


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("numeric(9,2)", [Decimal("1.500"), None]),
        ("numeric(9,2)", ["1.5", "NaN"]),
        ("numeric(9,2)", [Decimal("1.5"), Decimal(2)]),
        ("timestamp(2)", [NEW_YEAR + timedelta(milliseconds=50), None]),
        ("timestamptz(0)", [NEW_YEAR.replace(tzinfo=UTC)]),
        ("time(2)[]", [["12:34:56.78", None], []]),
        ("interval(0)", ["1 day 00:00:01", None]),
    ],
)
def test_what_a_narrower_column_holds_as_it_is_arrives(
    database: Database, tmp_path: Path, kind: str, values: list[object]
) -> None:
    database.execute(f"CREATE TABLE copy (id int PRIMARY KEY, v {kind})")
    rows = [ROW | {"id": at, "v": value, "_sequence": at} for at, value in enumerate(values)]
    apply_to(url=database.url(tmp_path), table="copy", key=["id"], query="t")(Rows(pa.Table.from_pylist(rows)), 0)
    assert database.execute("SELECT count(*), count(v) FROM copy") == [
        (len(values), sum(value is not None for value in values))
    ]


def test_a_batch_of_as_many_columns_as_a_table_may_have_is_refused_at_once(database: Database, tmp_path: Path) -> None:
    """The driver's word for it looks like a lost connection, which is tried again for two minutes."""
    names = [f"c{at}" for at in range(1, 1600)]
    database.execute(f"CREATE TABLE copy (id int PRIMARY KEY, {', '.join(f'{name} bool' for name in names)})")
    apply = apply_to(url=database.url(tmp_path), table="copy", key=["id"], query="t")
    row = {"id": 1, "_change_type": "insert", "_commit_version": 1, "_sequence": 1}
    with pytest.raises(TableError, match=r"a temporary table of 1601 columns.* Leave 1 out of the batch"):
        apply(Rows(pa.Table.from_pylist([row | dict.fromkeys(names, True)])), 0)
    apply(Rows(pa.Table.from_pylist([row | dict.fromkeys(names[1:], True)])), 0)
    assert database.execute("SELECT c1, c2, c1599 FROM copy") == [(None, True, True)]


def test_a_row_that_is_too_wide_for_the_way_it_goes_is_said_to_be(database: Database, tmp_path: Path) -> None:
    """The copy has room for it, since a uuid takes 16 bytes there."""
    names = [f"c{at}" for at in range(460)]
    database.execute(f"CREATE TABLE copy (id int PRIMARY KEY, {', '.join(f'{name} uuid' for name in names)})")
    database.execute(f"INSERT INTO copy SELECT 0, {', '.join(['gen_random_uuid()'] * 460)}")
    apply = apply_to(url=database.url(tmp_path), table="copy", key=["id"], query="t")
    row = {"id": 1, "_change_type": "insert", "_commit_version": 1, "_sequence": 1}
    rows = pa.Table.from_pylist([row | dict.fromkeys(names, "0b1c8a4e-3f2d-4c5b-9a6e-7d8c9b0a1f2e")])
    with pytest.raises(TableError, match=r"row is too big: .* Leave columns out of the batch"):
        apply(Rows(rows), 0)
    apply(Rows(rows.drop_columns(names[400:])), 0)
    assert database.execute("SELECT count(*), count(c399), count(c400) FROM copy") == [(2, 2, 1)]


def test_the_rows_of_a_table_that_inherits_from_the_copy_stay(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE copy (id int PRIMARY KEY); CREATE UNLOGGED TABLE heir () INHERITS (copy); "
        "INSERT INTO heir VALUES (1), (2)"
    )
    url = database.url(tmp_path)
    apply = apply_to(url=url, table="copy", key=["id"], query="t")
    changes = {"insert": 0, "delete": 1, "truncate": 2}
    rows = pa.table({"id": [1], "_commit_version": [1], "_sequence": [1]})
    for kind, number in changes.items():
        apply(Rows(rows.append_column("_change_type", pa.array([kind]))), number)
        assert database.execute("SELECT * FROM ONLY copy") == ([(1,)] if kind == "insert" else [])
    start_over(url=url, table="copy", query="t")
    assert database.execute("TABLE heir ORDER BY id") == [(1,), (2,)]


def test_each_query_has_batches_of_its_own_and_none_goes_back(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    rows = pa.Table.from_pylist([{name: ROW[name] for name in ROW if name != "v"}])
    apply, other = (apply_to(url=database.url(tmp_path), table="copy", key=["id"], query=query) for query in ("a", "b"))
    apply(Rows(rows), 0)
    apply(Rows(rows.slice(1)), 1)
    with pytest.raises(StateError, match="has applied batch 1, and batch 0"):
        apply(Rows(rows), 0)
    other(Rows(rows), 0)
    recorded = "SELECT query, target, batch_id FROM backfill_batches ORDER BY query"
    copy = '"public"."copy"'
    assert database.execute(recorded) == [("a", copy, 1), ("b", copy, 0)]


@pytest.mark.parametrize("lock", ["LOCK TABLE copy", "UPDATE copy SET id = id"], ids=["table", "row"])
def test_a_lock_of_somebody_else_is_waited_for_and_said(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setattr("backfill.sinks.postgres.LOCK_TIMEOUT", "100ms")
    database.execute("CREATE TABLE copy (id int PRIMARY KEY); INSERT INTO copy VALUES (1)")
    apply = apply_to(url=database.url(tmp_path), table="copy", key=["id"], query="t")
    assert isinstance(apply, PostgresSink)
    rows = Rows(pa.table({"id": [1], "_change_type": ["delete"], "_commit_version": [1], "_sequence": [1]}))
    with database.connect() as somebody:
        somebody.execute(lock.encode())
        with pytest.raises(TableLockedError, match="keeps the sink's table, or a row of it, from being written"):
            replace(apply, retries=RetryPolicy(give_up_after=0.5))(rows, 0)
        threading.Timer(0.5, somebody.rollback).start()
        apply(rows, 0)
    assert database.execute("TABLE copy") == []


def test_a_session_that_was_cut_between_two_batches_is_made_anew(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    apply = apply_to(url=database.url(tmp_path), table="copy", key=["id"], query="t")
    for number in range(3):
        apply(Rows(pa.Table.from_pylist([{name: ROW[name] for name in ROW if name != "v"} | {"id": number}])), number)
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'backfill' AND datname = current_database()"
        )
    assert database.execute("TABLE copy") == [(0,), (1,), (2,)]


def test_a_new_checkpoint_under_the_same_name_wants_an_empty_table(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    url = database.url(tmp_path)
    apply = apply_to(url=url, table="copy", key=["id"], query="t")
    rows = pa.table({"id": [1, 2], "_change_type": ["insert"] * 2, "_commit_version": [7, 7], "_sequence": [9, 9]})
    apply(Rows(rows), 0)
    rows = rows.set_column(2, "_commit_version", pa.array([8, 8])).set_column(0, "id", pa.array([2, 3]))
    with pytest.raises(StateError, match="has applied batch 0, and batch 0 with other rows was to be applied now"):
        apply(Rows(rows), 0)
    assert database.execute("TABLE copy") == [(1,), (2,)]
    start_over(url=url, table="copy", query="t")
    assert database.execute("TABLE copy") == database.execute("TABLE backfill_batches") == []
    apply(Rows(rows), 0)
    assert database.execute("TABLE copy") == [(2,), (3,)]


def test_a_sink_waits_for_a_primary_that_is_a_standby_for_a_while(
    start_postgres: Callable[..., LocalServer], tmp_path: Path
) -> None:
    server = start_postgres()
    database = Database(server, "postgres")
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    apply = apply_to(url=database.url(tmp_path), table="copy", key=["id"], query="t")
    assert isinstance(apply, PostgresSink)
    become_standby(server)
    rows = pa.table({"id": [1], "_change_type": ["insert"], "_commit_version": [1], "_sequence": [1]})
    with pytest.raises(ConnectionLostError, match="the server of the sink's table is a standby; point url at the"):
        replace(apply, retries=RetryPolicy(give_up_after=0.5))(Rows(rows), 0)
    become_primary(server)
    apply(Rows(rows), 0)
    assert database.execute("TABLE copy") == [(1,)]


def test_money_of_a_currency_without_decimals_is_refused(database: Database, tmp_path: Path) -> None:
    """Written as the sink's sessions see it, 500 would be 50,000 yen to everybody else."""
    require_yen(database)
    database.execute(
        "CREATE DOMAIN amount AS money; CREATE TABLE copy (id int PRIMARY KEY, a money, b money[], c amount)"
    )
    apply = apply_to(url=database.url(tmp_path), table="copy", key=["id"], query="t")
    head = {"id": pa.array([1]), "_change_type": ["insert"], "_commit_version": [1], "_sequence": [1]}
    amounts = {"a": ["$500.00"], "b": ["{$1.50}"], "c": ["-$7.25"]}
    for name, value in amounts.items():
        with pytest.raises(UnsupportedTypeError, match=rf'column "{name}" of .* is money.* ja_JP\.utf8 has 0'):
            apply(Rows(pa.table(head | {name: value})), 0)
    database.execute(f"ALTER DATABASE {database.name} SET lc_monetary = 'en_US.utf8'")
    apply(Rows(pa.table(head | amounts)), 0)
    assert database.execute("SELECT a::text, b::text, c::text FROM copy") == [("$500.00", "{$1.50}", "-$7.25")]
