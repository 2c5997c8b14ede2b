"""How often a stream waits for the database: each time costs the way there and back, which may be long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from backfill import handoff
from backfill.sinks.postgres import apply_to
from backfill.upstream.postgres.session.connection import Connector
from backfill.vnode import WHOLE_TABLE
from integration.crash.proxy import Proxy
from integration.crash.weather import proxied
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of
from tests.collected import Rows

ROWS = 4000


@dataclass(frozen=True)
class Way:
    """A way to the database that counts round trips and connections."""

    proxy: Proxy
    url: str
    password: str
    """Empty where the server wants none."""

    def trips(self, operation: Callable[[], Any]) -> int:
        """How many round trips the operation takes, one more or less where an answer comes in parts."""
        before = self.proxy.requests
        operation()
        return self.proxy.requests - before

    def connections(self, operation: Callable[[], Any]) -> int:
        before = self.proxy.connections
        operation()
        return self.proxy.connections - before


@pytest.fixture
def way(database: Database) -> Iterator[Way]:
    with proxied(database) as (proxy, url):
        yield Way(proxy, url, database.options.get("password", ""))


@pytest.mark.parametrize("vnodes", ["8", "512"])
def test_a_batch_takes_few_round_trips_however_many_vnodes_there_are(
    database: Database, start_stream: StartStream, way: Way, vnodes: str
) -> None:
    table_of(database, ROWS)
    run = start_stream(url=way.url, vnodeCount=vnodes, numPartitions="1")
    planned, read, followed = [], [], []
    for number in range(4):
        database.execute(f"UPDATE t SET v = 'new {number}' WHERE id % 10 = {number}")
        planned.append(way.trips(lambda: run.plan(ROWS // 8)))
        read.append(way.trips(lambda: run.commit(run.read())))
    run.backfill(ROWS)
    for number in range(3):
        run.catch_up()
        database.execute(f"UPDATE t SET v = 'later {number}' WHERE id % 10 = {number}")
        followed.append(way.trips(run.batch))
    # Sessions are opened in the first batches, and now and then the log has to be flushed.
    assert (min(planned) <= 27, min(read) <= 9, min(followed) <= 7) == (True, True, True), (planned, read, followed)


def test_a_partition_of_a_read_of_the_table_takes_few_round_trips(
    database: Database, start_stream: StartStream, way: Way
) -> None:
    table_of(database, 50)
    reader = start_stream(url=way.url).upstream.reader()

    def read() -> None:
        assert sum(batch.num_rows for batch in reader.scan([WHOLE_TABLE])) == 50

    assert min(way.trips(read) for _ in range(4)) <= 9


def test_a_stream_with_nothing_to_do_asks_once(database: Database, start_stream: StartStream, way: Way) -> None:
    table_of(database, 50)
    run = start_stream(url=way.url)
    run.catch_up()
    fewest = min(way.trips(run.plan) for _ in range(10))
    assert fewest == 1


def test_the_log_is_let_go_in_one_round_trip(database: Database, start_stream: StartStream, way: Way) -> None:
    table_of(database, 50)
    run = start_stream(url=way.url)
    run.catch_up()
    database.execute("UPDATE t SET v = 'new'")
    run.batch()
    let_go = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
    before = database.execute(let_go)
    assert way.trips(lambda: run.upstream.acknowledge(run.barrier().epoch)) == 1
    assert database.execute(let_go) > before


def test_what_the_driver_knows_of_a_database_is_asked_for_once_in_a_process(way: Way) -> None:
    connector = Connector.of(way.url, password=way.password)

    def opened() -> None:
        connector.new_arrow_session().close()

    opened()
    assert way.trips(opened) <= 6
    assert way.connections(opened) == 1


def test_a_log_that_waits_to_be_flushed_is_flushed_in_a_session_that_is_there(
    database: Database, start_stream: StartStream, way: Way
) -> None:
    table_of(database, 50)
    run = start_stream(url=way.url)
    run.catch_up()
    with closing(database.connect()) as writer:
        for number in range(10):
            writer.execute("UPDATE t SET v = %s", [str(number)])
            assert way.connections(run.upstream.present) == 0


def test_a_sink_writes_a_batch_in_few_round_trips(database: Database, start_stream: StartStream, way: Way) -> None:
    table_of(database, ROWS)
    database.execute("CREATE TABLE copy (LIKE t INCLUDING ALL)")
    run = start_stream()
    apply = apply_to(url=way.url, password=way.password, table="copy", key=["id"], query="t")
    trips = []
    for number in range(4):
        database.execute(f"DELETE FROM t WHERE id % 100 = {number}")
        run.plan(ROWS // 4)
        reader, format_ = run.upstream.reader(), run.stream().rows
        found = [batch for part in run.parts() for batch in handoff.read(part, reader, format_)]
        rows = Rows(pa.Table.from_batches(found, format_.schema))
        run.commit(rows.table.to_pylist())
        trips.append(way.trips(partial(apply, rows, number)))
    assert min(trips[1:]) <= 13, trips
