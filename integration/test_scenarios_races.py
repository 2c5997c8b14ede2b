"""Writes at every moment of a batch: none is lost, none comes twice, no old version comes after a newer one."""

from __future__ import annotations

import pytest

from backfill.progress import Finished, Frontier
from backfill.state_dir.record import FOLLOW_INTERVAL
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.fold import Row
from integration.stream_harness import StreamRun, table_of
from integration.waiting import eventually


def kinds(rows: list[Row], id: int) -> list[str]:  # noqa: A002 - it is the column's name
    """What happened to this key, in order."""
    found = [row for row in rows if row["id"] == id]
    return [row["_change_type"] for row in sorted(found, key=lambda row: row["_sequence"])]


def write_around(database: Database, moment: int, first: int) -> None:
    """Inserts, updates, deletes and moves in a stretch of forty keys from `first`; different ones at each moment."""
    at = first + 4 * moment
    database.execute(
        f"UPDATE t SET v = 'new {moment}' WHERE id IN ({at}, {at + 20});"
        f"DELETE FROM t WHERE id IN ({at + 1}, {at + 21});"
        f"INSERT INTO t VALUES ({at + 1}, 'again'), ({-at}, 'before all'), ({at + 100_000}, 'behind all')"
        "ON CONFLICT (id) DO UPDATE SET v = 'there before';"
        f"UPDATE t SET id = id + 1000000 WHERE id = {at + 2};"
        f"UPDATE t SET id = id - 1000000 WHERE id = {at + 22}"
    )


def test_writes_at_every_moment_of_a_batch_come_once_and_in_order(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 600)
    run = start_stream(vnodeCount="3", numPartitions="1")
    number = 0
    while not number or not run.backfilled:
        number += 1
        first = 40 * number % 560 + 1
        write_around(database, 0, first)
        run.plan(40)
        judge = run.judge()
        write_around(database, 1, first)
        parts = run.parts()
        write_around(database, 2, first)
        rows = [row for part in parts for row in run.read_part(part)]
        write_around(database, 3, first)
        run.commit(rows)
        write_around(database, 4, first)
        judge()
    run.finish()


