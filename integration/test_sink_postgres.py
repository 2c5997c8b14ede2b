"""A second table of PostgreSQL follows the first one through `foreachBatch`; the server compares the two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from integration.copies import sink
from integration.database import Database
from integration.spark_stream import SparkStream, make_table, wait_for, write
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


def follow(stream: SparkStream, apply: Apply, **options: str) -> None:
    """Runs a query until all that has happened up to now has come."""
    writer = stream.load(**options).writeStream.foreachBatch(apply)
    writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start().awaitTermination()


def require_equal(database: Database, table: str = "t") -> None:
    query = f"(TABLE {table} EXCEPT ALL TABLE copy) UNION ALL (TABLE copy EXCEPT ALL TABLE {table})"
    assert database.execute(query) == []


def versions(database: Database) -> list[tuple[object, ...]]:
    """The rows of the copy and of the record, each with the version that shows whether it was written again."""
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

    apply = sink(stream.database, stream.folder)
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


# In the zone below: an hour that comes twice, one that does not come at all, local mean time, and the day's end.
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
    apply = sink(stream.database, stream.folder, "at", "local", "day")
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
    apply = sink(stream.database, stream.folder, "b", "a")
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
    apply = sink(stream.database, stream.folder, "region", "id")
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
    apply = sink(stream.database, stream.folder)
    follow(stream, apply)
    database.execute(
        "UPDATE t SET title = 'a' WHERE id % 2 = 0; UPDATE t SET body = 'small' WHERE id % 3 = 0;"
        "UPDATE t SET extra = NULL WHERE id = 4; UPDATE t SET title = 'b' WHERE id > 6; DELETE FROM t WHERE id = 5;"
        f"INSERT INTO t SELECT s, 'new', {large}, {large} FROM generate_series(100, 101) s;"
        "UPDATE t SET title = 'c' WHERE id >= 100"
    )
    follow(stream, apply)
    require_equal(database)
