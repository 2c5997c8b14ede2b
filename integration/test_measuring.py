"""Counting before reading, by several sessions at once."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import create_autospec

import pytest
from psycopg import sql

from backfill.__main__ import main
from backfill.adapters import open_upstream
from backfill.errors import SnapshotGoneError
from backfill.options import parse
from backfill.plan import Extent, Measure
from backfill.upstream import Pin, Upstream
from backfill.upstream.postgres import PostgresUpstream
from backfill.upstream.postgres.snapshot.counting import RANGES_AT_ONCE
from backfill.upstream.postgres.snapshot.measuring import MOST_SESSIONS, Measuring
from backfill.upstream.postgres.snapshot.plans import INDEX_PLANS_ONLY
from backfill.upstream.postgres.tables.ranges import KeyedTable
from backfill.vnode import KeyRange
from integration.database import Database, maintenance
from integration.fixtures.streams import StartStream
from integration.waiting import eventually

READERS = 3


@pytest.fixture(autouse=True)
def every_row_is_worth_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backfill.upstream.postgres.snapshot.measuring.ROWS_PER_SESSION", 1)


@pytest.fixture
def opened() -> list[threading.Thread]:
    """The threads in which a session was asked to measure, once for each time."""
    return []


@pytest.fixture
def upstream(
    database: Database, opened: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> Iterator[PostgresUpstream]:
    """An upstream of a table with the keys from 1 to 2000."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 2000) i; ANALYZE t")
    found = open_upstream(parse({**database.options, "dbtable": "t", "numPartitions": str(READERS)}))
    assert isinstance(found, PostgresUpstream)
    before(monkeypatch, "_extents", lambda: opened.append(threading.current_thread()))
    yield found
    found.close()


@pytest.fixture
def pin(upstream: PostgresUpstream) -> Pin:
    """A state of the upstream's table."""
    return pinned(upstream)


def pinned(upstream: Upstream) -> Pin:
    pin = upstream.snapshot_epoch(None, max_changes=9).pin
    assert pin is not None
    return pin


def test_a_table_that_has_grown_since_the_process_began_is_taken_for_as_large_as_it_is(
    database: Database, opened: list[threading.Thread], start_stream: StartStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several sessions count its rows, and one batch reads all of them again, as in a new process."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    run = start_stream(numPartitions=str(READERS), vnodeCount="9")
    run.backfill()
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 50000) i; ANALYZE t")
    run.catch_up()
    assert main(["re-backfill", "--state-dir", run.options["stateDir"]]) == 0
    before(monkeypatch, "_extents", lambda: opened.append(threading.current_thread()))
    assert run.catch_up(100_000) == 1
    assert len(opened) == READERS + 1
    run.finish()


def ends_of_vnodes(database: Database, vnodes: int) -> list[int]:
    """0, then where all vnodes but the last one end."""
    upstream = open_upstream(parse({**database.options, "dbtable": "t"}))
    try:
        return [0, *(int(str(key[0])) for key in upstream.bounds(vnodes))]
    finally:
        upstream.close()


