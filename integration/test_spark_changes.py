"""`spark.read` with `startingPosition`: the changes between two positions, from a slot that was made for it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

from backfill.errors import DatabaseSetupError, SlotBusyError, TableError
from backfill.options import parse
from backfill.rows import METADATA
from backfill.upstream.postgres import PostgresUpstream
from backfill.upstream.postgres.session.retries import RetryPolicy
from integration.database import Database
from integration.fold import Fold, Row
from integration.spark_stream import SparkStream, make_table
from integration.versions import require_version
from integration.waiting import eventually
from integration.writers import BIGINT, TABLE, Writers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLOT = "kept"
CHANGE = ["_change_type", "id", "v"]


def keep(database: Database, table: str = "t") -> None:
    """Makes a publication of the table, and a slot that keeps the log from now on."""
    database.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE {table} WITH (publish_via_partition_root = true)")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])


def now(database: Database) -> str:
    ((lsn,),) = database.execute("SELECT pg_current_wal_insert_lsn()::text")
    return str(lsn)


def advance(database: Database, to: str) -> None:
    database.execute("SELECT pg_replication_slot_advance(%s, %s)", [SLOT, to])


def load(spark: SparkSession, database: Database, starting: str, ending: str = "", **options: str) -> DataFrame:
    own = {"dbtable": "t", "slotName": SLOT, "startingPosition": starting, "endingPosition": ending}
    return spark.read.format("backfill").options(**{**database.options, **own, **options}).load()


def rows_of(frame: DataFrame) -> list[Row]:
    """The rows in the order in which they come, which is that of one task."""
    found: list[Row] = frame.toArrow().to_pylist()
    return found


def picked(rows: Sequence[Row], names: Sequence[str] = CHANGE) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def transactions(database: Database) -> list[str]:
    """Runs four transactions, one without a row of ours and one rolled back; returns the positions around them."""
    found = [now(database)]
    for statements in (
        "UPDATE t SET v = 'one' WHERE id = 1; INSERT INTO t (id, v) VALUES (4, 'new')",
        "UPDATE t SET id = 5 WHERE id = 4; DELETE FROM t WHERE id = 2; INSERT INTO t (id, v) VALUES (2, 'again')",
        "CREATE TABLE other (id int); INSERT INTO other VALUES (1)",
        "DELETE FROM t WHERE id = 5",
    ):
        database.execute(f"BEGIN; {statements}; COMMIT; BEGIN; UPDATE t SET v = 'never'; ROLLBACK")
        found.append(now(database))
    return found


FIRST = [("update_preimage", 1, "v1"), ("update_postimage", 1, "one"), ("insert", 4, "new")]
SECOND = [("delete", 4, "new"), ("insert", 5, "new"), ("delete", 2, "v2"), ("insert", 2, "again")]
LAST = [("delete", 5, "new")]


def test_the_changes_between_two_positions_are_the_transactions_between(
    spark: SparkSession, database: Database
) -> None:
    make_table(database, 3)
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    keep(database)
    at = transactions(database)
    everything = load(spark, database, "earliest")
    assert everything.columns == ["id", "v", "n", "at", *METADATA.names]
    assert everything.rdd.getNumPartitions() == 1
    found = rows_of(everything)
    assert picked(found) == FIRST + SECOND + LAST
    assert [row["_sequence"] for row in found] == list(range(1, len(found) + 1))
    assert [row["_is_snapshot"] for row in found] == [False] * len(found)
    versions = [row["_commit_version"] for row in found]
    assert versions == sorted(versions)
    assert [versions.count(version) for version in sorted(set(versions))] == [3, 4, 1]

    without_place = [name for name in everything.columns if name != "_sequence"]
    parts = [row for pair in pairwise((at[0], at[1], at[3], at[4])) for row in rows_of(load(spark, database, *pair))]
    assert picked(parts, without_place) == picked(found, without_place)

    # A commit's version is where its record begins: it comes after that position, and before the next one.
    ((exact, next_one),) = database.execute(
        "SELECT ('0/0'::pg_lsn + %s::numeric)::text, ('0/0'::pg_lsn + %s::numeric + 1)::text", [versions[3]] * 2
    )
    assert picked(rows_of(load(spark, database, exact, next_one.lower()))) == SECOND
    assert rows_of(load(spark, database, at[0], exact)) == found[:3]

    # Spark runs again what it has planned: the present stays that of the plan, and nothing was taken from the slot.
    database.execute("INSERT INTO t (id) VALUES (100)")
    assert rows_of(everything) == found
    assert picked(rows_of(load(spark, database, at[4], "LATEST"))) == [("insert", 100, None)]
    chosen = load(spark, database, at[3], at[4], columns="v", customSchema="v STRING")
    assert rows_of(chosen.select("v", "_change_type")) == [{"v": "new", "_change_type": "delete"}]


def test_changes_lead_from_one_state_of_the_table_to_another(
    spark: SparkSession, database: Database, tmp_path: Path, rng: random.Random
) -> None:
    """The table is read at a quiet moment; the changes up to another such moment are read while they are made."""
    BIGINT.create(database, 120, identity="FULL")
    keep(database, TABLE)
    options = {**database.options, "dbtable": TABLE, "stateDir": str(tmp_path / "state")}
    with Writers(database, BIGINT, 120, rng, clients=3):
        pass
    fold, positions = Fold(("id",)), [now(database)]
    fold.apply(rows_of(spark.read.format("backfill").options(**options).load()))
    with Writers(database, BIGINT, 120, rng, clients=4):
        meanwhile = load(spark, database, positions[0], **options)
        first = rows_of(meanwhile)
        positions.append(now(database))
        assert rows_of(load(spark, database, "latest", **options)) == []
    assert rows_of(meanwhile) == first
    positions.append(now(database))
    spans = [rows_of(load(spark, database, *pair, **options)) for pair in pairwise(positions)]
    assert len(first) > 0
    assert spans[0][: len(first)] == first
    assert len(spans[1]) > 0
    for rows in spans:
        fold.sequences.clear()  # which are places in one read
        fold.apply(rows)
    with (
        database.connect() as connection,
        connection.cursor(row_factory=psycopg.rows.dict_row) as cursor,
    ):
        table = cursor.execute(f"SELECT {BIGINT.select} FROM {TABLE}".encode()).fetchall()
    assert fold.rows == {(row["id"],): row for row in table}
    assert not (tmp_path / "state").exists()


def test_what_cannot_be_read_is_refused_with_what_is_lost(spark: SparkSession, database: Database) -> None:
    make_table(database, 3)
    with pytest.raises(AnalysisException, match=r"replication slot kept does not exist\. Set slotName to one"):
        load(spark, database, "earliest")
    keep(database)
    at = transactions(database)
    for starting, ending, problem in (
        ("yesterday", "", "OptionsError: startingPosition is 'yesterday'; expected an LSN such as 0/16B2D80"),
        ("earliest", "0/16B2D8X", "OptionsError: endingPosition is '0/16B2D8X'; expected an LSN"),
        (at[1], at[0], "OptionsError: startingPosition is [0-9A-F/]+, which lies after endingPosition"),
        ("FFFFFFFF/0", "latest", "OptionsError: startingPosition is FFFFFFFF/0, which lies after the end of the"),
        (at[0], "FFFFFFFF/0", "OptionsError: endingPosition is FFFFFFFF/0 and the server's log ends at"),
        ("0/1", "latest", f"DataLossError: replication slot {SLOT} is at [0-9A-F/]+, beyond 0/1, where reading"),
    ):
        with pytest.raises(AnalysisException, match=problem):
            load(spark, database, starting, ending)
    with pytest.raises(AnalysisException, match="startingPosition needs slotName"):
        load(spark, database, "earliest", slotName="")
    with pytest.raises(AnalysisException, match="startupMode is for a stream, which needs readStream"):
        load(spark, database, "earliest", startupMode="latest")

    kept = load(spark, database, at[1], at[4])
    assert len(rows_of(kept)) == 5
    advance(database, at[1])
    assert len(rows_of(kept)) == 5
    advance(database, at[2])
    lost = f"DataLossError: replication slot {SLOT} is at .* so the changes in between are gone: .*=earliest"
    with pytest.raises(PythonException, match=lost):
        kept.collect()
    assert picked(rows_of(load(spark, database, "earliest"))) == [("delete", 5, None)]


def test_a_position_of_now_is_good_where_the_log_has_come_to_the_end_of_a_segment(database: Database) -> None:
    """It does after each archive_timeout and after a backup: the next record comes behind the head of a page."""
    make_table(database, 3)
    keep(database)

    def ids(starting: str, ending: str) -> list[int]:
        given = {**database.options, "dbtable": "t", "slotName": SLOT, "startingPosition": starting}
        upstream = PostgresUpstream(parse({**given, "endingPosition": ending}))
        try:
            return [row["new"]["id"] for batch in upstream.span(starting, ending).read() for row in batch.to_pylist()]
        finally:
            upstream.close()

    # A first look may write to the log, which is then no longer at the end.
    assert ids("earliest", "latest") == []
    database.execute("INSERT INTO t (id) VALUES (4)")

    def switched(_: int) -> str:
        database.execute("SELECT pg_switch_wal()")
        return now(database)

    # A record of the server's own may come in between, as at the end of a checkpoint.
    at = next(position for position in map(switched, range(10)) if position.endswith("28"))
    assert (ids("earliest", at), ids(at, at), ids(at, "latest")) == ([4], [], [])
    database.execute("INSERT INTO t (id) VALUES (5)")
    assert (ids("earliest", at), ids(at, "latest")) == ([4], [5])
    advance(database, at)
    assert (ids("earliest", "latest"), ids(at, "latest")) == ([5], [5])


def test_what_became_of_the_table_is_not_reported_as_to_a_stream_alone(spark: SparkSession, database: Database) -> None:
    require_version(database, 150_000, "a publication that says which columns it has")
    make_table(database, 3)
    keep(database)
    database.execute("UPDATE t SET v = 'one' WHERE id = 1")
    planned = load(spark, database, "earliest")
    assert len(rows_of(planned)) == 1
    database.execute("ALTER TABLE t RENAME v TO w")
    way_out = r"A read of changes has no checkpoint: load\(\) later changes, with a later starting"
    with pytest.raises(PythonException, match=f"column v was dropped or renamed .*{way_out}"):
        planned.collect()
    with pytest.raises(PythonException, match=f"column 'w' is missing.*{way_out}"):
        load(spark, database, "earliest").collect()
    database.execute("DROP TABLE t")
    with pytest.raises(PythonException, match=f"the table was dropped .*{way_out}"):
        planned.collect()


REPLACED = {
    "dropped": "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text)",
    "renamed": "CREATE TABLE n (id int PRIMARY KEY, v text); ALTER TABLE t RENAME TO o; ALTER TABLE n RENAME TO t",
    "partitioned": """
        ALTER TABLE t RENAME TO o; CREATE TABLE t (LIKE o, PRIMARY KEY (id)) PARTITION BY RANGE (id);
        ALTER TABLE t ATTACH PARTITION o DEFAULT
    """,
}


@pytest.mark.parametrize("how", REPLACED)
def test_changes_of_a_table_that_another_one_took_the_place_of_are_not_left_out_in_silence(
    database: Database, how: str
) -> None:
    """Where all tables are published, both are in the log, and nothing in it says what became of the first."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute(f"CREATE PUBLICATION {SLOT} FOR ALL TABLES WITH (publish_via_partition_root = true)")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
    before = now(database)
    database.execute("INSERT INTO t VALUES (1, 'first')")
    between = now(database)
    database.execute(REPLACED[how])
    database.execute("INSERT INTO t VALUES (2, 'second')")
    # The table that had the name, and has another one now, may change.
    if how != "dropped":
        database.execute("INSERT INTO o VALUES (3, 'third')")

    def ids(starting: str) -> list[int]:
        given = {**database.options, "dbtable": "t", "slotName": SLOT}
        upstream = PostgresUpstream(parse({**given, "startingPosition": starting, "endingPosition": "latest"}))
        try:
            return [row["new"]["id"] for batch in upstream.span(starting, "latest").read() for row in batch.to_pylist()]
        finally:
            upstream.close()

    with pytest.raises(TableError, match=r"another table named .* was changed; .* a later starting"):
        ids(before)
    if how == "partitioned":
        require_version(database, 150_000, "a log that tells of a partition's changes right after it was attached")
    assert ids(between) == ([2, 3] if how == "partitioned" else [2])


