"""SQL: tables and views over the source, read as batches and as streams; secrets in none of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from integration.database import Database
from integration.spark_stream import SparkStream, make_table, slots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 30
STREAMED = ["_change_type", "_is_snapshot", "_commit_version", "_commit_timestamp", "_sequence"]


class Catalog:
    """The Spark session's own catalog, with the table `t` of a database in reach."""

    def __init__(self, spark: SparkSession, database: Database, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.options = {"url": database.url(folder), "dbtable": "t", "vnodeCount": "16"}

    def create(self, name: str, columns: str = "", rest: str = "", **options: str) -> None:
        self.spark.sql(f"CREATE TABLE {name} {columns} USING backfill {self.clause(**options)} {rest}")

    def clause(self, **options: str) -> str:
        return "OPTIONS (" + ", ".join(f"{key} '{value}'" for key, value in {**self.options, **options}.items()) + ")"

    def state(self, name: str) -> str:
        return str(self.folder / name / "state")


@pytest.fixture
def catalog(spark: SparkSession, database: Database, tmp_path: Path) -> Iterator[Catalog]:
    make_table(database, ROWS)
    spark.sql("CREATE DATABASE surfaces")
    spark.sql("USE surfaces")
    yield Catalog(spark, database, tmp_path)
    spark.sql("USE default")
    spark.sql("DROP DATABASE surfaces CASCADE")


def streamed(frame: DataFrame, catalog: Catalog, database: Database, name: str) -> SparkStream:
    """All that the frame brings until it has caught up."""
    stream = SparkStream(catalog.spark, database, catalog.folder / name)
    stream.catch_up(frame)
    return stream


def test_a_table_without_a_state_directory_is_the_table_and_no_stream(catalog: Catalog) -> None:
    spark = catalog.spark
    catalog.create("orders", rest="COMMENT 'orders' TBLPROPERTIES ('purpose' = 'test')")
    assert spark.table("orders").columns == ["id", "v", "n", "at"]
    assert spark.sql("SELECT count(*), min(v) FROM orders WHERE id > 10").collect() == [(20, "v11")]
    assert spark.sql("SELECT id FROM orders WITH (filter = 'id < 3', numPartitions = '1')").count() == 2
    with pytest.raises(AnalysisException, match="keeps the columns that it was made with, so columns, customSchema"):
        spark.sql("SELECT * FROM orders WITH (columns = 'id', customSchema = 'id DECIMAL(10,0)')").count()
    with pytest.raises(AnalysisException, match="so metadataColumns cannot be given with a read"):
        spark.sql("SELECT * FROM orders WITH (metadataColumns = 'all')").count()
    with pytest.raises(AnalysisException, match="snapshotFilter is for a stream, which needs stateDir as well"):
        spark.sql("SELECT * FROM orders WITH (snapshotFilter = 'id < 3')").count()
    same = "WITH (columns = 'id,v, n,at', onUnchangedToast = 'fail', metadataColumns = 'none')"
    assert spark.sql(f"SELECT * FROM orders {same}").count() == ROWS
    once = f"WITH (stateDir = '{catalog.state('once')}', startupMode = 'snapshot', metadataColumns = 'none')"
    frame = spark.sql(f"SELECT * FROM STREAM orders {once}")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(catalog.folder / "checkpoint"))
    started = query.trigger(availableNow=True).start()
    started.awaitTermination()
    assert sum(progress.numInputRows for progress in started.recentProgress) == ROWS
    with pytest.raises(StreamingQueryException, match="stateDir is required for a stream"):
        spark.readStream.table("orders").writeStream.format("noop").start().awaitTermination()


def test_a_table_with_a_state_directory_is_read_as_a_stream_and_as_a_batch(
    catalog: Catalog, database: Database
) -> None:
    spark = catalog.spark
    catalog.create("feed", stateDir=catalog.state("feed"))
    assert spark.table("feed").columns == ["id", "v", "n", "at", *STREAMED]
    assert spark.sql("SELECT * FROM feed WITH (metadataColumns = 'all', columns = '')").count() == ROWS
    with pytest.raises(AnalysisException, match="startupMode, snapshotFilter is for a stream, which needs readStream"):
        spark.sql("SELECT * FROM feed WITH (startupMode = 'snapshot', snapshotFilter = 'id < 3')").count()
    streamed(spark.readStream.table("feed"), catalog, database, "feed").require_equal()
    database.execute("ALTER TABLE t ADD COLUMN more text; UPDATE t SET v = 'new', more = 'x' WHERE id = 3")
    of_sql = spark.sql(f"SELECT * FROM STREAM feed WITH (stateDir = '{catalog.state('other')}')")
    streamed(of_sql, catalog, database, "other").require_equal("id, v, n, at")
    streamed(spark.readStream.table("feed"), catalog, database, "feed").require_equal("id, v, n, at")
    assert spark.sql("SELECT v, _change_type, _sequence FROM feed WHERE id = 3").collect() == [("new", "insert", 0)]