def test_a_change_ahead_of_the_position_comes_if_the_open_chunk_still_holds_the_row_before(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = start_stream(vnodeCount="1", numPartitions="1")
    run.batch(10)
    run.plan(10)
    database.execute("UPDATE t SET v = 'new' WHERE id = 15; DELETE FROM t WHERE id = 16")
    rows = run.read()
    assert [row["v"] for row in rows if row["id"] == 15] == ["v15"]
    assert kinds(rows, 16) == ["insert"]
    run.commit(rows)
    run.plan(10)
    rows = run.read()
    assert kinds(rows, 15) == ["update_postimage"]
    assert kinds(rows, 16) == ["delete"]
    run.commit(rows)
    run.finish()


def test_a_change_ahead_of_the_position_is_left_out_if_the_chunk_shows_it(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = start_stream(vnodeCount="1", numPartitions="1")
    run.batch(10)
    database.execute("UPDATE t SET v = 'new' WHERE id = 15; DELETE FROM t WHERE id = 16; INSERT INTO t VALUES (0, 'v')")
    run.plan(10)
    rows = run.read()
    assert [(row["_change_type"], row["v"]) for row in rows if row["id"] == 15] == [("insert", "new")]
    assert kinds(rows, 16) == []
    assert kinds(rows, 0) == ["insert"]
    run.commit(rows)
    run.finish()


def test_changes_of_a_batch_without_snapshot_rows_do_not_come_again(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 300)
    run = start_stream(vnodeCount="4")
    run.batch(100)
    for round_ in range(40):
        database.execute(f"UPDATE t SET v = 'round {round_}' WHERE id = 1")
    before = run.barrier().progress
    run.batch(30)
    assert run.barrier().progress == before
    assert run.fold.counts["update_postimage"] < 40
    run.finish()
    assert run.fold.counts["update_postimage"] == 40


def test_an_empty_table_is_finished_at_once_and_followed(database: Database, start_stream: StartStream) -> None:
    table_of(database, 0)
    run = start_stream()
    run.batch()
    assert run.backfilled
    run.restart()
    database.execute("INSERT INTO t VALUES (1, 'first')")
    run.batch()
    assert isinstance(run.barrier().progress, Finished)
    run.finish()
    assert run.fold.counts == {"insert": 1}
    assert not run.batch()


def test_vnodes_that_lost_all_their_rows_are_finished_and_their_keys_followed(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 400)
    run = start_stream(vnodeCount="8", numPartitions="1")
    run.judged_batch(20)
    database.execute("DELETE FROM t WHERE id > 60")
    run.backfill(20)
    run.restart()
    database.execute("INSERT INTO t SELECT i, 'late' FROM generate_series(100, 1000, 50) i")
    run.finish()
    assert run.fold.counts["insert"] == 60 + 19


def test_a_finished_backfill_is_not_read_again_after_a_restart(database: Database, start_stream: StartStream) -> None:
    table_of(database, 50)
    run = start_stream()
    run.backfill(20)
    run.restart()
    database.execute("INSERT INTO t VALUES (1000, 'beyond the last position')")
    run.catch_up()
    run.restart()
    database.execute("INSERT INTO t VALUES (1001, 'beyond that')")
    run.finish()
    assert run.fold.counts == {"insert": 52}


@pytest.mark.parametrize(
    ("old", "new", "at_old", "at_new"),
    [
        pytest.param(10, 11, ["delete"], ["insert"], id="behind to behind in the same vnode"),
        pytest.param(10, 211, ["delete"], ["insert"], id="behind to behind in another vnode"),
        pytest.param(10, 61, ["delete"], [], id="behind to ahead in the same vnode"),
        pytest.param(10, 261, ["delete"], [], id="behind to ahead in another vnode"),
        pytest.param(60, 11, [], ["insert"], id="ahead to behind in the same vnode"),
        pytest.param(260, 11, [], ["insert"], id="ahead to behind in another vnode"),
        pytest.param(60, 61, [], [], id="ahead to ahead in the same vnode"),
        pytest.param(60, 261, [], [], id="ahead to ahead in another vnode"),
    ],
)
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_moved_key_goes_from_where_it_was_emitted_to_where_it_is_emitted(
    database: Database,
    start_stream: StartStream,
    identity: str,
    old: int,
    new: int,
    at_old: list[str],
    at_new: list[str],
) -> None:
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text); INSERT INTO t SELECT i * 10 FROM generate_series(1, 40) i;"
        f"ALTER TABLE t REPLICA IDENTITY {identity}; ANALYZE t"
    )
    run = start_stream(vnodeCount="3", numPartitions="2")
    run.judged_batch(10)
    emitted = [(item.after, item.upto) for item in run.coverage]
    assert emitted == [(None, ("50",)), (("200",), ("250",)), (("400",), None)]
    # As a stream does that waits for the log to be flushed. Before PostgreSQL 15 such a transaction counts as changes.
    database.execute("SELECT pg_logical_emit_message(true, 'backfill', '')")
    database.execute(f"UPDATE t SET id = {new} WHERE id = {old}")
    run.plan(10)  # More than the changes of one transaction.
    rows = [row for row in run.read() if not row["_is_snapshot"]]
    assert kinds(rows, old) == at_old
    assert kinds(rows, new) == at_new
    run.commit(run.read())
    run.backfill(10)
    run.finish()


def test_changes_while_the_reader_starts_again_are_not_lost(database: Database, start_stream: StartStream) -> None:
    table_of(database, 200)
    run = start_stream(vnodeCount="3")
    number = 0
    while not number or not run.backfilled:
        number += 1
        run.judged_batch(20)
        run.restart()
        write_around(database, number % 5, 10 * number)
        assert run.stream().rows.table.key == ("id",)
        write_around(database, (number + 1) % 5, 10 * number + 60)
    run.finish()