def test_a_truncation_and_a_large_value_that_is_left_out_are_reported_as_by_a_stream(
    spark: SparkSession, database: Database
) -> None:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text, n int)")
    database.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL; INSERT INTO t VALUES (1, repeat('x', 9000), 0)")
    keep(database)
    database.execute("UPDATE t SET n = 1")
    with pytest.raises(PythonException, match=r'column v of "public"\."t" unchanged'):
        load(spark, database, "earliest").collect()
    (row,) = rows_of(load(spark, database, "earliest", onUnchangedToast="mark"))
    assert (row["id"], row["v"], row["n"], row["_unchanged_columns"]) == (1, None, 1, ["v"])
    at = now(database)
    database.execute("TRUNCATE t")
    with pytest.raises(PythonException, match=r'TruncateError: the table "public"\."t" was truncated\. Set onT'):
        load(spark, database, at).collect()
    assert picked(rows_of(load(spark, database, at, onTruncate="emit")), ["_change_type", "id"]) == [("truncate", None)]
    assert rows_of(load(spark, database, at, onTruncate="ignore")) == []


def test_a_wrong_slot_is_reported_before_its_publication_is_missed(database: Database) -> None:
    """It is said in the words of a stream; nothing was read from the slot before. Without Spark, as the test below."""
    make_table(database, 3)

    def refused(match: str, **options: str) -> None:
        given = {**database.options, "dbtable": "t", "slotName": SLOT, "startingPosition": "earliest", **options}
        upstream = PostgresUpstream(parse(given), RetryPolicy(give_up_after=0.5))
        with pytest.raises(DatabaseSetupError, match=match):
            upstream.span("earliest", "latest")
        upstream.close()

    make = "SELECT pg_create_logical_replication_slot(%s, %s)"
    there_is_none = r"^replication slot kept does not exist\. Set slotName to one that does, or make it after its publ"
    refused(there_is_none)
    refused(there_is_none, publicationName="p")
    database.execute(make, [SLOT, "test_decoding"])
    refused(
        "^replication slot kept exists and uses test_decoding and not pgoutput; choose another slotName, or drop it"
    )
    database.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
    database.execute(make, [SLOT, "pgoutput"])
    refused(
        '^publication kept does not exist; set publicationName to one that .* If there is none, make "kept", then make '
    )


