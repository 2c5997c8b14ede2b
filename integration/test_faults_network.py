"""The network between the stream and its database fails in four ways, at the round trips of every operation.

Refused: not done. Lost: done, but the answer did not arrive. Held: done later. Slow: done bit by bit. Each time the
stream goes on by itself, or ends with a transient error and goes on in a new process, and its sink is exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, get_args

import pytest

from backfill.errors import TransientError
from backfill.handoff import Part, SnapshotPart
from backfill.upstream import Bookmark
from backfill.upstream.postgres.adapter import PostgresUpstream
from integration.crash.proxy import Fault, Kind, Proxy
from integration.crash.weather import proxied
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.fold import Row
from integration.stream_harness import StreamRun

KINDS: tuple[Kind, ...] = get_args(Kind)
UNDOING: tuple[Kind, ...] = ("refused", "lost")
"""Faults after which something has to be done again. For others it does not matter at which round trip they strike."""

ROWS = 400
BATCHES = 40

MANY = 10_000
"""Changes that a batch may take; snapshot rows are limited by their bytes."""


@pytest.fixture
def network(database: Database) -> Iterator[tuple[Proxy, str]]:
    with proxied(database) as found:
        yield found


@pytest.fixture
def run(database: Database, network: tuple[Proxy, str], start_stream: StartStream) -> StreamRun:
    """A stream of some ten rows a batch, so that the snapshot is not read before the network has failed everywhere."""
    create(database)
    return start_stream(vnodeCount="3", numPartitions="1", url=network[1], maxBytesPerTrigger="600")


@pytest.fixture
def strikes(network: tuple[Proxy, str], kind: Kind, rng: Random) -> Strikes:
    return Strikes(network[0], kind, rng)


STRIDE: Final = 4


class Strikes:
    """Makes the fault strike at the first round trip of an operation's first call, at a later one of its second, …"""

    def __init__(self, proxy: Proxy, kind: Kind, rng: Random) -> None:
        self._proxy, self._kind, self._rng = proxy, kind, rng
        self._next = 1
        self.struck = 0
        self.all_struck = False
        """Whether a call needed fewer round trips than that at which the fault was to strike."""

    @contextlib.contextmanager
    def one_call(self) -> Iterator[None]:
        before = self._proxy.requests
        self._proxy.set(Fault(self._kind, at=self._next))
        try:
            yield
        finally:
            if not self._proxy.pending:
                self.struck += 1
                self._next += self._rng.randint(1, STRIDE)
            elif self._proxy.requests > before:
                self.all_struck = True
            self._proxy.calm()
            self._proxy.mend()

    def require_all(self) -> None:
        assert self.all_struck, f"the operation takes more than {self._next} round trips"
        assert self.struck, "the operation did not use the network"


def create(database: Database) -> None:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    database.execute(f"INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, {ROWS}) i")
    database.execute("ANALYZE t")


def write(database: Database, number: int) -> None:
    """Writes of every kind over the whole table."""
    database.execute(
        f"UPDATE t SET v = 'changed {number}' WHERE id % 13 = {number} % 13;"
        f"DELETE FROM t WHERE id % 101 = {number} % 101;"
        f"INSERT INTO t VALUES ({10_000 + number}, 'new') ON CONFLICT DO NOTHING;"
        f"UPDATE t SET id = id + 1000 WHERE id = 3 * {number} AND id < 1000"
    )


def finish(run: StreamRun) -> None:
    run.restart(maxBytesPerTrigger="1g")
    run.finish()


