"""A stream begins only with a publication under which the table can be written to."""

from __future__ import annotations

import re

import pytest

from backfill.errors import DatabaseSetupError, TableError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.versions import require_version

PLAIN = "CREATE TABLE t (id bigint PRIMARY KEY, v text{0}); ALTER TABLE t REPLICA IDENTITY FULL"
PARTITIONED = """
    CREATE TABLE t (id bigint PRIMARY KEY, v text{0}) PARTITION BY RANGE (id);
    CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (20);
    CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (20) TO (1000);
    ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t_2 REPLICA IDENTITY FULL
"""
FILL = "INSERT INTO t (id, v) SELECT i, 'v' FROM generate_series(1, 40) i"


def write(database: Database) -> None:
    database.execute("UPDATE t SET v = v || '+' WHERE id % 2 = 0; DELETE FROM t WHERE id % 19 = 0")


def mend(refusal: pytest.ExceptionInfo[TableError]) -> str:
    found = re.search(r"run (ALTER TABLE .*? REPLICA IDENTITY DEFAULT)", refusal.value.message, re.IGNORECASE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("table", [PLAIN, PARTITIONED], ids=["plain", "partitioned"])
def test_a_table_whose_writers_would_fail_once_it_is_published_is_refused(
    database: Database, start_stream: StartStream, table: str
) -> None:
    require_version(database, 180_000, "virtual generated columns")
    database.execute(f"{table.format(', g bigint GENERATED ALWAYS AS (id * 2) VIRTUAL')}; {FILL}")
    run = start_stream(columns="id,v", select="id, v")
    with pytest.raises(TableError, match=r"FULL, and virtual generated column g is never published: .* refuses") as it:
        run.batch()
    assert database.execute("SELECT pubname FROM pg_publication") == []
    write(database)
    database.execute(mend(it))
    run.restart()
    run.judged_batch(10)
    write(database)
    run.finish()


@pytest.mark.parametrize("table", [PLAIN, PARTITIONED], ids=["plain", "partitioned"])
def test_a_list_of_columns_that_makes_writers_fail_is_refused(
    database: Database, start_stream: StartStream, table: str
) -> None:
    require_version(database, 150_000, "a publication of some columns")
    database.execute(f"{table.format(', w text')}; {FILL}")
    database.execute("CREATE PUBLICATION feed FOR TABLE t (id, v) WITH (publish_via_partition_root = true)")
    run = start_stream(columns="id,v", select="id, v", publicationName="feed")
    with pytest.raises(TableError, match=r"publication feed has a list of its columns.* publish it without") as it:
        run.batch()
    database.execute(mend(it))
    run.restart()
    run.judged_batch(10)
    write(database)
    run.finish()


def test_a_publication_without_stored_columns_that_makes_writers_fail_is_refused(
    database: Database, start_stream: StartStream
) -> None:
    require_version(database, 180_000, "the publication of stored generated columns")
    database.execute(f"{PLAIN.format(', g bigint GENERATED ALWAYS AS (id * 2) STORED')}; {FILL}")
    database.execute("CREATE PUBLICATION feed FOR TABLE t WITH (publish_via_partition_root = true)")
    run = start_stream(columns="id,v", select="id, v", publicationName="feed")
    with pytest.raises(TableError, match="publication feed leaves out stored generated column g") as it:
        run.batch()
    (statement,) = re.findall(r"ALTER PUBLICATION .*? = stored\)", it.value.message)
    database.execute(statement)
    run.restart()
    run.judged_batch(10)
    write(database)
    run.finish()


def test_whole_rows_of_the_root_alone_keep_nobody_from_writing(database: Database, start_stream: StartStream) -> None:
    require_version(database, 180_000, "virtual generated columns")
    database.execute(f"{PARTITIONED.format(', g bigint GENERATED ALWAYS AS (id * 2) VIRTUAL')}; {FILL}")
    database.execute("ALTER TABLE t_2 REPLICA IDENTITY DEFAULT")
    run = start_stream(columns="id,v", select="id, v")
    run.judged_batch(10)
    write(database)
    run.finish()


@pytest.mark.parametrize("of", ["TABLE t", "ALL TABLES"])
def test_a_partition_that_is_published_as_its_root_is_told_the_ways_out(
    database: Database, start_stream: StartStream, of: str
) -> None:
    database.execute(f"{PARTITIONED.format('')}; {FILL}")
    database.execute(f"CREATE PUBLICATION feed FOR {of} WITH (publish_via_partition_root = true)")
    run = start_stream("t_1", publicationName="feed")
    with pytest.raises(DatabaseSetupError) as caught:
        run.batch()
    text = caught.value.message
    assert 'under the name of "public"."t": set dbtable to that, or, for a new stream, leave out publication' in text
    assert "ALTER" not in text
    for number, options in enumerate(({"dbtable": "t"}, {"publicationName": ""})):
        run.restart(stateDir=f"{run.options['stateDir']}-{number}", **options)
        assert run.ask(10)
        run.restart(dbtable="t_1")
