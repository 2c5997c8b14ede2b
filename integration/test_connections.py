"""Connections of a stream that are cut, in each of its phases."""

from __future__ import annotations

from operator import attrgetter

import pytest

from backfill.errors import SchemaChangedError, SnapshotGoneError
from backfill.handoff import SnapshotPart
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.sessions import EVERY, EXPORTER, OTHERS, sessions, terminate
from integration.stream_harness import StreamRun, churn, table_of
from integration.waiting import eventually


@pytest.mark.parametrize("rows", [30, 400], ids=["in the middle of the backfill", "after it"])
def test_connections_cut_between_batches_are_made_anew(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5")
    for number in range(8):
        run.judged_batch(rows)
        assert terminate(database, EVERY) > 0
        churn(database, number)
    run.finish()


class Terminating:
    """Replaces a method of the upstream, or of a part of it: before the call it ends the sessions, once."""

    def __init__(self, run: StreamRun, name: str, which: str) -> None:
        self._database, self._which = run.database, which
        path, _, method = name.rpartition(".")
        owner = attrgetter(path)(run.upstream) if path else run.upstream
        self._method = getattr(owner, method)
        self.ended = 0
        setattr(owner, method, self)

    def __call__(self, *arguments: object, **named: object) -> object:
        if not self.ended:
            self.ended = terminate(self._database, self._which)
        return self._method(*arguments, **named)


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("measure", EXPORTER),
        ("_epochs.log.read", EVERY),
        ("acknowledge", EVERY),
        ("bounds", EVERY),
        ("covered", OTHERS),
    ],
    ids=["while vnodes are measured", "before the log is read", "before the slot moves", "at the start", "marking"],
)
def test_connections_cut_during_planning_are_made_anew(
    database: Database, start_stream: StartStream, name: str, which: str
) -> None:
    database.execute('CREATE TABLE t (id text COLLATE "en_US.utf8" PRIMARY KEY, v text)')
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 300) i; ANALYZE t")
    run = start_stream(vnodeCount="5")
    if name != "bounds":
        run.judged_batch(30)
    terminating = Terminating(run, name, which)
    database.execute("UPDATE t SET v = 'new'")
    run.judged_batch(1000)
    run.backfill(1000)
    run.finish()
    assert terminating.ended > 0


def test_a_reader_cut_in_the_middle_of_its_chunk_goes_on_behind_the_last_row(
    database: Database, start_stream: StartStream
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE PLAIN")
    database.execute("INSERT INTO t SELECT i, repeat('x', 7000) FROM generate_series(1, 8000) i; ANALYZE t")
    run = start_stream(vnodeCount="2", numPartitions="1")
    run.plan(10_000)
    (part,) = run.parts()
    assert isinstance(part, SnapshotPart)
    ended, found = 0, []
    # Not through the part, which reads ahead: the server would be done before the first rows are here.
    for batch in run.upstream.reader().read(part.token, part.split.ranges):
        found += batch.column("id").to_pylist()
        if ended < 2:
            ended += terminate(database, "query LIKE 'COPY%' AND pid <> pg_backend_pid()")
    assert ended == 2
    assert found == list(range(1, 8001))


def test_a_reader_whose_state_is_gone_says_so_and_a_new_driver_reads_on(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="5")
    run.batch(30)
    run.plan(30)
    parts = run.parts()
    terminate(database, EXPORTER)
    with pytest.raises(SnapshotGoneError):
        run.read_part(parts[-1])
    churn(database, 1)
    run.restart()
    run.batch(30)
    run.finish()


def test_a_state_is_let_go_where_a_batch_that_was_to_end_at_it_is_refused(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 10)
    run = start_stream(vnodeCount="5")
    assert run.batch(3)
    database.execute("ALTER TABLE t ALTER v TYPE varchar(50)")
    with pytest.raises(SchemaChangedError):
        run.plan(3)
    # A server that is busy learns a little later that its client has closed the session.
    eventually(lambda: sessions(database, EXPORTER) == 0, otherwise=lambda: "the state is still held")
