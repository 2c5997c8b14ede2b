"""What the role may do: a stream needs no more than the README says."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from backfill.__main__ import main
from backfill.errors import DatabaseSetupError, TableError
from backfill.options import parse
from backfill.upstream.postgres.doctor import examine
from backfill.vnode import WHOLE_TABLE
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.standby import become_standby
from integration.stream_harness import table_of
from integration.versions import require_before


@pytest.fixture
def follower(database: Database, stranger: str) -> str:
    """A role that owns nothing and may use replication slots."""
    database.execute(f"ALTER ROLE {stranger} REPLICATION")
    return stranger


def test_a_role_that_may_read_some_columns_only_streams_and_reads_them(
    database: Database, start_stream: StartStream, follower: str
) -> None:
    table_of(database, 60)
    database.execute(
        "ALTER TABLE t ADD COLUMN secret text; CREATE PUBLICATION feed FOR TABLE t;"
        f"GRANT SELECT (id, v) ON t TO {follower}"
    )
    become = f"SET ROLE {follower}"
    run = start_stream(publicationName="feed", columns="id,v", select="id, v", sessionInitStatement=become)
    run.judged_batch(20)
    database.execute("UPDATE t SET v = 'new' WHERE id % 2 = 0; DELETE FROM t WHERE id = 7")
    run.backfill(20)
    rows = [row for batch in run.upstream.reader().scan([WHOLE_TABLE]) for row in batch.to_pylist()]
    assert {(row["id"],): row for row in rows} == run.fold.rows
    run.finish()


EXTENSION = """
    CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext; CREATE DOMAIN ext.name AS ext.citext;
    REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA ext FROM PUBLIC;
    CREATE TABLE t (id int PRIMARY KEY, v ext.citext NOT NULL, w ext.citext[], d ext.name);
    INSERT INTO t SELECT i, 'V' || i, ARRAY['W', NULL], nullif('D' || i, 'D1') FROM generate_series(1, 40) i;
    CREATE PUBLICATION feed FOR TABLE t