def test_spark_neither_shows_how_a_table_was_made_nor_ends_its_stream_with_it(
    catalog: Catalog, database: Database
) -> None:
    catalog.create("feed", stateDir=catalog.state("feed"))
    streamed(catalog.spark.readStream.table("feed"), catalog, database, "feed").require_equal()
    ((shown,),) = catalog.spark.sql("SHOW CREATE TABLE feed").collect()
    assert "USING" not in shown
    assert catalog.state("feed") not in shown
    catalog.spark.sql("DROP TABLE feed")
    assert len(slots(database)) == 1


def test_a_table_that_was_altered_on_either_side_is_to_be_made_again(catalog: Catalog, database: Database) -> None:
    again = r"SchemaChangedError: .* has no column '{}'.*create its Spark table again"
    spark = catalog.spark
    catalog.create("orders")
    spark.sql("ALTER TABLE orders ADD COLUMN extra INT")
    with pytest.raises(AnalysisException, match=again.format("extra")):
        spark.table("orders").count()
    catalog.create("feed", stateDir=catalog.state("feed"))
    database.execute("ALTER TABLE t DROP COLUMN n")
    with pytest.raises(AnalysisException, match=again.format("n")):
        spark.table("feed").count()
    with pytest.raises(StreamingQueryException, match=again.format("n")):
        streamed(spark.readStream.table("feed"), catalog, database, "feed")
    spark.sql("DROP TABLE orders")
    catalog.create("orders")
    assert spark.table("orders").count() == ROWS


def test_a_table_of_which_spark_has_dropped_a_column_is_read_without_it(catalog: Catalog, database: Database) -> None:
    spark = catalog.spark
    catalog.create("feed", stateDir=catalog.state("feed"), customSchema="n STRING, v STRING")
    spark.sql("ALTER TABLE feed DROP COLUMN n")
    assert spark.sql("SELECT id, v FROM feed WHERE id = 3").collect() == [(3, "v3")]
    streamed(spark.readStream.table("feed"), catalog, database, "feed").require_equal("id, v, at")


def test_nothing_is_written_through_the_source(catalog: Catalog) -> None:
    spark = catalog.spark
    catalog.create("orders")
    frame = spark.table("orders")
    for write in (
        lambda: spark.sql("INSERT INTO orders SELECT * FROM orders"),
        lambda: spark.sql("CREATE TABLE copied USING backfill AS SELECT * FROM orders"),
        lambda: frame.write.format("backfill").mode("append").save(),
    ):
        with pytest.raises(AnalysisException, match=r"OptionsError: backfill is a source.*backfill\.sinks") as refused:
            write()
        assert "raise OptionsError" not in str(refused.value)
    feed = spark.readStream.format("rate").load()
    query = feed.writeStream.format("backfill").option("checkpointLocation", catalog.state("rate")).start()
    with pytest.raises(StreamingQueryException, match=r"OptionsError: backfill is a source.*backfill\.sinks"):
        query.awaitTermination()
    assert not spark.catalog.tableExists("copied")


