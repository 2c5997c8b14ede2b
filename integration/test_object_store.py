"""Chunks that are staged on an object store, beside a Delta table there that follows the stream."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from backfill.__main__ import main
from backfill.errors import StagingError, StagingUnreachableError, StateBusyError
from backfill.options import OnExistingState
from backfill.sinks.delta import apply_to
from backfill.staging import Staging
from backfill.staging.manifest import Manifest
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.object_store import BUCKET, ObjectStore, Request, named_by_environment
from integration.spark_stream import SparkStream, make_table, slots, write
from integration.stream_harness import churn, table_of
from tests.simulator.conditions import simulated
from tests.simulator.database import Database as SimulatedDatabase
from tests.simulator.harness import Spark
from tests.simulator.upstream import Server
from tests.stream.scenario import KEYS, changes_of, snapshot_of, update

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "team/a/staging"
STAGING = f"s3://{BUCKET}/{FOLDER}"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with named_by_environment(monkeypatch) as store:
        yield store


def test_a_stream_has_what_it_needs_of_a_store_in_its_own_folder(
    database: Database, start_stream: StartStream, store: ObjectStore
) -> None:
    """The stream may look at the bucket, and do nothing above its folder; in its folder it leaves nothing."""

    def refuse(request: Request) -> tuple[int, str] | None:
        return None if request.key.startswith(f"{FOLDER}/") or not request.key else (403, "AccessDenied")

    table_of(database, 500)
    run = start_stream(stagingDir=STAGING, vnodeCount="4")
    store.refuse = refuse
    run.judged_batch(150)
    churn(database, 1)
    assert run.plan(150)
    run.restart()
    run.backfill(150)
    assert any(key.endswith(".arrow") for key in store.objects)
    churn(database, 2)
    run.finish()
    assert not run.batch()
    assert not [key for key in store.objects if not key.endswith("/")]
    assert not store.uploads


@pytest.mark.parametrize("kind", ["UPLOAD", "COPY", "DELETE"])
def test_a_stream_that_may_not_stage_does_not_begin(
    database: Database, start_stream: StartStream, store: ObjectStore, kind: str
) -> None:
    table_of(database, 100)
    run = start_stream(stagingDir=STAGING)
    store.refuse = lambda request: (403, "AccessDenied") if request.kind == kind else None
    with pytest.raises(StagingError, match=r"stagingDir cannot be (read|written): .* ACCESS_DENIED .*"):
        run.batch()
    assert slots(database) == []
    assert any(not key.endswith("/") for key in store.objects) is (kind == "DELETE")
    store.refuse = lambda _: None
    run.finish()


def test_a_stream_with_a_bucket_that_is_not_there_does_not_begin(
    database: Database, start_stream: StartStream, store: ObjectStore
) -> None:
    table_of(database, 100)
    run = start_stream(stagingDir="s3://elsewhere/staging")
    with pytest.raises(StagingError, match=r"stagingDir cannot be written: .*elsewhere"):
        run.batch()
    assert slots(database) == []
    assert not store.objects


def test_a_store_that_is_away_for_a_while_ends_the_query_and_nothing_else(
    database: Database, start_stream: StartStream, store: ObjectStore
) -> None:
    table_of(database, 300)
    run = start_stream(stagingDir=STAGING, vnodeCount="4")
    run.judged_batch(150)
    churn(database, 1)
    assert run.plan(150)
    (part,) = run.parts()[-1:]
    store.refuse = lambda _: (503, "SlowDown")
    with pytest.raises(StagingUnreachableError, match=r"stagingDir cannot be .* for now: .*Start the query again"):
        run.read_part(part)
    store.refuse = lambda _: None
    run.restart()
    run.finish()


def test_a_store_that_is_asked_too_much_now_and_then_ends_no_read(store: ObjectStore) -> None:
    """Even where the error's text is longer than what is read, such as the end of a file."""
    files = Staging(STAGING).of_batch(1)
    rows = pa.record_batch({"id": [1]})
    files.write("chunk.arrow", rows.schema, [rows])
    files.keep_changes(1)
    files.keep_manifest(Manifest(()))
    refused: set[str] = set()

    def refuse(request: Request) -> tuple[int, str] | None:
        if request.kind != "GET" or request.key in refused:
            return None
        refused.add(request.key)
        return 503, "SlowDown"

    store.refuse = refuse
    assert files.change_files() == 1
    assert files.manifest() == Manifest(())
    assert list(files.read("chunk.arrow")) == [rows]
    assert len(refused) == 3


