"""Chunks that were staged before the table was given other columns."""

from __future__ import annotations

import pytest

from backfill.errors import SchemaChangedError
from integration.database import Database
from integration.definition import refused
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of


@pytest.mark.parametrize("change", ["RENAME v TO w", "DROP COLUMN v, ADD COLUMN w text DEFAULT 'w'"])
def test_a_staged_chunk_of_a_column_that_has_another_name_now_is_refused(
    database: Database, start_stream: StartStream, change: str
) -> None:
    """The chunk has the value under the old name, or had one that may be it."""
    table_of(database, 100)
    run = start_stream(vnodeCount="1")
    run.batch(30)
    run.plan(30)
    run.read()
    database.execute(f"ALTER TABLE t {change}")
    run.restart()
    refused(run, SchemaChangedError, "staged without column w")


def test_a_staged_chunk_without_a_column_that_was_there_is_refused(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    database.execute("ALTER TABLE t ADD COLUMN w text DEFAULT 'w'")
    run = start_stream(vnodeCount="1", columns="id,v")
    run.select = "id, v"
    run.batch(30)
    run.plan(30)
    run.read()
    run.restart(columns="id,v,w")
    refused(run, SchemaChangedError, "staged without column w.*options columns")
    run.restart(columns="id,v")
    run.backfill(30)
    run.finish()


def test_a_snapshot_is_not_read_in_part_without_a_column_that_was_added(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = start_stream(startupMode="snapshot")
    run.plan()
    run.read()
    database.execute("ALTER TABLE t ADD COLUMN extra int DEFAULT 7")
    run.restart()
    refused(run, SchemaChangedError, "extra.*options columns")
    run.restart(columns="id,v")
    run.select = "id, v"
    run.finish()


@pytest.mark.parametrize(
    ("before", "now"), [("int", "bigint"), ("numeric(5, 2)", "numeric(9, 2)"), ("real", "double precision")]
)
def test_a_staged_chunk_of_a_column_that_was_widened_is_read_as_its_rows_are_now(
    database: Database, start_stream: StartStream, before: str, now: str
) -> None:
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {before})")
    database.execute("INSERT INTO t SELECT i, i / 8.0 FROM generate_series(1, 100) i; ANALYZE t")
    run = start_stream(vnodeCount="1")
    run.batch(40)
    run.plan(40)
    run.read()
    database.execute(f"ALTER TABLE t ALTER v TYPE {now}")
    run.restart()
    run.finish()
