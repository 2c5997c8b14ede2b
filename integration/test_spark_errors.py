"""Whoever does something wrong reads in Spark's exception what was found, what was expected and what to do.

Every stream here is given a password, which no message may repeat.
"""

from __future__ import annotations

import contextlib
import io
import re
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


PASSWORD = "hunter2-secret"  # noqa: S105 - of a role that lives as long as this module

AUTHENTICATION = """
local all all trust
host all guest 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""


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
    """What the user reads, without Python's traceback; it has to be short."""
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
        "  - numPartitions is 'zero'; expected a whole number from 1 to 10000",
        "  - maxBytesPerTrigger is 'much'; expected a size such as 268435456, 256m or 1g, of 1048576g at the most",
        "  - onTruncate is 'cry'; expected one of fail, emit, ignore",
        '  - dbtable is required: The table: `orders`, `public.orders` or `"My Schema"."Orders"`; goes with `url`',
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
    assert "or to read and readStream with the option password" in found


def test_columns_that_the_table_does_not_have_are_named(stream: SparkStream) -> None:
    assert "\"public\".\"t\" has no column 'att', did you mean 'at'?" in of_load(stream, columns="id, att")
    assert "'price'" in of_load(stream, customSchema="price STRING")


def test_a_schema_that_is_not_the_tables_is_refused(stream: SparkStream) -> None:
    frame = stream.load()
    stream.database.execute("ALTER TABLE t ADD COLUMN more int")
    found = refusal(lambda: stream.catch_up(frame))
    assert "the DataFrame has the schema struct<id:bigint," in found
    assert "If the table was altered, load() it again" in found


def test_folders_that_cannot_be_written_are_named(stream: SparkStream) -> None:
    (stream.folder / "file").touch()
    assert "StateError: stateDir cannot be made: " in of_run(stream, stateDir=str(stream.folder / "file"))
    found = of_run(stream, stagingDir=str(stream.folder / "file"))
    assert "StagingError: stagingDir cannot be written: " in found


# -- the server, and the way to it ------------------------------------------------------------------------------------


def test_a_server_out_of_reach_is_reported_with_what_to_check(stream: SparkStream) -> None:
    found = of_load(stream, url=as_uri(stream.database.dsn, port="1"))
    assert "no connection to the database: " in found
    assert "port 1" in found
    assert "check url, and that the server is up" in found


def test_a_wrong_password_role_or_database_is_reported_as_the_server_does(stream: SparkStream) -> None:
    guest = as_guest(stream)
    wrong = of_load(guest, password=f"not-{PASSWORD}")
    assert 'refused the connection: password authentication failed for user "guest"' in wrong
    assert "no password supplied; check the options url, user and password" in of_load(guest, password="")
    assert 'role "who" does not exist' in of_load(stream, user="who")
    assert 'database "nowhere" does not exist' in of_load(stream, url=as_uri(stream.database.dsn, dbname="nowhere"))


def test_a_server_without_a_free_slot_is_refused_with_the_remedy(stream: SparkStream) -> None:
    stream.database.execute("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')")
    found = of_run(stream)
    assert "all replication slots are in use: drop a slot that is no longer used" in found
    assert "active is false in between" in found
    assert "raise max_replication_slots and restart the server" in found
    stream.database.execute("SELECT pg_drop_replication_slot('taken')")


# -- rights -----------------------------------------------------------------------------------------------------------


def test_a_role_without_rights_is_led_to_all_that_it_needs(stream: SparkStream) -> None:
    """Each message names the statement that helps; it is run as it stands there."""
    guest = as_guest(stream)
    found = of_load(guest)
    assert 'the role "guest" may not read "public"."t"' in found
    stream.database.execute(named(found, r"Run (GRANT SELECT .*)"))
    found = of_run(guest)
    assert "the role may not publish the table" in found
    stream.database.execute(named(found, r"owner run (CREATE PUBLICATION .*?), and"))
    publication = named(found, r"set publicationName=(\w+)")
    found = of_run(guest, publicationName=publication)
    # Before PostgreSQL 16: "must be superuser or replication role to use replication slots".
    assert "to use replication slots; let an administrator run" in found
    stream.database.execute(named(found, r"administrator run (ALTER ROLE .*)"))
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
        'has no primary key, so changes cannot be matched to rows. Run ALTER TABLE "public"."log" ADD PRIMARY KEY'
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
    assert 'start it with .option("customSchema", "at STRING")' in found
    as_text = stream.load(customSchema="at STRING")
    stream.catch_up(as_text)
    assert {row["id"]: row["at"] for row in stream.rows()}[2] == "infinity"


# -- what a stream goes on from ---------------------------------------------------------------------------------------


def test_a_stream_that_cannot_go_on_says_what_it_would_lose_and_what_to_do(stream: SparkStream) -> None:
    stream.catch_up()
    stream.database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    found = of_run(stream, dbtable="u")
    assert 'the stream began with the table "public"."t", and the options name "public"."u"' in found

    found = of_run(replace(stream, folder=stream.folder / "new"), stateDir=str(stream.state))
    assert re.search(r'stateDir already holds the progress of stream \w+ \(table "public"\."t", epoch \d+\)', found)
    assert "onExistingState=resume to go on after epoch" in found
    assert "onExistingState=restart to read everything again" in found

    (slot,) = slots(stream.database)
    stream.database.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    stream.database.execute("UPDATE t SET v = 'missed' WHERE id = 1")
    found = of_run(stream)
    lost = rf"DataLossError: replication slot {slot} no longer exists; the changes after [\dA-F]+/"
    assert re.search(lost, found)
    assert "onExistingState=restart, or start the query again with failOnDataLoss=false" in found

    offset = max((stream.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offset.write_text(offset.read_text().replace('{"version": 1, "stream"', '{"version": 7, "stream"'))
    (offset.parent / f".{offset.name}.crc").unlink()
    found = of_run(stream)
    assert "the checkpoint holds an offset of version 7, and this release reads up to 2" in found
    assert "install the release that wrote it, or a newer one" in found


# -- secrets ----------------------------------------------------------------------------------------------------------


def test_the_password_is_nowhere_to_be_seen(stream: SparkStream) -> None:
    """Nor is it in Spark's log: see `test_crash_spark`."""
    frame = stream.load()
    with contextlib.redirect_stdout(io.StringIO()) as explained:
        frame.explain("extended")
    assert "dbtable=t" in explained.getvalue()
    query = stream.start({"availableNow": True}, frame)
    query.awaitTermination()
    shown = [explained.getvalue(), frame.schema.json(), *(progress.json for progress in query.recentProgress)]
    assert not [text for text in shown if PASSWORD in text]
    kept = [path for path in stream.folder.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]