def test_a_sample_of_many_rows_cuts_them_into_about_equal_parts(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t SELECT i FROM generate_series(1, 50000) i; ANALYZE t")
    ends = ends_of_vnodes(database, 9)
    assert len(ends) == 9
    # Every second of 222 pages is looked at, and some five rows of each count. So a part has 28 pages, 6 more or less,
    # and in one of a thousand runs a part has 56. Four times as many or as few are beyond all chance.
    assert ends[-1] > 40_000
    assert all(50_000 / 8 / 4 < after - before < 50_000 / 8 * 4 for before, after in pairwise(ends))


@pytest.mark.parametrize("analyzed", ["", "; ANALYZE t"], ids=["not analyzed", "analyzed"])
def test_a_few_pages_of_rows_with_large_values_are_all_looked_at(database: Database, analyzed: str) -> None:
    """The values lie in pages of their own, hundreds for each page of rows: a sample of all would miss the rows."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text) WITH (autovacuum_enabled = false)")
    database.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    database.execute(f"INSERT INTO t SELECT i, repeat('v', 20000) FROM generate_series(1, 400) i{analyzed}")
    assert ends_of_vnodes(database, 9) == list(range(0, 401, 50))


def before(monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[], object]) -> None:
    """Runs the action at the beginning of each call of this method of `Measuring`."""
    method = getattr(Measuring, name)

    def replacement(measuring: Measuring, *arguments: Any) -> Any:
        action()
        return method(measuring, *arguments)

    monkeypatch.setattr(Measuring, name, replacement)


def requests(rng: Random, count: int) -> list[Measure]:
    ends = sorted(rng.sample(range(2000), count - 1))
    spans = zip([None, *ends], [*ends, None], strict=True)
    return [
        Measure(KeyRange(*(None if end is None else (str(end),) for end in span)), rng.choice([1, 10, 1000, 1 << 62]))
        for span in spans
    ]


def expected(asked: Sequence[Measure]) -> tuple[Extent, ...]:
    """The extents of these ranges, with rows numbered from 1 to 2000."""
    found = []
    for request in asked:
        after = 0 if request.range.after is None else int(str(request.range.after[0]))
        upto = 2000 if request.range.upto is None else int(str(request.range.upto[0]))
        more = upto - after > request.limit
        found.append(Extent(request.limit, (str(after + request.limit),)) if more else Extent(upto - after, None))
    return tuple(found)


@pytest.mark.parametrize(("count", "sessions"), [(1, 1), (2, 2), (4, 4), (61, 4)])
def test_several_sessions_measure_what_one_would(
    upstream: PostgresUpstream, pin: Pin, opened: list[threading.Thread], count: int, sessions: int
) -> None:
    asked = requests(Random(count), count)
    assert upstream.measure(pin, asked) == expected(asked)
    assert len(opened) == sessions


@pytest.mark.parametrize(("count", "sessions"), [(RANGES_AT_ONCE, 1), (RANGES_AT_ONCE + 1, 2), (4 * RANGES_AT_ONCE, 4)])
def test_several_sessions_do_not_share_one_bitmap(
    upstream: PostgresUpstream,
    opened: list[threading.Thread],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    sessions: int,
) -> None:
    """Where rows lie in another order than their keys, each would look at the same pages."""
    monkeypatch.setattr("backfill.upstream.postgres.snapshot.pin.better_by_bitmap", lambda _: "SELECT true")
    asked = requests(Random(count), count)
    assert upstream.measure(pinned(upstream), asked) == expected(asked)
    assert len(opened) == sessions


def test_ranges_of_all_forms_are_counted_whatever_the_table_and_its_columns_are_called(database: Database) -> None:
    names = "after0 text, upto0 int, most int, place int, PRIMARY KEY (after0, upto0)"
    database.execute(f"CREATE TABLE asked ({names})")
    database.execute("INSERT INTO asked SELECT 't' || i / 100, i % 100 FROM generate_series(0, 499) i; ANALYZE asked")
    keys = [(f"t{i // 100}", str(i % 100)) for i in range(500)]
    upstream = open_upstream(parse({**database.options, "dbtable": "asked"}))
    ends = [-1, 7, 20, 99, 150, 151, 151, 340, 400, 420, 499]
    asked = [
        Measure(KeyRange(None if after < 0 else keys[after], None if upto == 499 else keys[upto]), limit)
        for after, upto in pairwise(ends)
        for limit in (1, 40, 1 << 62)
    ]
    counts = [(upto - after, after, limit) for after, upto in pairwise(ends) for limit in (1, 40, 1 << 62)]
    try:
        assert upstream.measure(pinned(upstream), asked) == tuple(
            Extent(limit, keys[after + limit]) if rows > limit else Extent(rows, None) for rows, after, limit in counts
        )
    finally:
        upstream.close()


def test_ranges_are_counted_with_the_index_of_the_key(database: Database) -> None:
    """Another index that begins like the key's would lead to all rows of each tenant."""
    database.execute(
        "CREATE TABLE t (tenant int, id int, v text, PRIMARY KEY (tenant, id)); CREATE INDEX ON t (tenant)"
    )
    database.execute("INSERT INTO t SELECT i / 10000, i % 10000, repeat('v', 80) FROM generate_series(0, 199999) i")
    database.execute("VACUUM ANALYZE t")
    database.execute("UPDATE t SET v = 'w' WHERE id % 100 = 0")
    upstream = open_upstream(parse({**database.options, "dbtable": "t"}))
    assert isinstance(upstream, PostgresUpstream)
    ranges = [KeyRange((str(tenant), "5000"), (str(tenant + 1), "5000")) for tenant in range(19)]
    counting = upstream._table.keyed.counts(ranges, [1 << 30] * len(ranges), "")
    upstream.close()
    with database.connect() as connection, connection.transaction():
        connection.execute(INDEX_PLANS_ONLY)
        plan = str(connection.execute(sql.SQL("EXPLAIN {}").format(counting)).fetchall())
        counts = connection.execute(counting).fetchall()
    assert "t_pkey" in plan
    assert "t_tenant_idx" not in plan
    assert counts == [(10_000,)] * len(ranges)


def test_a_table_of_many_partitions_is_not_planned_for_each_range(
    upstream: PostgresUpstream, pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests(Random(3), 61)
    statements = create_autospec(KeyedTable.counts, side_effect=KeyedTable.counts)
    monkeypatch.setattr(KeyedTable, "counts", statements)
    assert measuring(upstream, pin, readers=0).measure(asked, 2000) == expected(asked)
    assert statements.call_count == 3


def measuring(upstream: PostgresUpstream, pin: Pin, *, readers: int, only: str = "") -> Measuring:
    exporter = upstream._epochs.exporter
    state = exporter.held(pin.token)
    return Measuring(exporter, state, only, readers)


def test_however_many_read_a_few_count(upstream: PostgresUpstream, pin: Pin, opened: list[threading.Thread]) -> None:
    asked = requests(Random(1), 61)
    assert measuring(upstream, pin, readers=100).measure(asked, 2000) == expected(asked)
    assert len(opened) == MOST_SESSIONS


@pytest.mark.parametrize("count", [1, 20])
def test_a_query_that_is_stopped_while_rows_are_counted_leaves_no_session_counting(
    database: Database, upstream: PostgresUpstream, pin: Pin, count: int
) -> None:
    counts = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%count(*)%' AND query LIKE '%pg_sleep(600)%'"
    running = f"{counts} AND state = 'active' AND pid <> pg_backend_pid()"
    before = signal.signal(signal.SIGALRM, lambda *_: sys.exit(0))
    signal.setitimer(signal.ITIMER_REAL, 2)
    began = time.monotonic()
    try:
        with pytest.raises(SystemExit):
            measuring(upstream, pin, readers=READERS, only="pg_sleep(600) IS NOT NULL").measure(
                requests(Random(2), count), 2000
            )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 100
    eventually(lambda: database.execute(running) == [])


def test_rows_that_came_after_the_state_are_counted_by_no_session(
    database: Database, upstream: PostgresUpstream, pin: Pin, opened: list[threading.Thread]
) -> None:
    database.execute("INSERT INTO t SELECT i, 'new' FROM generate_series(-5, 0) i; DELETE FROM t WHERE id % 3 = 0")
    asked = requests(Random(5), 20)
    assert upstream.measure(pin, asked) == expected(asked)
    assert len(opened) == READERS + 1


def test_without_a_connection_left_the_exporting_session_counts_alone(
    database: Database, upstream: PostgresUpstream, pin: Pin, opened: list[threading.Thread]
) -> None:
    asked = requests(Random(7), 20)
    name = sql.Identifier(database.name)
    with maintenance(database.server) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        try:
            assert upstream.measure(pin, asked) == expected(asked)
        finally:
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
    assert opened == [threading.current_thread()] * (READERS + 1)


def test_a_truncate_between_the_sessions_is_noticed_and_holds_up_nobody(
    database: Database, upstream: PostgresUpstream, pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporting session has the lock, TRUNCATE waits for it, and the other sessions wait for TRUNCATE."""
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    truncate = threading.Thread(target=database.execute, args=("TRUNCATE t",))
    asked = threading.Event()

    def truncated_while_locked() -> None:
        if threading.current_thread() is threading.main_thread():
            truncate.start()
            eventually(lambda: len(database.execute(waits)) == 1)
            asked.set()
            eventually(lambda: len(database.execute(waits)) == 1 + READERS)

    before(monkeypatch, "_extents", truncated_while_locked)
    before(monkeypatch, "_elsewhere", asked.wait)
    with pytest.raises(SnapshotGoneError, match="truncated"):
        upstream.measure(pin, requests(Random(9), 20))
    truncate.join(60)
    assert not truncate.is_alive()
