"""`changelog=full` and `envelope=upsert`: whole rows before and after each change, whatever the log leaves out."""

from __future__ import annotations

import pytest

from backfill.errors import StateError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.large_values import change, documents
from integration.stream_harness import next_changes, table_of


@pytest.mark.parametrize("rows", [3, 100], ids=["in the middle of the backfill", "after it"])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_what_an_update_left_alone_is_filled_in(
    database: Database, start_stream: StartStream, identity: str, rows: int
) -> None:
    documents(database, identity=identity)
    run = start_stream(vnodeCount="3", numPartitions="1", changelog="full")
    for number in range(8):
        run.judged_batch(rows)
        change(database)
        if number % 3 == 2:
            run.restart()
    run.backfill(rows)
    run.finish()
    assert run.fold.counts["update_preimage"] == run.fold.counts["update_postimage"] > 20


def test_a_large_array_that_an_update_left_alone_is_filled_in(database: Database, start_stream: StartStream) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, title text, numbers bigint[]);"
        "ALTER TABLE t ALTER numbers SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT s, s, array_agg(s * i) FROM generate_series(1, 9) s, generate_series(1, 900) i GROUP BY s"
    )
    run = start_stream(changelog="full")
    run.backfill()
    database.execute("UPDATE t SET title = 'new'; UPDATE t SET title = 'newer', id = id + 100 WHERE id % 2 = 0")
    run.finish()
    assert (run.fold.counts["update_postimage"], run.fold.counts["delete"]) == (9, 4)


def test_updates_and_deletes_have_the_whole_row_before_them(database: Database, start_stream: StartStream) -> None:
    table_of(database, 3)
    run = start_stream(changelog="full")
    run.batch()
    database.execute(
        "UPDATE t SET v = 'a' WHERE id = 1; UPDATE t SET v = 'b' WHERE id = 1; UPDATE t SET v = v WHERE id = 2;"
        "UPDATE t SET id = 30 WHERE id = 3; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (2, NULL)"
    )
    expected = [
        ("update_preimage", 1, "v1"),
        ("update_postimage", 1, "a"),
        ("update_preimage", 1, "a"),
        ("update_postimage", 1, "b"),
        ("update_preimage", 2, "v2"),
        ("update_postimage", 2, "v2"),
        ("delete", 3, "v3"),
        ("insert", 30, "v3"),
        ("delete", 2, "v2"),
        ("insert", 2, None),
    ]
    assert next_changes(run) == expected
    database.execute("DELETE FROM t WHERE id IN (1, 30)")
    assert next_changes(run) == [("delete", 1, "b"), ("delete", 30, "v3")]
    figures = run.stream().report()
    assert (figures["state_rows"], int(figures["state_file_bytes"]) > 0) == (1, True)
    run.finish()


def test_rows_that_the_sink_left_unread_are_known(database: Database, start_stream: StartStream) -> None:
    """As where Spark drops the stream's side of a join, because the other one is empty."""
    table_of(database, 3)
    run = start_stream(changelog="full")
    assert run.plan()
    run.parts()
    run.committed += 1
    database.execute("DELETE FROM t WHERE id = 2")
    assert run.plan()
    assert [(row["_change_type"], row["id"], row["v"]) for row in run.read()] == [("delete", 2, "v2")]
    run.stop()


def test_an_upsert_that_changes_nothing_is_left_out(database: Database, start_stream: StartStream) -> None:
    table_of(database, 3)
    run = start_stream(envelope="upsert")
    run.batch()
    database.execute("UPDATE t SET v = v; UPDATE t SET v = 'b' WHERE id = 1; UPDATE t SET v = 'b' WHERE id = 1")
    assert next_changes(run) == [("update_preimage", 1, "v1"), ("update_postimage", 1, "b")]
    run.finish()


def test_the_two_options_may_take_each_others_place(database: Database, start_stream: StartStream) -> None:
    documents(database, identity="DEFAULT")
    run = start_stream(vnodeCount="3", numPartitions="1", envelope="upsert")
    ways = [("full", "operations"), ("logged", "upsert"), ("full", "upsert"), ("logged", "upsert")]
    for changelog, envelope in ways * 2:
        for _ in range(2):
            run.judged_batch(3)
            change(database)
        run.restart(changelog=changelog, envelope=envelope)
    run.backfill(3)
    run.finish()
    assert run.fold.counts["update_preimage"] == run.fold.counts["update_postimage"] > 20


@pytest.mark.parametrize("truncate", ["emit", "ignore"])
def test_after_a_truncation_rows_are_new_if_the_consumer_heard_of_it(
    database: Database, start_stream: StartStream, truncate: str
) -> None:
    table_of(database, 3)
    run = start_stream(changelog="full", onTruncate=truncate)
    run.batch()
    with database.connect() as connection:
        connection.execute("UPDATE t SET v = 'a' WHERE id = 1; TRUNCATE t; INSERT INTO t VALUES (1, 'new'), (9, 'new')")
    emitted = [("truncate", None, None), ("insert", 1, "new")]
    ignored = [("update_preimage", 1, "a"), ("update_postimage", 1, "new")]
    assert next_changes(run) == [
        ("update_preimage", 1, "v1"),
        ("update_postimage", 1, "a"),
        *(emitted if truncate == "emit" else ignored),
        ("insert", 9, "new"),
    ]


