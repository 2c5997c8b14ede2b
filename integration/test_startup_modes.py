"""Streams that begin with the snapshot, begin without it, or have nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from backfill.__main__ import main
from backfill.adapters import open_upstream
from backfill.errors import OptionsError, TableError
from backfill.options import parse
from backfill.plan import MIN_SPLIT_ROWS
from backfill.progress import Finished
from backfill.vnode import WHOLE_TABLE
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import churn, table_of


def test_startup_mode_latest_begins_with_what_happens_next(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    run = start_stream(startupMode="latest")
    assert run.batch()
    assert not run.batch()
    database.execute("INSERT INTO t VALUES (101, 'new'); UPDATE t SET v = 'newer' WHERE id = 101")
    run.catch_up()
    run.restart()
    database.execute("DELETE FROM t WHERE id = 101; INSERT INTO t VALUES (102, 'new')")
    run.catch_up()
    assert run.fold.counts == {"insert": 2, "update_postimage": 1, "delete": 1}
    assert isinstance(run.barrier().progress, Finished)


def test_startup_mode_snapshot_is_one_batch_of_one_state(database: Database, start_stream: StartStream) -> None:
    table_of(database, 2 * MIN_SPLIT_ROWS)
    run = start_stream(startupMode="snapshot", numPartitions="2", vnodeCount="4")
    run.plan(10)
    judge = run.judge()
    churn(database, 1)
    parts = run.parts()
    assert len(parts) == 2
    rows = run.read_part(parts[0])
    churn(database, 2)
    run.commit(rows + run.read_part(parts[1]))
    judge()
    assert not run.batch()
    run.restart()
    assert not run.batch()
    assert database.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE UNLOGGED TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY NOTHING",
        """CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
        CREATE TABLE t_1 PARTITION OF t DEFAULT; ALTER TABLE t_1 REPLICA IDENTITY NOTHING""",
    ],
    ids=["unlogged", "no identity", "no identity of a partition"],
)
def test_a_table_whose_changes_the_log_does_not_have_can_be_read_as_it_is(
    database: Database, start_stream: StartStream, ddl: str
) -> None:
    database.execute(f"{ddl}; INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 100) i")
    run = start_stream(startupMode="snapshot")
    run.judged_batch()
    assert not run.batch()
    with closing(open_upstream(parse({**database.options, "dbtable": "t"}))) as upstream:
        assert sum(batch.num_rows for batch in upstream.reader().scan([WHOLE_TABLE])) == 100
    with pytest.raises(TableError, match=r"unlogged|REPLICA IDENTITY"):
        start_stream(stateDir=f"{run.options['stateDir']}-2").batch()


@pytest.mark.parametrize(
    ("began", "rows", "is_over"),
    [
        ("initial", 20, False),
        ("initial", 20, True),
        ("initial", 100, False),
        ("latest", 20, False),
        ("latest", 20, True),
    ],
)
def test_a_stream_that_follows_changes_cannot_go_on_as_a_snapshot_alone(
    database: Database, start_stream: StartStream, began: str, rows: int, is_over: bool
) -> None:
    """It would hold its slot and never have anything left to read, even where its first batch read all rows."""
    table_of(database, 60)
    run = start_stream(startupMode=began)
    run.batch(rows)
    if is_over:
        database.execute("INSERT INTO t VALUES (1000, 'new')")
        run.catch_up()
    run.restart(startupMode="snapshot")
    with pytest.raises(OptionsError, match="began with another startupMode, and now has startupMode=snapshot"):
        run.batch()
    run.restart(startupMode=began)
    database.execute("INSERT INTO t VALUES (1001, 'newer')")
    run.catch_up()


def test_a_snapshot_alone_is_dropped_without_a_word_of_a_slot_and_not_read_again(
    database: Database, start_stream: StartStream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table_of(database, 10)
    run = start_stream(startupMode="snapshot")
    folder = ("--state-dir", run.options["stateDir"])
    run.plan()
    for _ in range(2):
        for command in (["re-backfill"], ["pause"], ["throttle", "10"]):
            assert main([*command, *folder]) == 1
            assert "startupMode=snapshot is one batch" in capsys.readouterr().err
        for command in (["resume"], ["throttle", "off"]):  # of what an earlier stream was told
            assert main([*command, *folder]) == 0
            capsys.readouterr()
        run.batch()
        assert not run.plan()
    run.stop()
    assert main(["drop", *folder, "--url", database.url(tmp_path)]) == 0
    assert "slot" not in capsys.readouterr().out


def test_a_snapshot_alone_cannot_go_on_as_a_stream_that_follows_changes(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 60)
    run = start_stream(startupMode="snapshot")
    run.batch()
    run.restart(startupMode="initial")
    with pytest.raises(OptionsError, match="began with startupMode=snapshot, and now has another startupMode"):
        run.batch()


def test_a_snapshot_that_was_read_in_part_is_read_again_as_a_whole(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 2 * MIN_SPLIT_ROWS)
    run = start_stream(startupMode="snapshot", numPartitions="2", vnodeCount="4")
    run.plan()
    run.read_part(run.parts()[0])
    run.restart()
    churn(database, 1)
    run.batch()
    run.require_equal()