def test_the_snapshot_advances_however_much_is_written(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    run = start_stream(vnodeCount="4", numPartitions="2")
    run.judged_batch(20)
    for round_ in range(100):
        # Ten times as many changes as a batch may take, to rows that were emitted and to rows that were not.
        database.execute(f"UPDATE t SET v = 'round {round_}'; UPDATE t SET v = v || '!'")
        run.judged_batch(20)
        if run.backfilled:
            break
    assert run.backfilled
    run.finish()


@pytest.mark.parametrize("table", ["t", "other"])
def test_large_transactions_with_savepoints_that_are_rolled_back_say_nothing(
    database: Database, start_stream: StartStream, table: str
) -> None:
    """Version 18 has a message for them that the protocol does not."""
    table_of(database, 60)
    database.execute(
        "CREATE TABLE other (LIKE t INCLUDING ALL);"
        f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'"
    )
    run = start_stream()
    ends = ("ROLLBACK", "PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'", "COMMIT")
    for number, end in enumerate(ends, start=1):
        run.judged_batch(20)
        with database.connect(autocommit=True) as session:
            many = f"INSERT INTO {table} SELECT {number} * 10000 + i, repeat('x', 100) FROM generate_series(1, 3000) i"
            few = f"INSERT INTO {table} VALUES (-{number}, 'in a savepoint')"
            for statement in ("BEGIN", "SAVEPOINT a", few, "RELEASE a", many, *end.split("; ")):
                session.execute(statement.encode())
        database.execute(f"INSERT INTO t VALUES (-{number}0, 'afterwards')")
    run.finish()


@pytest.fixture
def run_of_many(database: Database, start_stream: StartStream, monkeypatch: pytest.MonkeyPatch) -> StreamRun:
    """A stream that has read the changes of a large transaction, which are in a file."""
    monkeypatch.setattr("backfill.upstream.postgres.changes.spool.IN_MEMORY", 1000)
    table_of(database, 300)
    run = start_stream()
    run.backfill()
    database.execute("UPDATE t SET v = 'of many'")
    run.batch()
    return run


def test_the_file_of_a_large_transaction_goes_with_its_batch_and_not_with_the_next_one(run_of_many: StreamRun) -> None:
    kept = run_of_many.upstream._epochs.log.kept._last
    assert kept is not None
    assert not kept.peeked.rows._file.closed

    def is_gone() -> bool:  # Progress is recorded, and the log acknowledged, now and then.
        return not run_of_many.batch() and bool(kept.peeked.rows._file.closed)

    eventually(is_gone, seconds=FOLLOW_INTERVAL + 30)
    run_of_many.finish()


def test_the_file_of_a_large_transaction_goes_with_the_stream(run_of_many: StreamRun) -> None:
    kept = run_of_many.upstream._epochs.log.kept._last
    assert kept is not None
    run_of_many.stop()
    assert kept.peeked.rows._file.closed


def test_a_table_that_grows_at_its_end_faster_than_it_is_read_is_finished(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 200)
    run = start_stream(vnodeCount="4", numPartitions="2")
    end = 200
    run.judged_batch(50)
    for _ in range(60):
        # More than a batch takes, always beyond the last key.
        database.execute(f"INSERT INTO t SELECT i, 'v' FROM generate_series({end + 1}, {end + 100}) i")
        end += 100
        run.judged_batch(50)
        if run.backfilled:
            break
    assert run.backfilled
    run.finish()


def test_readers_may_be_more_or_fewer_in_every_batch_and_after_every_restart(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 90_000)
    run = start_stream(vnodeCount="10", numPartitions="3")
    for readers in ("3", "1", "4"):
        run.restart(numPartitions=readers)
        run.plan(41_000)
        judge = run.judge()
        if readers == "3":
            run.restart(numPartitions="5")
        parts = run.parts()
        run.commit([row for part in parts for row in run.read_part(part)])
        if readers != "3":
            judge()
        write_around(database, 0, 20_000 * int(readers))
    run.finish()
    assert isinstance(run.barrier().progress, Frontier | Finished)
