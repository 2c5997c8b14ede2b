"""The network between the stream and its database fails in four ways, at every round trip of every operation.

Refused: not done. Lost: done, but the answer did not arrive. Held: done later. Slow: done bit by bit. Each time the
stream goes on by itself, or ends with a transient error and goes on in a new process, and its sink is exact.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from backfill.errors import TransientError
from backfill.handoff import Part, SnapshotPart
from backfill.upstream.postgres.adapter import PostgresUpstream
from integration.crash.proxy import Fault, Kind, Proxy
from integration.crash.weather import proxied
from integration.database import Database
from integration.stream_harness import Row, StreamRun

KINDS: tuple[Kind, ...] = get_args(Kind)
ROWS = 400

MANY = 10_000
"""Changes that a batch may take; snapshot rows are limited by their bytes."""


@pytest.fixture
def network(database: Database) -> Iterator[tuple[Proxy, str]]:
    with proxied(database) as found:
        yield found


STRIDES: Mapping[Kind, int] = {"refused": 1, "lost": 1, "held": 3, "slow": 3}
"""Which round trips a fault strikes: where nothing is undone, it matters less at which of them that is."""


class Strikes:
    """Makes the fault strike at the first round trip of an operation's first call, at the second of its second, …"""

    def __init__(self, proxy: Proxy, kind: Kind) -> None:
        self._proxy, self._kind = proxy, kind
        self._next = 1
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
                self._next += STRIDES[self._kind]
            elif self._proxy.requests > before:
                self.all_struck = True
            self._proxy.calm()
            self._proxy.mend()

    def require_all(self) -> None:
        assert self.all_struck, f"the operation takes more than {self._next} round trips"
        assert self._next > 1, "the operation did not use the network"


def create(database: Database) -> None:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    database.execute(f"INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, {ROWS}) i")
    database.execute("ANALYZE t")


def write(database: Database, number: int) -> None:
    """Something of everything, over the whole table."""
    database.execute(
        f"UPDATE t SET v = 'changed {number}' WHERE id % 13 = {number} % 13;"
        f"DELETE FROM t WHERE id % 101 = {number} % 101;"
        f"INSERT INTO t VALUES ({10_000 + number}, 'new') ON CONFLICT DO NOTHING;"
        f"UPDATE t SET id = id + 1000 WHERE id = 3 * {number} AND id < 1000"
    )


def stream(database: Database, folder: Path, url: str) -> StreamRun:
    """Some ten rows a batch, so that the snapshot is not read before the network has failed everywhere."""
    return StreamRun(database, folder, "t", vnodeCount="3", numPartitions="1", url=url, maxBytesPerTrigger="600")


def finish(run: StreamRun) -> None:
    run.restart(maxBytesPerTrigger="1g")
    run.finish()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", ["attach", "next_epoch", "measure", "changes", "acknowledge", "repin"])
def test_an_operation_that_the_network_fails_is_done_all_the_same(
    database: Database,
    tmp_path: Path,
    network: tuple[Proxy, str],
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    kind: Kind,
) -> None:
    proxy, url = network
    create(database)
    run = stream(database, tmp_path, url)
    run.batch(MANY)
    strikes = Strikes(proxy, kind)
    plain: Callable[..., Any] = getattr(PostgresUpstream, operation)

    def struck(*arguments: Any, **named: Any) -> Any:
        with strikes.one_call():
            found = plain(*arguments, **named)
            # What is read bit by bit is read here to its end.
            return iter(list(found)) if operation == "changes" else found

    monkeypatch.setattr(PostgresUpstream, operation, struck)
    for number in range(30):
        write(database, number)
        if operation in ("attach", "changes", "repin"):
            run.plan(MANY)
            run.stop()  # the batch is run again by a new process, which has nothing in memory
        assert run.batch(MANY)
        if strikes.all_struck:
            break
    strikes.require_all()
    finish(run)


@pytest.mark.parametrize("kind", KINDS)
def test_publication_and_slot_are_made_once_though_the_network_fails(
    database: Database,
    tmp_path: Path,
    network: tuple[Proxy, str],
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
) -> None:
    proxy, url = network
    create(database)
    strikes = Strikes(proxy, kind)
    plain = PostgresUpstream.attach

    def struck(*arguments: Any) -> None:
        with strikes.one_call():
            plain(*arguments)

    for number in itertools.count(1):
        run = StreamRun(database, tmp_path / str(number), "t", vnodeCount="1", url=url)
        with monkeypatch.context() as patched:
            patched.setattr(PostgresUpstream, "attach", struck)
            run.plan(MANY)
        write(database, number)
        run.finish()
        if strikes.all_struck:
            break
    strikes.require_all()
    ((slots,),) = database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
    ((publications,),) = database.execute("SELECT count(*) FROM pg_publication")
    assert (slots, publications) == (number, number)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_is_read_once_though_the_network_fails(
    database: Database, tmp_path: Path, network: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    proxy, url = network
    create(database)
    monkeypatch.setattr("backfill.upstream.postgres.reader.BATCH_BYTES", 100)
    run = stream(database, tmp_path, url)
    run.batch(MANY)
    strikes = Strikes(proxy, kind)
    for number in range(30):
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


def test_a_stream_waits_for_a_database_that_is_away_and_goes_on(
    database: Database, tmp_path: Path, network: tuple[Proxy, str]
) -> None:
    proxy, url = network
    create(database)
    run = stream(database, tmp_path, url)
    for number, kind in enumerate((*KINDS, *KINDS)):
        write(database, number)
        run.batch(MANY)
        proxy.set(Fault(kind, seconds=0.5))
    finish(run)
