"""What was the key is no longer one, or is that of another index."""

from __future__ import annotations

import pytest

from backfill.errors import SchemaChangedError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.scenarios import BACKFILLED, ended
from integration.stream_harness import table_of
from integration.versions import require_version


@BACKFILLED
@pytest.mark.parametrize(
    "statements",
    [
        pytest.param("INSERT INTO t VALUES (1, 'another')", id="none"),
        pytest.param("ALTER TABLE t ADD PRIMARY KEY (id, v); INSERT INTO t VALUES (1, 'another')", id="a larger one"),
        pytest.param("ALTER TABLE t ADD PRIMARY KEY (id) DEFERRABLE; UPDATE t SET id = id + 1", id="one checked later"),
        pytest.param(
            "ALTER TABLE t ALTER id DROP NOT NULL; CREATE UNIQUE INDEX ON t (id); INSERT INTO t VALUES (NULL), (NULL)",
            id="one with nulls",
        ),
    ],
)
def test_rows_that_share_what_was_the_key_end_the_stream(
    database: Database, start_stream: StartStream, rows: int, statements: str
) -> None:
    table_of(database, 100, identity="FULL")
    run = start_stream()
    run.batch(rows)
    database.execute(f"ALTER TABLE t DROP CONSTRAINT t_pkey; {statements}")
    ended(run, SchemaChangedError, r"the key \(id\).*no longer unique|a row without a value in the key column 'id'")


@BACKFILLED
@pytest.mark.parametrize("options", [{}, {"changelog": "full"}], ids=["logged", "full"])
def test_a_row_that_had_no_key_ends_the_stream_although_the_key_is_back(
    database: Database, start_stream: StartStream, rows: int, options: dict[str, str]
) -> None:
    table_of(database, 100, identity="FULL")
    run = start_stream(onTruncate="emit", **options)
    run.batch(rows)
    database.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ALTER id DROP NOT NULL; INSERT INTO t VALUES (NULL);"
        "DELETE FROM t WHERE id IS NULL; ALTER TABLE t ADD PRIMARY KEY (id)"
    )
    ended(run, SchemaChangedError, "a row without a value in the key column 'id'.*onExistingState=restart")


def test_a_key_that_older_rows_may_lack_ends_the_stream(database: Database, start_stream: StartStream) -> None:
    require_version(database, 180_000, "a NOT NULL that is not valid")
    table_of(database, 100, identity="FULL")
    run = start_stream()
    run.batch(20)
    database.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ALTER id DROP NOT NULL;"
        "ALTER TABLE t ADD NOT NULL id NOT VALID; CREATE UNIQUE INDEX ON t (id)"
    )
    ended(run, SchemaChangedError, r"the key \(id\).*no longer unique.*may be null")


def test_another_unique_index_on_the_key_will_do(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    run = start_stream()
    run.judged_batch(20)
    database.execute(
        "CREATE UNIQUE INDEX again ON t (id) INCLUDE (v); ALTER TABLE t DROP CONSTRAINT t_pkey;"
        "ALTER TABLE t REPLICA IDENTITY FULL; UPDATE t SET v = 'new' WHERE id < 50"
    )
    run.backfill(20)
    run.finish()


def test_a_label_of_the_key_that_was_renamed_is_reported_as_such(database: Database, start_stream: StartStream) -> None:
    database.execute(
        "CREATE TYPE size AS ENUM ('small', 'large');"
        "CREATE TABLE t (kind size, id int, v text NOT NULL, PRIMARY KEY (kind, id));"
        "INSERT INTO t SELECT (ARRAY['small', 'large'])[1 + i / 51]::size, i, 'v' FROM generate_series(1, 100) AS i"
    )
    run = start_stream()
    run.judged_batch(20)
    database.execute("ALTER TYPE size RENAME VALUE 'small' TO 'little'")
    ended(run, SchemaChangedError, "a label that the key's type no longer has.*give it back its name with ALTER TYPE")
    database.execute("ALTER TYPE size RENAME VALUE 'little' TO 'small'")
    run.restart()
    run.catch_up(20)
    run.require_equal()