@pytest.mark.parametrize("status", [400, 403])
def test_staged_files_are_not_taken_for_lost_where_the_store_takes_the_credentials_no_more(
    store: ObjectStore, status: int
) -> None:
    """S3 answers 400 for a token that has expired, and gives no reason to a HEAD."""
    files = Staging(STAGING).of_batch(1)
    rows = pa.record_batch({"id": [1]})
    files.write("chunk.arrow", rows.schema, [rows])
    files.keep_changes(1)
    store.refuse = lambda _: (status, "InvalidToken" if status == 400 else "AccessDenied")
    for use in (files.exists, files.schema, lambda _: files.change_files(), lambda _: files.forget()):
        with pytest.raises(StagingError, match=r"stagingDir cannot be \w+: .* credentials .* start the query again$"):
            use("chunk.arrow")
    store.refuse = lambda _: None
    assert list(files.read("chunk.arrow")) == [rows]


def test_a_stream_is_dropped_though_its_store_refuses(
    database: Database, start_stream: StartStream, store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    table_of(database, 100)
    run = start_stream(stagingDir=STAGING)
    run.judged_batch(50)
    run.stop()
    place = ["--state-dir", run.options["stateDir"], "--url", run.options["url"]]
    store.refuse = lambda _: (403, "AccessDenied")
    assert main(["drop", *place, "--staging-dir", STAGING]) == 1
    assert re.search(
        "nothing was dropped: .*Run `backfill drop` again, and not .*without --staging-dir",
        capsys.readouterr().err,
    )
    (slot,) = slots(database)
    store.refuse = lambda request: (403, "AccessDenied") if request.kind == "POST" else None
    assert main(["drop", *place, "--staging-dir", STAGING]) == 1
    assert f"dropped slot {slot}" in capsys.readouterr().err
    assert slots(database) == []
    store.refuse = lambda _: None
    assert main(["drop", *place, "--staging-dir", STAGING]) == 0
    assert not [key for key in store.objects if not key.endswith("/")]


def test_a_table_follows_from_one_store_to_another_place_of_it(
    spark: SparkSession, database: Database, store: ObjectStore, tmp_path: Path
) -> None:
    """Spark began before there was this store, so its processes find it by the URI."""
    make_table(database, 300)
    place = f"endpoint_override={store.endpoint.removeprefix('http://')}&scheme=http&region=us-east-1"
    options = {"maxRowsPerTrigger": "120", "stagingDir": f"s3://anonymous@{BUCKET}/staging?{place}"}
    stream = SparkStream(spark, database, tmp_path, options)
    copy = f"s3://{BUCKET}/copy"
    apply = apply_to(path=copy, key=["id"], query="t")
    for step in (5, 7):
        writer = stream.load().writeStream.foreachBatch(apply).option("checkpointLocation", str(stream.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        found = DeltaTable(copy).to_pyarrow_table().sort_by("id").to_pylist()
        expected = database.execute("SELECT id, v FROM t ORDER BY id")
        assert [(row["id"], row["v"]) for row in found] == expected
        write(database, step)
    assert any(request.key.endswith(".arrow") and request.kind == "COPY" for request in store.requests)


@pytest.mark.usefixtures("store")
def test_a_reader_left_over_from_a_checkpoint_before_does_not_take_a_place_in_the_new_one(
    tmp_path: Path,
) -> None:
    """A store has a file once it is closed, even if all of its epoch has been removed and planned anew since."""
    with simulated():
        server = Server(SimulatedDatabase({key: (*key, "at first") for key in KEYS[:6]}))
        spark = Spark(server, tmp_path, staging_uri=STAGING, vnodes=1, partitions=1)
        spark.batch(2)
        assert spark.plan(4)
        (part,) = spark.parts()
        left_over = spark.task(part)
        next(left_over)
        spark.begin_anew(OnExistingState.RESUME)
        update(spark, KEYS[5])
        assert spark.plan(4)
        spark.parts()
        with pytest.raises(StateBusyError, match="was planned again"):
            deque(left_over, maxlen=0)
        rows = spark.read()
        spark.commit(rows)
        spark.check()
    assert changes_of(rows) == [*snapshot_of(*KEYS[2:5]), *snapshot_of(KEYS[5], value="changed")]
