"""The key is given another order while a batch is planned and not yet read."""

from __future__ import annotations

import pytest

from backfill.errors import DefiniteError, SchemaChangedError, TableError
from integration.collated import COLLATE, COLLATED, followed
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import StreamRun

INDEX = (
    'CREATE UNIQUE INDEX other ON t (id COLLATE "{}"); ALTER TABLE t REPLICA IDENTITY USING INDEX other;'
    "ALTER TABLE t DROP CONSTRAINT IF EXISTS t_pkey"
)


def not_read(run: StreamRun, kind: type[DefiniteError], match: str) -> None:
    """Requires that the planned batch is not read; ends the driver."""
    with pytest.raises(kind, match=match):
        run.read()
    run.stop()


@pytest.mark.parametrize("most", [20, 1000], ids=["a chunk", "the last chunk"])
def test_a_batch_that_was_planned_is_not_read_in_another_order(
    database: Database, start_stream: StartStream, most: int
) -> None:
    """Its positions would name other rows, and the changes that concern what was emitted would be other ones."""
    database.execute(COLLATED.format("C"))
    run = start_stream(vnodeCount="1", numPartitions="1")
    run.batch(60)
    database.execute("UPDATE t SET v = 'new'")
    run.plan(most)
    run.stop()
    database.execute(COLLATE.format("en_US.utf8"))
    not_read(run, SchemaChangedError, 'another collation.*expected "id" "pg_catalog"."C".*Change it back')
    database.execute(COLLATE.format("C"))
    run.backfill(30)
    run.finish()


@pytest.mark.parametrize(
    ("alter", "kind", "match"),
    [
        (COLLATE.format("en_US.utf8"), SchemaChangedError, "another collation"),
        ("ALTER TABLE t RENAME TO former; CREATE TABLE t (LIKE former INCLUDING ALL)", TableError, "former"),
    ],
    ids=["another order", "another table"],
)
def test_a_chunk_is_not_read_later_of_what_has_changed_since_the_process_began(
    database: Database, start_stream: StartStream, alter: str, kind: type[DefiniteError], match: str
) -> None:
    database.execute(COLLATED.format("C"))
    run = start_stream(vnodeCount="1", numPartitions="1")
    run.plan(60)
    run.restart()
    run.upstream.schema()
    database.execute(alter)
    not_read(run, kind, match)


@pytest.mark.parametrize(
    ("alter", "back"),
    [
        (COLLATE.format("en_US.utf8"), COLLATE.format("C")),
        (INDEX.format("en_US.utf8"), f"DROP INDEX other; {INDEX.format('C')}"),
    ],
    ids=["the column's", "the index's"],
)
def test_a_snapshot_alone_that_was_planned_is_not_read_in_another_order(
    database: Database, start_stream: StartStream, alter: str, back: str
) -> None:
    database.execute(COLLATED.format("C"))
    run = start_stream(startupMode="snapshot", vnodeCount="4", numPartitions="2")
    run.plan()
    run.stop()
    database.execute(alter)
    not_read(run, SchemaChangedError, "another .*collation")
    database.execute(back)
    run.batch()
    run.require_equal()


def test_a_snapshot_alone_that_was_read_has_nothing_left_that_an_order_matters_to(
    database: Database, start_stream: StartStream
) -> None:
    database.execute(COLLATED.format("C"))
    run = start_stream(startupMode="snapshot", vnodeCount="4", numPartitions="2")
    run.plan()
    run.restart()  # The state of the plan is lost, and all chunks are read at a later one.
    run.batch()
    run.stop()
    database.execute(COLLATE.format("en_US.utf8"))
    assert not run.batch()
    run.require_equal()


def test_after_the_backfill_a_batch_that_was_planned_is_read_in_whatever_order(
    database: Database, start_stream: StartStream
) -> None:
    database.execute(COLLATED.format("C"))
    run = followed(start_stream())
    database.execute("UPDATE t SET v = 'later' WHERE id < 'a'")
    run.plan()
    run.stop()
    database.execute(COLLATE.format("en_US.utf8"))
    run.catch_up()
    run.finish()