def test_what_a_table_keeps_of_its_options_reaches_no_file(catalog: Catalog, database: Database) -> None:
    catalog.create("feed", stateDir=catalog.state("feed"))
    stream = streamed(catalog.spark.readStream.table("feed"), catalog, database, "feed")
    catalog.spark.table("feed").write.parquet(str(catalog.folder / "batch"))
    catalog.spark.sql("CREATE TABLE copied USING parquet AS SELECT * FROM feed")
    warehouse = Path(str(catalog.spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"))
    for folder in (stream.folder / "out", catalog.folder / "batch", warehouse / "surfaces.db" / "copied"):
        written = list(folder.glob("*.parquet"))
        assert written
        for file in written:
            assert b"stateDir".lower() not in str(pq.read_metadata(file).metadata).lower().encode()
    assert catalog.spark.table("copied").dtypes == catalog.spark.table("feed").dtypes


def test_a_declared_list_of_columns_needs_options_with_each_read(catalog: Catalog) -> None:
    spark = catalog.spark
    catalog.create("declared", "(v STRING, id BIGINT)")
    with pytest.raises(AnalysisException, match="it was made with a list of columns"):
        spark.sql("SELECT * FROM declared").collect()
    given = f"url = '{catalog.options['url']}', dbtable = 't'"
    assert spark.sql(f"SELECT * FROM declared WITH ({given}) WHERE id = 4").collect() == [("v4", 4)]
    with pytest.raises(StreamingQueryException, match="it was made with a list of columns"):
        spark.readStream.table("declared").writeStream.format("noop").start().awaitTermination()


def test_a_temporary_view_is_the_table(catalog: Catalog) -> None:
    catalog.spark.sql(f"CREATE TEMPORARY VIEW v USING backfill {catalog.clause(columns='id')}")
    try:
        assert catalog.spark.sql("SELECT * FROM v ORDER BY id DESC LIMIT 1").collect() == [(ROWS,)]
    finally:
        catalog.spark.sql("DROP VIEW v")


def test_one_table_as_a_stream_and_as_a_batch_in_one_statement_is_refused(catalog: Catalog, database: Database) -> None:
    spark = catalog.spark
    catalog.create("feed", stateDir=catalog.state("feed"))
    stream_of_it = f"STREAM feed WITH (stateDir = '{catalog.state('statement')}')"
    statement = spark.sql(f"SELECT id, (SELECT count(*) FROM feed) AS total FROM {stream_of_it}")
    with pytest.raises(StreamingQueryException, match=r"OptionsError: Spark gave a read .*readStream\.table\(\) and "):
        streamed(statement, catalog, database, "statement")
    stream, batch = (
        spark.readStream.table("feed").select("id"),
        spark.read.table("feed").selectExpr("count(*) AS total"),
    )
    rows = streamed(stream.crossJoin(batch), catalog, database, "frames").rows()
    assert sorted((row["id"], row["total"]) for row in rows) == [(key, ROWS) for key in range(1, ROWS + 1)]


def test_views_with_options_of_their_own_are_not_mistaken_for_each_other(catalog: Catalog) -> None:
    """Two reads `WITH` options in one statement are mistaken, and so is a read for a cached one with other options.

    Spark does this with every Python source. Once it does not, docs/reading.md has a warning too many.
    """
    spark = catalog.spark
    first, second = ("filter = 'id < 3'", "filter = 'id > 2'")
    catalog.create("orders")
    twice = f"SELECT id FROM orders WITH ({first}) UNION ALL SELECT id FROM orders WITH ({second})"
    assert sorted(key for (key,) in spark.sql(twice).collect()) == [1, 1, 2, 2]
    some = spark.read.option("filter", "id < 3").table("orders").cache()
    assert some.count() == spark.table("orders").count() == 2
    some.unpersist()
    spark.sql(f"CREATE TEMPORARY VIEW low USING backfill {catalog.clause(filter='id < 3')}")
    spark.sql(f"CREATE TEMPORARY VIEW high USING backfill {catalog.clause(filter='id > 2')}")
    try:
        spark.sql("CACHE TABLE low")
        keys = spark.sql("SELECT id FROM low UNION ALL SELECT id FROM high").collect()
        assert sorted(key for (key,) in keys) == list(range(1, ROWS + 1))
        assert spark.table("orders").count() == ROWS
    finally:
        spark.sql("DROP VIEW low")
        spark.sql("DROP VIEW high")


def test_passwords_are_nowhere_to_be_seen(
    catalog: Catalog, database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither in descriptions, plans and logs, nor in our own errors. For events see `test_spark_pipelines`."""
    spark, login = catalog.spark, database.login()
    given = f"user = '{login['user']}', password = '{login['password']}'"
    with pytest.raises(AnalysisException, match="a table may not have the options password, because") as refused:
        catalog.create("secret", **login)
    shown = [str(refused.value)]
    catalog.create("orders")
    spark.sql(f"CREATE TEMPORARY VIEW v USING backfill {catalog.clause(**login)}")
    frames = [
        spark.table("v"),
        spark.sql(f"SELECT * FROM orders WITH ({given})"),
        spark.read.format("backfill").options(**catalog.options, **login).load(),
    ]
    for frame in frames:
        frame.explain("extended")
        frame.collect()
        shown.append(frame._jdf.queryExecution().toString())
    for statement in (
        "DESCRIBE TABLE EXTENDED orders",
        "SHOW CREATE TABLE orders",
        "SHOW TBLPROPERTIES orders",
        f"EXPLAIN EXTENDED SELECT * FROM orders WITH ({given})",
    ):
        shown += [str(row) for row in spark.sql(statement).collect()]
    with pytest.raises(AnalysisException) as wrong:
        spark.read.format("backfill").options(**catalog.options, **login, filter="nope").load()
    shown.append(str(wrong.value))
    spark.sql("DROP VIEW v")
    assert login["password"] not in "\n".join(shown)
    assert login["password"] not in "".join(capfd.readouterr())
