"""A stream begins only with a publication that is its own or named, and under which the table can be written to."""

from __future__ import annotations

import re

import pytest

from backfill.errors import DatabaseSetupError, DataLossError, TableError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import StreamRun, table_of
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


def goes_on(run: StreamRun) -> None:
    """The stream begins now, and others write while it reads."""
    run.restart()
    run.judged_batch(10)
    write(run.database)
    run.finish()


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
    goes_on(run)


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
    goes_on(run)


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
    goes_on(run)


def test_whole_rows_of_the_root_alone_keep_nobody_from_writing(database: Database, start_stream: StartStream) -> None:
    require_version(database, 180_000, "virtual generated columns")
    database.execute(f"{PARTITIONED.format(', g bigint GENERATED ALWAYS AS (id * 2) VIRTUAL')}; {FILL}")
    database.execute("ALTER TABLE t_2 REPLICA IDENTITY DEFAULT")
    run = start_stream(columns="id,v", select="id, v")
    run.judged_batch(10)
    write(database)
    run.finish()


def test_a_publication_that_was_made_as_advised_is_not_taken_for_the_streams_own(
    database: Database, start_stream: StartStream, stranger: str
) -> None:
    """The stream would be refused at its next start, and its role could do nothing about it."""
    table_of(database, 60)
    database.execute(f"ALTER ROLE {stranger} REPLICATION; GRANT SELECT ON t TO {stranger}")
    run = start_stream(sessionInitStatement=f"SET ROLE {stranger}")
    with pytest.raises(DatabaseSetupError) as caught:
        run.batch(20)
    advised = re.search(r"run (CREATE PUBLICATION .*?), and set publicationName=(\S+)", caught.value.message)
    assert advised is not None
    statement, name = advised.groups()
    database.execute(statement)
    run.restart()
    with pytest.raises(DatabaseSetupError, match=f"{name} .* not made by this stream; set publicationName={name}"):
        run.batch(20)
    run.restart(publicationName=name)
    run.judged_batch(20)
    run.restart()
    run.finish()


def test_a_trigger_that_lets_nobody_publish_is_reported_with_the_way_round(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 60)
    database.execute(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'no publications here'; END $$;"
        "CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse()"
    )
    run = start_stream()
    with pytest.raises(DatabaseSetupError, match="no publications here") as caught:
        run.batch(20)
    advised = re.search(r"run (CREATE PUBLICATION .*?), and set publicationName=(\S+)", caught.value.message)
    assert advised is not None
    database.execute("ALTER EVENT TRIGGER refuse DISABLE")
    database.execute(advised[1])
    database.execute("ALTER EVENT TRIGGER refuse ENABLE")
    run.restart(publicationName=advised[2])
    run.finish()


def test_a_role_that_may_not_accept_a_publication_that_was_made_again_is_told_who_may(
    database: Database, start_stream: StartStream, stranger: str
) -> None:
    table_of(database, 60)
    database.execute(
        f"ALTER ROLE {stranger} REPLICATION; ALTER TABLE t OWNER TO {stranger};"
        f"GRANT CREATE ON DATABASE {database.name} TO {stranger}"
    )
    run = start_stream(sessionInitStatement=f"SET ROLE {stranger}", failOnDataLoss="false")
    run.judged_batch(20)
    run.stop()
    database.execute(f"DROP PUBLICATION {run.slot}; CREATE PUBLICATION {run.slot} FOR TABLE t")
    with pytest.raises(DatabaseSetupError, match="must be owner of publication") as caught:
        run.batch(20)
    (statement,) = re.findall(r"let its owner run (COMMENT ON PUBLICATION .* IS '.*')", caught.value.message)
    database.execute(statement)
    run.restart()
    run.finish()


def test_a_partition_that_is_published_by_itself_and_with_its_root_is_followed(
    database: Database, start_stream: StartStream
) -> None:
    database.execute("CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE t PARTITION OF root FOR VALUES FROM (0) TO (100)")
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(0, 20) i")
    database.execute("CREATE PUBLICATION feed FOR TABLE root, t")
    run = start_stream(publicationName="feed")
    run.judged_batch(10)
    database.execute("UPDATE root SET v = 'w' WHERE id % 2 = 0; DELETE FROM t WHERE id = 3")
    run.finish()


@pytest.mark.parametrize("of", ["TABLE t", "ALL TABLES"])
def test_the_error_for_a_partition_that_is_published_as_its_root_names_the_ways_out(
    database: Database, start_stream: StartStream, of: str
) -> None:
    database.execute(f"{PARTITIONED.format('')}; {FILL}")
    database.execute(f"CREATE PUBLICATION feed FOR {of} WITH (publish_via_partition_root = true)")
    run = start_stream("t_1", publicationName="feed")
    with pytest.raises(DatabaseSetupError) as caught:
        run.batch()
    text = caught.value.message
    assert 'under the name of "public"."t": set dbtable to that name, or, for a new stream, leave out' in text
    assert "ALTER" not in text
    for number, options in enumerate(({"dbtable": "t"}, {"publicationName": ""})):
        run.restart(stateDir=f"{run.options['stateDir']}-{number}", **options)
        assert run.ask(10)
        run.restart(dbtable="t_1")


@pytest.mark.parametrize("given", [{}, {"publicationName": "feed"}], ids=["its own", "of a person"])
def test_a_table_that_was_taken_out_and_put_back_before_anything_was_read_has_lost_nothing(
    database: Database, start_stream: StartStream, given: dict[str, str]
) -> None:
    table_of(database, 40)
    if given:
        database.execute("CREATE PUBLICATION feed FOR TABLE t")
    run = start_stream(**given)
    run.ask(10)
    run.stop()
    [(name,)] = database.execute("SELECT pubname FROM pg_publication")
    database.execute(f"ALTER PUBLICATION {name} DROP TABLE t")
    write(database)
    database.execute(f"ALTER PUBLICATION {name} ADD TABLE t")
    goes_on(run)


@pytest.mark.parametrize("given", [{}, {"publicationName": "feed"}], ids=["its own", "of a person"])
@pytest.mark.parametrize("mode", ["initial", "latest"])
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_a_publication_that_is_altered_and_altered_back_before_the_log_is_read_first_has_perhaps_lost_changes(
    database: Database, start_stream: StartStream, given: dict[str, str], mode: str, *, restarts: bool
) -> None:
    table_of(database, 40)
    if given:
        database.execute("CREATE PUBLICATION feed FOR TABLE t")
    run = start_stream(startupMode=mode, **given)
    run.plan(10)
    if restarts:
        run.restart()
    run.commit(run.read())
    [(name,)] = database.execute("SELECT pubname FROM pg_publication")
    database.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert')")
    write(database)
    database.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')")
    with pytest.raises(DataLossError, match=f"publication {name} was altered"):
        run.catch_up()
