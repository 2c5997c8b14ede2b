"""Whoever does something wrong reads in Spark's exception what was found, what was expected and what to do.

Every stream here is given a password, which no message may repeat.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.database import Database, temporary_database
from integration.fixtures.postgres import show_log_of
from integration.servers import LocalServer, LocalServers
from integration.servers.address import as_uri
from integration.spark_stream import SparkStream, make_table, slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from integration.fixtures.postgres import StartPostgres

PASSWORD = "hunter2-secret"  # noqa: S105 - of a role that lives as long as this module

AUTHENTICATION = """
local all all trust
host all guest 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""

SOON = 60.0
"""Seconds within which somebody who waits for `load()` has an answer, on a slow machine; it is a few on any other."""


@pytest.fixture(scope="module")
def strict_server(local_servers: LocalServers) -> Iterator[LocalServer]:
    """A server with one replication slot, and the role `guest`, which may do nothing and needs its password."""
    server = local_servers.start({"max_replication_slots": "1"})
    (server.folder / "data" / "pg_hba.conf").write_text(AUTHENTICATION)
    server.restart()
    Database(server, "postgres").execute(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'")
    yield server
    server.stop("immediate")


@pytest.fixture
def stream(
    strict_server: LocalServer, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[SparkStream]:
    """A stream of the table `t`, which has three rows."""
    show_log_of(strict_server, request.node)
    with temporary_database(strict_server) as database:
        make_table(database, 3)
        yield SparkStream(spark, database, tmp_path, {"password": PASSWORD})


def refusal(action: Callable[[], object]) -> str:
    """What the user reads, without Python's traceback, which has to be short."""
    from pyspark.errors import AnalysisException, StreamingQueryException  # noqa: PLC0415

    with pytest.raises((AnalysisException, StreamingQueryException)) as caught:
        action()
    text = str(caught.value)
    assert PASSWORD not in text
    assert text.count("\n  File ") <= 3, f"much to read before the message: {text}"
    found = re.search(r"^backfill[\w.]*\.(\w+Error: .*?)\n? SQLSTATE", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"not one of our errors: {text}"
    return found[1]


def of_load(stream: SparkStream, **options: str) -> str:
    return refusal(lambda: stream.load(**options))


def of_run(stream: SparkStream, **options: str) -> str:
    return refusal(lambda: stream.catch_up(stream.load(**options)))


def as_guest(stream: SparkStream) -> SparkStream:
    return replace(stream, options={**stream.options, "user": "guest"})


# -- options ----------------------------------------------------------------------------------------------------------


def test_a_misspelt_option_is_answered_with_the_one_that_was_meant(stream: SparkStream) -> None:
    assert "unknown option maxrowpertrigger; did you mean maxRowsPerTrigger?" in of_load(stream, maxRowPerTrigger="5")
    assert "unknown option gzip; known are url, dbtable," in of_load(stream, gzip="5")


def test_all_wrong_options_are_named_at_once(stream: SparkStream) -> None:
    found = of_load(stream, dbtable="", numPartitions="zero", maxBytesPerTrigger="much", onTruncate="cry")
    assert found.splitlines() == [
        "OptionsError: the backfill source cannot use its options:",
        '  - dbtable is required: The table: `orders`, `public.orders`, `"My Schema"."Orders"`',
        "  - numPartitions is 'zero'; expected a whole number from 1 to 10000",
        "  - maxBytesPerTrigger is 'much'; expected a size such as 268435456, 256m or 1g",
        "  - onTruncate is 'cry'; expected one of fail, emit, ignore",
    ]


def test_missing_options_are_named(stream: SparkStream) -> None:
    found = refusal(stream.spark.readStream.format("backfill").load)
    assert "url is required: Where the database is" in found
    assert "dbtable is required" in found
    assert "stateDir is required for a stream: a folder of the driver" in of_run(stream, stateDir="")
    assert "stateDir is 'state'; expected an absolute path" in of_run(stream, stateDir="state")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{PASSWORD}@127.0.0.1/shop",
        f"postgresql://me@127.0.0.1/shop?password={PASSWORD}",
        f"host=127.0.0.1 password={PASSWORD}",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(stream: SparkStream, url: str) -> None:
    found = of_load(stream, url=url)
    assert "url cannot be used; expected a URL without a password, because Spark shows URLs" in found
    assert "give it with the option password, a libpq passfile or a service file" in found


def test_a_jdbc_url_is_refused(stream: SparkStream) -> None:
    found = of_load(stream, url="jdbc:postgresql://127.0.0.1/shop")
    assert "expected a PostgreSQL URI or libpq connection string, without the leading jdbc:" in found


def test_columns_that_the_table_does_not_have_are_named(stream: SparkStream) -> None:
    assert "\"public\".\"t\" has no column 'att', did you mean 'at'?" in of_load(stream, columns="id, att")
    assert "'price'" in of_load(stream, customSchema="price STRING")


def test_other_uses_than_streams_are_refused_with_what_to_use(stream: SparkStream) -> None:
    options = {**stream.database.options, "dbtable": "t"}
    batch = stream.spark.read.format("backfill").options(**options).load()
    assert "Use spark.readStream; with .trigger(availableNow=True)" in refusal(batch.collect)
    listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
    found = refusal(lambda: stream.spark.sql(f"CREATE TABLE feed USING backfill OPTIONS ({listed})"))
    assert "no table can be created USING backfill" in found
    assert "createOrReplaceTempView to name it in SQL" in found


def test_a_schema_that_is_not_the_tables_is_refused(stream: SparkStream) -> None:
    frame = stream.load()
    stream.database.execute("ALTER TABLE t ADD COLUMN more int")
    found = refusal(lambda: stream.catch_up(frame))
    assert "the DataFrame has the schema struct<id:bigint," in found
    assert "If the table was altered, load() it again" in found
    stream.catch_up()
    stream.require_equal()


def test_folders_that_cannot_be_written_are_named(stream: SparkStream) -> None:
    (stream.folder / "file").touch()
    assert "StateError: stateDir cannot be made: " in of_run(stream, stateDir=str(stream.folder / "file"))
    found = of_run(stream, stagingDir=str(stream.folder / "file"))
    assert "StagingError: stagingDir cannot be written: " in found


# -- the server, and the way to it ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [{"host": "no.such.host.invalid"}, {"port": "1"}])
def test_a_server_out_of_reach_is_reported_soon(stream: SparkStream, place: dict[str, str]) -> None:
    began = time.monotonic()
    found = of_load(stream, url=as_uri(stream.database.dsn, **place))
    assert time.monotonic() - began < SOON
    assert "no connection to the database: " in found
    assert place.get("host", "port 1") in found
    assert "check url, and that the server is up" in found


def test_a_wrong_password_role_or_database_is_reported_as_the_server_does(stream: SparkStream) -> None:
    guest = as_guest(stream)
    wrong = of_load(guest, password=f"not-{PASSWORD}")
    assert 'refused the connection: password authentication failed for user "guest"' in wrong
    assert "no password supplied; check the options url, user and password" in of_load(guest, password="")
    assert 'role "who" does not exist' in of_load(stream, user="who")
    assert 'database "nowhere" does not exist' in of_load(stream, url=as_uri(stream.database.dsn, dbname="nowhere"))


def test_a_server_that_does_not_log_enough_is_refused_with_the_remedy(
    stream: SparkStream, start_postgres: StartPostgres
) -> None:
    with temporary_database(start_postgres(wal_level="replica")) as database:
        make_table(database, 3)
        replica = replace(stream, database=database)
        found = of_run(replica)
        assert "wal_level is replica, expected logical; run ALTER SYSTEM SET wal_level = 'logical'" in found
        assert "startupMode=snapshot does without" in found
        (batch,) = replace(replica, folder=stream.folder / "2").catch_up(
            replica.load(startupMode="snapshot", stateDir=str(stream.folder / "2"))
        )
        assert batch.numInputRows == 3


def test_a_server_without_a_free_slot_is_refused_with_the_remedy(stream: SparkStream) -> None:
    stream.database.execute("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')")
    found = of_run(stream)
    assert "all replication slots are in use: drop a slot that is not used any more" in found
    assert "raise max_replication_slots and restart the server" in found
    stream.database.execute("SELECT pg_drop_replication_slot('taken')")
    stream.catch_up()
    stream.require_equal()


# -- rights -----------------------------------------------------------------------------------------------------------


def test_a_role_without_rights_is_led_to_all_that_it_needs(stream: SparkStream) -> None:
    """Each message names the statement that helps; it is run as it stands there."""
    guest = as_guest(stream)
    found = of_load(guest)
    assert 'the role "guest" may not read "public"."t"' in found
    stream.database.execute(named(found, r"Run (GRANT SELECT .*)"))
    found = of_run(guest)
    assert "the role may not publish the table" in found
    stream.database.execute(named(found, r"owner run: (CREATE PUBLICATION .*?);"))
    publication = named(found, r"set publicationName=(\w+)")
    found = of_run(guest, publicationName=publication)
    assert "permission denied to use replication slots" in found
    stream.database.execute(named(found, r"superuser run (ALTER ROLE .*)"))
    try:
        guest.catch_up(guest.load(publicationName=publication))
    finally:
        stream.database.execute("ALTER ROLE guest NOREPLICATION")
    guest.require_equal()


def named(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, text
    return found[1]


# -- the table --------------------------------------------------------------------------------------------------------


def test_a_misspelt_table_is_answered_with_those_like_it(stream: SparkStream) -> None:
    stream.database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    found = of_load(stream, dbtable="public.ordres")
    assert 'there is no table \'public.ordres\' that this role can see. Did you mean "public"."orders"?' in found


def test_a_table_without_a_key_is_refused_with_the_ways_out(stream: SparkStream) -> None:
    stream.database.execute("CREATE TABLE log (at int NOT NULL, line text)")
    assert (
        'has no primary key, so its changes cannot be told apart. Run ALTER TABLE "public"."log" ADD PRIMARY KEY'
        in (of_load(stream, dbtable="log"))
    )
    stream.database.execute("CREATE UNIQUE INDEX log_at ON log (at)")
    found = of_load(stream, dbtable="log")
    stream.database.execute(named(found, r"Run (ALTER TABLE \S+ REPLICA IDENTITY USING INDEX \S+?);"))
    assert stream.load(dbtable="log").columns[:2] == ["at", "line"]


# -- values -----------------------------------------------------------------------------------------------------------


def test_a_value_without_a_counterpart_is_refused_with_the_type_to_use(stream: SparkStream) -> None:
    stream.database.execute("UPDATE t SET at = 'infinity' WHERE id = 2")
    found = of_run(stream)
    assert "ValueOutOfRangeError: column 'at' (timestamp with time zone) holds infinity" in found
    assert 'Read the column as text with .option("customSchema", "at STRING")' in found
    as_text = stream.load(customSchema="at STRING")
    stream.catch_up(as_text)
    assert {row["id"]: row["at"] for row in stream.rows()}[2] == "infinity"


def test_a_change_to_such_a_value_is_refused_and_can_be_read_as_text_from_there(stream: SparkStream) -> None:
    stream.database.execute(
        "CREATE TABLE prices (id int PRIMARY KEY, price numeric(10,2)); INSERT INTO prices VALUES (1, 1)"
    )
    prices = replace(stream, options={**stream.options, "dbtable": "prices"})
    assert len(run_to_nowhere(prices)) == 1
    stream.database.execute("INSERT INTO prices VALUES (2, 'NaN')")
    found = refusal(lambda: run_to_nowhere(prices))
    assert "column 'price' (numeric(10,2)) holds NaN, infinity" in found
    assert 'with .option("customSchema", "price STRING")' in found
    assert run_to_nowhere(prices, customSchema="price STRING") == [1]


def run_to_nowhere(stream: SparkStream, **options: str) -> list[int]:
    """Like `catch_up`, without a sink: the number of rows in each batch that had any."""
    writer = stream.load(**options).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


# -- what a stream goes on from ---------------------------------------------------------------------------------------


def test_a_new_checkpoint_with_a_used_state_directory_is_refused(stream: SparkStream) -> None:
    stream.catch_up()
    other = replace(stream, folder=stream.folder / "other")
    state = {"stateDir": str(stream.state)}
    found = of_run(other, **state)
    assert re.search(r'stateDir already holds the progress of stream \w+ \(table "public"\."t", epoch \d+\)', found)
    assert "onExistingState=resume to go on where it stopped" in found
    assert "onExistingState=restart to read everything again" in found
    other.catch_up(other.load(**state, onExistingState="restart"))
    other.require_equal()


def test_a_checkpoint_of_a_newer_release_is_refused(stream: SparkStream) -> None:
    stream.catch_up()
    offset = max((stream.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offset.write_text(offset.read_text().replace('{"version": 1, "stream"', '{"version": 7, "stream"'))
    (offset.parent / f".{offset.name}.crc").unlink()
    found = of_run(stream)
    assert "the checkpoint holds an offset of version 7, and this release reads up to 1" in found
    assert "install the release that wrote it, or a newer one" in found


def test_a_slot_that_was_dropped_is_reported_and_may_be_done_without(stream: SparkStream) -> None:
    stream.catch_up()
    (slot,) = slots(stream.database)
    stream.database.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    stream.database.execute("UPDATE t SET v = 'missed' WHERE id = 1")
    found = of_run(stream)
    assert re.search(
        rf"DataLossError: replication slot {slot} does not exist any more; the changes after [\dA-F]+/", found
    )
    assert "onExistingState=restart, or set failOnDataLoss=false" in found
    careless = stream.load(failOnDataLoss="false")
    stream.catch_up(careless)
    stream.database.execute("UPDATE t SET v = 'seen' WHERE id = 2")
    stream.catch_up(careless)
    assert {row["v"] for row in stream.rows() if not row["_is_snapshot"]} == {"seen"}


def test_a_checkpoint_of_another_table_is_refused(stream: SparkStream) -> None:
    stream.catch_up()
    stream.database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    found = of_run(stream, dbtable="u")
    assert 'the stream began with the table "public"."t", and dbtable names "public"."u"' in found


# -- secrets ----------------------------------------------------------------------------------------------------------


def test_the_password_is_nowhere_to_be_seen(stream: SparkStream) -> None:
    """Nor is it in Spark's log: see `test_spark_failures`."""
    frame = stream.load()
    with contextlib.redirect_stdout(io.StringIO()) as explained:
        frame.explain("extended")
    assert "dbtable=t" in explained.getvalue()
    query = stream.start({"availableNow": True}, frame)
    query.awaitTermination()
    told = [explained.getvalue(), frame.schema.json(), *(progress.json for progress in query.recentProgress)]
    assert not [text for text in told if PASSWORD in text]
    kept = [path for path in stream.folder.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]