"""


def test_a_role_that_may_read_a_column_needs_no_right_to_its_type(
    database: Database, start_stream: StartStream, follower: str
) -> None:
    database.execute(f"{EXTENSION}; GRANT SELECT ON t TO {follower}")
    run = start_stream(publicationName="feed", sessionInitStatement=f"SET ROLE {follower}", changelog="full")
    assert [found.what for found in examine(parse(run.options)) if found.refuses] == []
    run.batch(20)
    database.execute("UPDATE t SET v = 'new' WHERE id % 2 = 0")
    run.catch_up()
    assert run.fold.rows[(1,)] == {"id": 1, "v": "V1", "w": ["W", None], "d": None}
    assert run.fold.rows[(40,)] == {"id": 40, "v": "new", "w": ["W", None], "d": "D40"}


def test_a_role_that_may_not_compare_the_key_is_told_which_rights_are_missing(
    database: Database, start_stream: StartStream, follower: str
) -> None:
    database.execute(f"{EXTENSION}; GRANT SELECT ON t TO {follower}; ALTER TABLE t DROP COLUMN id, ADD PRIMARY KEY (v)")
    run = start_stream(publicationName="feed", sessionInitStatement=f"SET ROLE {follower}", key=("v",))

    def refused() -> list[str]:
        return [found.what for found in examine(parse(run.options)) if found.refuses]

    assert "for schema ext). Run GRANT USAGE ON SCHEMA" in refused()[0]
    database.execute(f"GRANT USAGE ON SCHEMA ext TO {follower}")
    assert "for function citext_le). Run" in refused()[0]
    database.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA ext TO {follower}")
    assert refused() == []
    run.catch_up()


def test_an_owner_who_may_not_make_a_publication_is_told_which_right_is_missing(
    database: Database, start_stream: StartStream, follower: str
) -> None:
    table_of(database, 10)
    database.execute(f"ALTER TABLE t OWNER TO {follower}")
    run = start_stream(sessionInitStatement=f"SET ROLE {follower}")
    with pytest.raises(DatabaseSetupError) as caught:
        run.batch()
    grant = re.search(r"Where it owns the table, run (GRANT .*?)\. Else", caught.value.message)
    assert grant is not None
    database.execute(grant[1])
    run.finish()


def test_an_owner_who_took_all_rights_but_reading_from_itself_publishes_the_table(
    database: Database, start_stream: StartStream, follower: str
) -> None:
    table_of(database, 20)
    database.execute(
        f"ALTER TABLE t OWNER TO {follower}; REVOKE ALL ON t FROM {follower}; GRANT SELECT ON t TO {follower};"
        f"GRANT CREATE ON DATABASE {database.name} TO {follower}"
    )
    run = start_stream(sessionInitStatement=f"SET ROLE {follower}")
    run.backfill()
    run.finish()


@pytest.mark.parametrize("managed", [False, True], ids=["anywhere", "on Amazon RDS"])
def test_a_role_that_may_not_use_slots_is_told_the_statement_that_lets_it(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, *, managed: bool
) -> None:
    """On Amazon RDS a role stands for that right; a name may need quotes, and need not be the one that logged in."""
    database = Database(start_postgres(), "postgres")
    table_of(database, 60)
    role = '"My-app"'
    database.execute(f"CREATE ROLE {role}; ALTER TABLE t OWNER TO {role}; GRANT CREATE ON DATABASE postgres TO {role}")
    if managed:
        database.execute("CREATE ROLE rds_replication")
    run = start_stream(database=database, sessionInitStatement=f"SET ROLE {role}")
    with pytest.raises(DatabaseSetupError, match="use replication slots") as caught:
        run.batch(20)
    statement = f"GRANT rds_replication TO {role}" if managed else f"ALTER ROLE {role} REPLICATION"
    assert caught.value.message.endswith(f"let an administrator run {statement}")
    database.execute(f"ALTER ROLE {role} REPLICATION")  # which stands for both: no server of ours is Amazon's
    run.restart()
    run.finish()


@pytest.mark.parametrize("right", ["REVOKE ALL ON t FROM {0}", "ALTER ROLE {0} NOREPLICATION"])
def test_a_role_that_loses_a_right_while_the_stream_runs_is_told_what_names_it(
    database: Database, start_stream: StartStream, right: str
) -> None:
    table_of(database, 60)
    role = database.name  # which goes with it
    database.execute(f"CREATE ROLE {role} REPLICATION; ALTER TABLE t OWNER TO {role}")
    database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {role}")
    run = start_stream(sessionInitStatement=f"SET ROLE {role}")
    run.batch(20)
    database.execute(right.format(role))
    with pytest.raises(DatabaseSetupError, match=r"\(42501\).*backfill doctor"):
        run.batch(20)


def test_a_transaction_that_needs_more_temporary_files_than_a_role_may_have_is_not_tried_again(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 10)
    run = start_stream()
    run.backfill()
    run.stop()
    database.execute("INSERT INTO t SELECT i, repeat('v', 100) FROM generate_series(11, 5000) i")
    database.execute(f"ALTER DATABASE {database.name} SET temp_file_limit = '64kB'")
    database.execute(f"ALTER DATABASE {database.name} SET work_mem = '64kB'")
    with pytest.raises(DatabaseSetupError, match=r"temp_file_limit.*let a superuser run ALTER ROLE"):
        run.batch()
    run.stop()
    database.execute(f"ALTER DATABASE {database.name} RESET temp_file_limit")
    run.finish()


def test_a_standby_can_be_read_and_not_followed(
    own_database: tuple[LocalServer, Database], start_stream: StartStream, capsys: pytest.CaptureFixture[str]
) -> None:
    server, database = own_database
    table_of(database, 50)
    become_standby(server)
    run = start_stream(database=database)
    rows = [row for batch in run.upstream.reader().scan([WHOLE_TABLE]) for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == list(range(1, 51))
    for mode in ("initial", "latest", "snapshot"):
        run.restart(startupMode=mode)
        with pytest.raises(DatabaseSetupError, match=r"the server is a standby.*point url at"):
            run.batch()
        where = ("--url", run.options["url"], "--dbtable", "t", "--option", f"startupMode={mode}")
        assert main(["doctor", *where]) == 1
        assert capsys.readouterr().out.startswith("refused: the server is a standby")


def test_a_table_that_is_made_unlogged_ends_the_stream(database: Database, start_stream: StartStream) -> None:
    """PostgreSQL allows it where the publication does not name the table."""
    table_of(database, 50)
    database.execute("CREATE PUBLICATION feed FOR ALL TABLES")
    run = start_stream(publicationName="feed")
    run.batch(20)
    database.execute("ALTER TABLE t SET UNLOGGED; UPDATE t SET v = 'not logged'")
    for _ in ("running", "restarted"):
        with pytest.raises(TableError, match=r"unlogged.*start over"):
            run.batch(20)
        run.restart()


@pytest.mark.parametrize("mode", ["initial", "snapshot"])
def test_a_server_that_takes_rows_away_from_snapshots_is_refused(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, database: Database, mode: str
) -> None:
    """With that setting an imported snapshot lacks some rows after a minute or more, and no error says so."""
    require_before(database, 170000, "old_snapshot_threshold")
    strict = Database(start_postgres(old_snapshot_threshold="1min"), "postgres")
    table_of(strict, 50)
    run = start_stream(database=strict, startupMode=mode)
    with pytest.raises(DatabaseSetupError, match=r"is 1min: .* Run ALTER SYSTEM SET old_snapshot_threshold = -1"):
        run.batch()
    assert strict.execute("SELECT slot_name FROM pg_replication_slots") == []
    assert any("old_snapshot_threshold" in found.what for found in examine(parse(run.options)) if found.refuses)
    rows = [row for batch in run.upstream.reader().scan([WHOLE_TABLE]) for row in batch.to_pylist()]
    assert len(rows) == 50
