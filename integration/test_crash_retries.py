"""Tasks that are run again, or twice at once, after the state they read at has been let go; also by two drivers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.epoch import Epoch
from backfill.errors import StateBusyError
from backfill.handoff import Part, SnapshotPart
from backfill.staging.batch_files import BatchFiles
from backfill.upstream import Pin
from backfill.upstream.postgres.adapter import PostgresUpstream
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.fold import Row
from integration.stream_harness import StreamRun
from integration.waiting import eventually
from integration.writers import BIGINT, TABLE

SIZE = 300

FEWEST = 20
"""The fewest rows that get a reader of their own, unless a whole vnode has fewer, as the last one may."""


def planned(database: Database, run: StreamRun) -> list[Part]:
    """The parts of a batch with several chunks, after which everything has changed."""
    run.plan()
    parts = run.parts()
    assert sum(isinstance(part, SnapshotPart) for part in parts) > 1
    database.execute(f"UPDATE {TABLE} SET note = 'too late', id = id + 1000000; DELETE FROM {TABLE} WHERE id % 2 = 0")
    return list(parts)


def held(database: Database) -> list[tuple[object, ...]]:
    """Sessions with an open transaction, and what they said last."""
    return database.execute(
        "SELECT pid, state, query FROM pg_stat_activity "
        "WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
    )


def wait_until_nothing_is_held(database: Database) -> None:
    eventually(lambda: not held(database), otherwise=lambda: f"still open: {held(database)}")


@pytest.fixture
def run(database: Database, start_stream: StartStream, monkeypatch: pytest.MonkeyPatch) -> StreamRun:
    BIGINT.create(database, SIZE, identity="FULL")
    monkeypatch.setattr("backfill.chunks.MIN_SPLIT_ROWS", FEWEST)
    monkeypatch.setattr("backfill.upstream.postgres.snapshot.reader.BATCH_BYTES", 1000)
    return start_stream(TABLE, select=BIGINT.select, vnodeCount="3", numPartitions="3")


def test_the_exporting_transaction_ends_with_the_last_chunk_and_not_with_the_next_trigger(
    database: Database, run: StreamRun
) -> None:
    parts = planned(database, run)
    rows: list[Row] = []
    for part in parts:
        assert held(database), "the state was let go before all chunks were read"
        rows += run.read_part(part)
    wait_until_nothing_is_held(database)
    run.commit(rows)
    run.finish()


def test_a_task_that_is_run_again_after_that_has_the_same_rows(database: Database, run: StreamRun) -> None:
    parts = planned(database, run)
    first = [run.read_part(part) for part in parts]
    wait_until_nothing_is_held(database)
    assert [run.read_part(part) for part in parts] == first
    run.commit([row for rows in first for row in rows])
    run.finish()


def test_an_attempt_that_is_overtaken_by_another_has_the_same_rows(
    database: Database, run: StreamRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = planned(database, run)
    first: list[list[Row]] = []
    plain = BatchFiles.require_shared

    def overtaken(files: BatchFiles) -> None:
        """Lets another attempt read all chunks after this one found its chunk not staged, and before it reads it."""
        plain(files)
        monkeypatch.setattr(BatchFiles, "require_shared", plain)
        first.extend(run.read_part(part) for part in parts)
        wait_until_nothing_is_held(database)

    monkeypatch.setattr(BatchFiles, "require_shared", overtaken)
    slow = run.read_part(parts[0])
    assert slow == first[0]
    run.commit([row for rows in first for row in rows])
    run.finish()


def test_a_sink_that_takes_single_rows_gets_none_that_another_attempt_would_not_have(
    database: Database, run: StreamRun
) -> None:
    """The driver and its readers die when some rows of a chunk have been passed on; then all of them change."""
    run.restart(stageBeforeEmit="true")
    run.plan()
    taken = next(run.batches_of(run.parts()[0]))
    run.stop()
    database.execute(f"UPDATE {TABLE} SET note = 'too late'; DELETE FROM {TABLE} WHERE id % 2 = 0")
    rows = run.read()
    assert taken
    assert [row for row in rows if row in taken] == taken
    run.commit(rows)
    run.finish()


def left_over(database: Database, run: StreamRun, monkeypatch: pytest.MonkeyPatch) -> list[Iterator[list[Row]]]:
    """Tasks in the middle of their chunks, left by a driver whose planning process died alone; the next has another."""
    monkeypatch.setattr("backfill.upstream.postgres.snapshot.reader.BATCH_BYTES", 100)
    monkeypatch.setattr("backfill.handoff.read_ahead", iter)  # Reading ahead could be at a chunk's end by now.
    parts = [part for part in planned(database, run) if isinstance(part, SnapshotPart)]
    # A chunk of a row or two would be staged when its first row is passed on.
    readers = [run.batches_of(part) for part in parts if part.split.row_count >= FEWEST]
    assert readers
    for reader in readers:
        next(reader)
    run.stop()
    return readers


def test_a_driver_that_was_followed_by_another_has_no_chunk_that_the_other_reads_as_well(
    database: Database, run: StreamRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other reads at another state: a sink that had the first chunk would lack the changes between the two."""
    readers = left_over(database, run, monkeypatch)
    rows = run.read()
    for reader in readers:
        with pytest.raises(StateBusyError, match="was planned again or ended"):
            list(reader)
    run.commit(rows)
    run.finish()


@pytest.mark.parametrize("every", [False, True], ids=["one", "all"])
def test_a_chunk_that_a_driver_before_had_when_the_next_one_planned_its_batch_is_the_same_for_both(
    database: Database, run: StreamRun, monkeypatch: pytest.MonkeyPatch, *, every: bool
) -> None:
    readers = left_over(database, run, monkeypatch)
    staged = readers if every else readers[:1]
    rest: list[Row] = []
    plain = PostgresUpstream.repin

    def repin(upstream: PostgresUpstream, after: Epoch) -> Pin:
        """Reads the rest of the chunks after they were found not staged, and before they are planned anew."""
        rest.extend(row for reader in staged for rows in reader for row in rows)
        return plain(upstream, after)

    monkeypatch.setattr(PostgresUpstream, "repin", repin)
    rows = run.read()
    assert rest
    assert [row for row in rows if row in rest] == rest
    if every:
        wait_until_nothing_is_held(database)
    run.commit(rows)
    run.finish()