def test_a_slot_that_somebody_reads_is_waited_for_and_then_named(database: Database) -> None:
    """This goes without Spark, which would wait as long as for its users."""
    make_table(database, 3)
    keep(database)
    given = {**database.options, "dbtable": "t", "slotName": SLOT, "startingPosition": "earliest"}
    upstream = PostgresUpstream(parse(given), RetryPolicy(give_up_after=0.5))
    database.execute("UPDATE t SET v = 'read'")
    changes = upstream.span("earliest", "latest")
    upstream.close()
    reader = psycopg.connect(make_conninfo(database.dsn, replication="database"), autocommit=True)
    options = f"proto_version '1', publication_names '{SLOT}'"
    result = reader.pgconn.exec_(f"START_REPLICATION SLOT {SLOT} LOGICAL 0/0 ({options})".encode())
    assert result.status == psycopg.pq.ExecStatus.COPY_BOTH
    with pytest.raises(SlotBusyError, match=f'slot "{SLOT}" is active for PID .* still reads this slot'):
        list(changes.read())
    reader.close()
    active = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND active"
    eventually(lambda: database.execute(active) == [])
    assert sum(batch.num_rows for batch in changes.read()) == 3


def test_the_slot_of_a_stream_that_is_stopped_and_the_table_of_a_stream_are_good_for_it(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    make_table(database, 3)
    stream = SparkStream(spark, database, tmp_path)
    stream.catch_up()
    database.execute("UPDATE t SET v = 'after' WHERE id = 2")
    ((slot,),) = database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    url = database.url(tmp_path)
    spark.sql(
        f"CREATE TABLE feed USING backfill OPTIONS (url '{url}', dbtable 't', stateDir '{stream.state}', "
        "numPartitions '8')"
    )
    spark.sql(f"CREATE TABLE plain USING backfill OPTIONS (url '{url}', dbtable 't')")
    spark.sql(
        f"CREATE TABLE changes USING backfill OPTIONS (url '{url}', dbtable 't', columns 'v, id', slotName '{slot}', "
        "startingPosition 'earliest')"
    )
    changes = f"slotName = '{slot}', startingPosition = 'earliest', endingPosition = 'latest'"
    try:
        after = [("update_postimage", 2, "after")]
        assert picked(rows_of(spark.sql(f"SELECT * FROM feed WITH ({changes})")))[-1:] == after
        assert spark.table("changes").columns == ["v", "id", *METADATA.names]
        database.execute("ALTER TABLE t ADD COLUMN more text; DELETE FROM t WHERE id = 3")
        later = [*after, ("delete", 3, None)]
        assert picked(rows_of(spark.sql(f"SELECT * FROM feed WITH ({changes})")))[-2:] == later
        assert picked(rows_of(spark.sql("SELECT _change_type, id, v FROM changes")))[-2:] == later
        spark.sql(
            f"CREATE TEMPORARY VIEW v USING backfill OPTIONS (url '{url}', dbtable 't', columns 'id', "
            f"slotName '{slot}', startingPosition 'earliest')"
        )
        assert spark.sql("SELECT count(*) FROM v WHERE _change_type = 'delete'").collect() == [(1,)]
        with pytest.raises(AnalysisException, match="if it was made with the option stateDir or startingPosition"):
            spark.sql(f"SELECT * FROM plain WITH ({changes})").collect()
        query = spark.readStream.table("changes").writeStream.format("noop").start()
        with pytest.raises(StreamingQueryException, match=r"startingPosition is for spark\.read"):
            query.awaitTermination()
    finally:
        spark.sql("DROP VIEW IF EXISTS v")
        for name in ("feed", "plain", "changes"):
            spark.sql(f"DROP TABLE {name}")
    # The stream, whose slot it is, has missed nothing.
    stream.catch_up(stream.load(columns="id, v, n, at"))
    stream.require_equal("id, v, n, at")