@pytest.mark.parametrize("kind", UNDOING)
@pytest.mark.parametrize("operation", ["attach", "snapshot_epoch", "measure", "changes", "acknowledge", "repin"])
def test_an_operation_that_the_network_fails_is_done_all_the_same(
    database: Database, run: StreamRun, strikes: Strikes, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    run.batch(MANY)
    plain: Callable[..., Any] = getattr(PostgresUpstream, operation)

    def struck(*arguments: Any, **named: Any) -> Any:
        with strikes.one_call():
            found = plain(*arguments, **named)
            # What is read bit by bit is read here to its end.
            return iter(list(found)) if operation == "changes" else found

    monkeypatch.setattr(PostgresUpstream, operation, struck)
    for number in range(BATCHES):
        write(database, number)
        if operation in ("attach", "changes", "repin"):
            run.plan(MANY)
            run.stop()  # the batch is run again by a new process, which has nothing in memory
        assert run.batch(MANY)
        if strikes.all_struck:
            break
    strikes.require_all()
    finish(run)


@pytest.mark.parametrize("kind", UNDOING)
def test_publication_and_slot_are_made_once_though_the_network_fails(
    database: Database,
    tmp_path: Path,
    network: tuple[Proxy, str],
    start_stream: StartStream,
    strikes: Strikes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create(database)
    plain = PostgresUpstream.attach

    def struck(*arguments: Any) -> Bookmark:
        with strikes.one_call():
            return plain(*arguments)

    made = 0
    while not strikes.all_struck and made < BATCHES:
        made += 1
        run = start_stream(vnodeCount="1", url=network[1], stateDir=str(tmp_path / str(made)))
        with monkeypatch.context() as patched:
            patched.setattr(PostgresUpstream, "attach", struck)
            run.plan(MANY)
        write(database, made)
        run.finish()
    strikes.require_all()
    ((slots,),) = database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
    ((publications,),) = database.execute("SELECT count(*) FROM pg_publication")
    assert (slots, publications) == (made, made)


@pytest.mark.parametrize("kind", UNDOING)
def test_a_chunk_is_read_once_though_the_network_fails(
    database: Database, run: StreamRun, strikes: Strikes, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr("backfill.upstream.postgres.snapshot.reader.BATCH_BYTES", 100)
    run.batch(MANY)
    for number in range(BATCHES):
        write(database, number)
        run.plan(MANY)
        write(database, 100 + number)
        try:
            rows = [row for part in run.parts() for row in read(run, part, strikes)]
        except TransientError:
            assert kind == "refused", "only with all connections the state to read at is lost"
            run.stop()
            run.batch(MANY)
        else:
            run.commit(rows)
        if strikes.all_struck:
            break
    strikes.require_all()
    finish(run)


def read(run: StreamRun, part: Part, strikes: Strikes) -> list[Row]:
    if not isinstance(part, SnapshotPart):
        return run.read_part(part)
    with strikes.one_call():
        return run.read_part(part)


def test_rows_are_looked_up_once_each_though_the_connection_is_lost_amid_them(
    database: Database, start_stream: StartStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the server meanwhile finds them by another plan, and so in another order."""
    monkeypatch.setattr("backfill.upstream.postgres.snapshot.reader.BATCH_BYTES", 1 << 16)
    # More than fits into what is under way in the network; the heap's order is not the key's.
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    database.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    database.execute("INSERT INTO t SELECT i, repeat('v', 20000) FROM generate_series(1, 2000) i ORDER BY md5(i::text)")
    database.execute("ANALYZE t")
    run = start_stream(vnodeCount="1")
    run.plan(MANY)
    assert run.pin is not None
    keys = [(str(number),) for number in range(1, 2001)]
    planned(database, "seqscan")
    reading = run.upstream.lookup(run.pin, run.upstream.typed(keys))
    found = next(reading)["id"].to_numpy().tolist()
    planned(database, "indexscan")
    assert end_copy(database) == [(1,)]
    for batch in reading:
        found += batch["id"].to_numpy().tolist()
    assert sorted(found) == list(range(1, 2001))


def end_copy(database: Database) -> list[tuple[int]]:
    """Ends the sessions that send rows; returns how many."""
    return database.execute(
        "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE 'COPY%'"
    )


def planned(database: Database, scan: str) -> None:
    """From now on new sessions read tables by this kind of plan alone."""
    for other in ("seqscan", "indexscan", "bitmapscan"):
        database.execute(f"ALTER DATABASE {database.name} SET enable_{other} = {'on' if other == scan else 'off'}")


def test_rows_that_were_passed_on_are_not_sent_again_after_a_lost_connection(
    database: Database, network: tuple[Proxy, str], start_stream: StartStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backfill.upstream.postgres.snapshot.reader.BATCH_BYTES", 1 << 16)
    rows, size = 3000, 20_000  # More than fits into what is under way in the network.
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    database.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    database.execute(f"INSERT INTO t SELECT i, repeat('v', {size}) FROM generate_series(1, {rows}) i")
    proxy, url = network
    run = start_stream(vnodeCount="1", numPartitions="1", url=url)
    run.plan(MANY)
    (part,) = run.parts()
    before, found = proxy.answered, list[int]()
    ended: list[tuple[int]] = []
    for batch in run.batches_of(part):
        found += [row["id"] for row in batch]
        if len(found) >= rows * 2 // 3 and not ended:
            ended = end_copy(database)
    assert (found, ended) == (list(range(1, rows + 1)), [(1,)])
    assert proxy.answered - before < 1.45 * rows * size


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_waits_for_a_database_that_is_away_and_goes_on(
    database: Database, run: StreamRun, network: tuple[Proxy, str], kind: Kind, rng: Random
) -> None:
    for number in range(8):
        write(database, number)
        run.plan(MANY)
        network[0].calm()  # With all connections the state is lost that the planned rows are to be read at.
        run.commit(run.read())
        network[0].set(Fault(kind, at=rng.randint(1, 20), seconds=0.3))
    finish(run)