def test_a_table_of_nothing_but_its_key(database: Database, start_stream: StartStream) -> None:
    database.execute("CREATE TABLE t (b text, a int, PRIMARY KEY (a, b)); INSERT INTO t VALUES ('x', 1), ('y', 2)")
    run = start_stream(key=("a", "b"), changelog="full")
    run.batch()
    database.execute("DELETE FROM t WHERE a = 1; UPDATE t SET b = 'z' WHERE a = 2")
    run.finish()
    assert run.fold.counts == {"insert": 3, "delete": 2}


def test_a_row_that_comes_from_the_unread_part_is_looked_up(database: Database, start_stream: StartStream) -> None:
    """The log does not have its large values, and nobody has read them; also after a crash, and where it moves on."""
    documents(database, identity="DEFAULT", rows=20)
    run = start_stream(vnodeCount="1", numPartitions="1", changelog="full")
    run.judged_batch(4)
    for number in (12, 14, 16, 18, 20):
        database.execute(
            f"UPDATE t SET id = -{number} WHERE id = {number}; UPDATE t SET title = 'x' WHERE id = -{number};"
            f"UPDATE t SET id = -100 - id WHERE id IN (-12, -14); DELETE FROM t WHERE id IN (-16, -86)"
        )
        assert run.plan(4)
        if number == 18:
            run.parts()
            run.restart()  # with the state it was planned in; the rows staged by then are those that count
            database.execute("UPDATE t SET body = 'later' WHERE id IN (-88, -18)")
        run.judged_batch()
    run.finish()
    assert {key for (key,) in run.fold.rows if key < 0} == {-88, -18, -20}


def test_rows_are_looked_up_some_at_a_time_and_none_is_left_out(
    database: Database, start_stream: StartStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backfill.upstream.postgres.snapshot.reader.LOOKED_UP_AT_ONCE", 3)
    table_of(database, 11)
    run = start_stream()
    run.plan()
    assert run.pin is not None
    keys = run.upstream.typed([(str(number),) for number in range(1, 12)])
    found = [key for batch in run.upstream.lookup(run.pin, keys) for key in batch["id"].to_numpy().tolist()]
    assert sorted(found) == list(range(1, 12))


def test_rows_are_looked_up_after_the_backfill_as_well(database: Database, start_stream: StartStream) -> None:
    """Where the snapshot left them out, the first update of each comes without its large value."""
    documents(database, identity="DEFAULT", rows=20)
    run = start_stream(changelog="full", snapshotFilter="id <= 10")
    run.catch_up()
    for _ in range(2):
        database.execute("UPDATE t SET title = title || 'x' WHERE id IN (3, 13, 14)")
        run.catch_up()
        database.execute("UPDATE t SET id = id + 100 WHERE id IN (13, 114); UPDATE t SET body = 'new' WHERE id = 14")
        run.catch_up()
        run.restart()
    judged = {
        row[0]: row for row in database.execute("SELECT id, title, body FROM t WHERE id <= 10 OR id IN (14, 113)")
    }
    assert {key: (row["id"], row["title"], row["body"]) for (key,), row in run.fold.rows.items()} == judged


def test_last_rows_that_are_lost_end_the_stream_and_not_its_rows(database: Database, start_stream: StartStream) -> None:
    table_of(database, 30)
    run = start_stream(changelog="full")
    run.batch()
    run.stop()
    (run.folder / "state" / "upsert.duckdb").unlink()
    database.execute("UPDATE t SET v = 'a' WHERE id = 1")
    with pytest.raises(StateError, match=r"from epoch 1.*there is none.*Name the stateDir.*onExistingState=restart"):
        run.plan()
    run.restart(changelog="logged")
    run.fold.full = False
    run.finish()
    again = run.new_checkpoint()
    again.restart(changelog="full", onExistingState="restart")
    again.fold.full = True
    again.batch()
    database.execute("UPDATE t SET v = 'c' WHERE id = 1")
    again.finish()
    assert again.fold.counts["update_preimage"] == 1


def test_resuming_from_a_record_that_is_behind_the_last_rows_is_named_among_the_causes(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 3)
    run = start_stream(changelog="full")
    for value in ("a", "b"):
        run.batch()
        database.execute(f"UPDATE t SET v = '{value}' WHERE id = 1")
    run.batch()
    run.stop()
    again = run.new_checkpoint()
    with pytest.raises(StateError, match=r"progress belongs to; or set onExistingState=restart to read"):
        again.plan()
    again.restart(onExistingState="resume")
    with pytest.raises(
        StateError, match=r"stateDir has the last rows of epoch 3\..*onExistingState=resume.*behind the last rows"
    ):
        again.plan()
    again.stop()


def test_a_checkpoint_that_goes_on_without_last_rows_leaves_them_behind(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 3)
    run = start_stream(changelog="full")
    run.batch()
    run.restart(changelog="logged")
    run.fold.full = False
    database.execute("UPDATE t SET v = 'a' WHERE id = 1")
    run.catch_up()
    run.restart(changelog="full")
    with pytest.raises(StateError, match=r"goes on from epoch 2.*stateDir has the last rows of epoch 1"):
        run.plan()  # before anything is changed again
