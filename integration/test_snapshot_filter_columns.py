"""Rows are not chosen by columns that have been replaced by others."""

from __future__ import annotations

import pytest

from backfill.errors import SchemaChangedError
from integration.database import Database
from integration.definition import REPLACED
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of


@pytest.mark.parametrize("when", ["planned", "between chunks", "stopped"])
@pytest.mark.parametrize("change", REPLACED)
def test_rows_are_not_chosen_by_another_column_that_has_the_name_of_the_one_before(
    database: Database, start_stream: StartStream, when: str, change: str
) -> None:
    """A stream need not carry the columns by which it chooses."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w text)")
    database.execute("INSERT INTO t SELECT i, i % 2, 1 - i % 2 FROM generate_series(1, 100) i; ANALYZE t")
    run = start_stream(columns="id", snapshotFilter="v = '0'", vnodeCount="2", numPartitions="1")
    run.batch(10)
    assert run.plan(10)
    if when != "planned":
        run.commit(run.read())
    if when == "stopped":
        run.stop()
    database.execute(REPLACED[change])
    with pytest.raises(SchemaChangedError, match=r"column v of|a column of .* that snapshotFilter names"):
        run.commit(run.read()) if when == "planned" else run.batch(10)
    run.restart()
    with pytest.raises(SchemaChangedError, match=r"a column of .* that snapshotFilter names"):
        run.batch(10)


def test_a_column_that_is_added_with_the_name_of_a_word_of_the_filter_is_none_that_it_is_of(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = start_stream(columns="id", snapshotFilter="v <> 'open' AND lower(v) <> 'shut' -- w", select="id")
    run.batch(10)
    run.stop()
    database.execute("ALTER TABLE t ADD open text, ADD shut text, ADD w text, ADD lower text")
    run.restart()
    run.finish()
    run.stop()
    database.execute("ALTER TABLE t DROP open, DROP shut, DROP w")
    run.restart()
    run.finish()


@pytest.mark.parametrize("change", ["DROP v", "RENAME v TO other", "ALTER v TYPE int USING v::int"])
def test_a_column_that_rows_are_chosen_by_and_is_gone_is_named_with_what_goes_on(
    database: Database, start_stream: StartStream, change: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w text)")
    database.execute("INSERT INTO t SELECT i, i % 2, i FROM generate_series(1, 100) i; ANALYZE t")
    run = start_stream(columns="id", snapshotFilter="v IN ('0')", vnodeCount="2", numPartitions="1", select="id")
    run.batch(10)
    database.execute(f"ALTER TABLE t {change}")
    with pytest.raises(SchemaChangedError, match=r"column v of .*, by which snapshotFilter chooses rows, was dropped"):
        run.batch(10)
    if change.startswith("RENAME"):
        database.execute("ALTER TABLE t RENAME other TO v")
        run.restart()
        run.batch(100)
        assert sorted(run.fold.rows) == [(number,) for number in range(2, 101, 2)]
