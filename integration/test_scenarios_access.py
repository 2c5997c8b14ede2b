"""What the role may do and what its sessions begin with: a stream needs no more than the README says."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from backfill.__main__ import main
from backfill.errors import DatabaseSetupError, TableError, UnsupportedTypeError
from backfill.options import parse
from backfill.upstream.postgres.doctor import examine
from backfill.upstream.postgres.session.connection import Connector
from backfill.vnode import WHOLE_TABLE
from integration.crash.proxy import Proxy
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.servers.address import as_uri
from integration.standby import become_standby
from integration.stream_harness import table_of
from integration.versions import require_before, require_yen


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


@pytest.mark.parametrize("managed", [False, True], ids=["anywhere", "on Amazon RDS"])
def test_a_role_that_may_not_use_slots_is_told_the_statement_that_lets_it(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, *, managed: bool
) -> None:
    """There a role stands for that right; a name may need quotes, and need not be the one that logged in."""
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
    with pytest.raises(DatabaseSetupError, match=r"(42501).*backfill doctor"):
        run.batch(20)


SETTINGS = (
    *("default_transaction_read_only = on", "default_transaction_isolation = serializable"),
    *("default_transaction_deferrable = on", "standard_conforming_strings = off", "search_path = ''"),
    *("row_security = off", "array_nulls = off", "bytea_output = escape", "DateStyle = 'SQL, DMY'"),
)


def test_what_a_database_sets_for_its_sessions_changes_nothing(database: Database, start_stream: StartStream) -> None:
    database.execute("CREATE TABLE t (id text PRIMARY KEY, v bytea)")
    database.execute(r"INSERT INTO t SELECT i || '\''%s', '\xff5c' FROM generate_series(1, 40) i; ANALYZE t")
    # From version 19 on strings cannot be read in another way.
    fixed = ("standard_conforming_strings = off",) if database.server.version >= 190_000 else ()
    settings = [setting for setting in SETTINGS if setting not in fixed]
    database.execute("; ".join(f"ALTER DATABASE {database.name} SET {setting}" for setting in settings))
    run = start_stream("public.t", changelog="full", vnodeCount="3")
    run.judged_batch(15)
    database.execute("BEGIN READ WRITE; UPDATE public.t SET id = id || chr(92), v = 'new' WHERE id < '3'; COMMIT")
    run.backfill(15)
    run.finish()


@pytest.mark.parametrize(
    ("variable", "value"), [("PGTZ", "Asia/Kolkata"), ("PGDATESTYLE", "SQL, DMY"), ("PGCLIENTENCODING", "LATIN1")]
)
def test_what_libpq_takes_from_the_environment_changes_no_value(
    database: Database, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """Rows are read in one process and the changes to them in another, each with an environment of its own."""
    monkeypatch.setenv(variable, value)
    connector = Connector.of(database.dsn, user="", password="", init_statement="")
    for opened in (connector.session, connector.new_arrow_session):
        with closing(opened()) as session:
            cursor = session.cursor() if isinstance(session, psycopg.Connection) else session
            cursor.execute("SELECT pg_catalog.tstzrange('2026-02-01 12:00Z', NULL)::text || chr(246)")
            assert cursor.fetchone() == ('["2026-02-01 12:00:00+00",)ö',)


def test_what_pgoptions_sets_holds_in_every_session_as_far_as_it_changes_no_value(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c search_path=sales -c TimeZone=Asia/Kolkata")
    connector = Connector.of(database.dsn, user="", password="", init_statement="")
    monkeypatch.delenv("PGOPTIONS")  # as on an executor
    for opened in (connector.session, connector.new_arrow_session):
        with closing(opened()) as session:
            cursor = session.cursor() if isinstance(session, psycopg.Connection) else session
            cursor.execute("SELECT current_setting('search_path'), current_setting('TimeZone')")
            assert cursor.fetchone() == ("sales", "UTC")


MONEY = """
    CREATE DOMAIN amount AS money; CREATE TYPE item AS (name text, price amount);
    CREATE TABLE t (id int PRIMARY KEY, v text, price money, many amount[], items item[]);
    INSERT INTO t VALUES (1, 'v', '500', '{500}', ARRAY[ROW('pen', '500')::item])
"""
AMOUNTS = {"price": "$500.00", "many": ["$500.00"], "items": ["(pen,$500.00)"]}


def test_money_of_a_currency_with_two_decimals_is_read_under_one_locale(
    database: Database, start_stream: StartStream
) -> None:
    database.execute(f"ALTER DATABASE {database.name} SET lc_monetary = 'en_US.utf8'")
    database.execute(MONEY)
    run = start_stream(sessionInitStatement="SET lc_monetary = 'en_US.utf8'")
    run.catch_up()
    assert {name: run.fold.rows[(1,)][name] for name in AMOUNTS} == AMOUNTS
    database.execute("INSERT INTO t SELECT 2, v, price + price, many, items FROM t")
    run.catch_up()
    assert run.fold.rows[(2,)]["price"] == "$1,000.00"


def test_money_of_a_currency_without_decimals_is_refused(database: Database, start_stream: StartStream) -> None:
    """Under the one locale in which all sessions read, 500 yen would be 5."""
    require_yen(database)
    database.execute(MONEY)
    run = start_stream()
    with pytest.raises(UnsupportedTypeError, match=r"items, many, price of .* ja_JP.utf8 has 0 decimals.*\"id, v\""):
        run.batch()
    (found,) = [found for found in examine(parse(run.options)) if found.refuses]
    assert "0 decimals" in found.what
    run.restart(columns="id, v")
    run.batch()
    run.stop()
    database.execute("ALTER TABLE t ALTER COLUMN price TYPE numeric, DROP COLUMN many, DROP COLUMN items")
    database.execute("UPDATE t SET v = 'numeric'")
    fresh = start_stream(stateDir=f"{run.options['stateDir']}-numeric")
    fresh.batch()
    assert fresh.fold.rows[(1,)]["price"] == "500"


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


def without_options(data: bytes) -> bytes:
    """A startup message (manual, "Message Formats") as a pooler passes it on that was told to ignore `options`."""
    if data[4:8] != (3 << 16).to_bytes(4, "big"):
        return data
    words = data[8:-2].split(b"\0")
    kept = [pair for pair in zip(words[::2], words[1::2], strict=True) if pair[0] != b"options"]
    said = data[4:8] + b"".join(b"%s\0%s\0" % pair for pair in kept) + b"\0"
    return (len(said) + 4).to_bytes(4, "big") + said


def test_a_pooler_that_leaves_out_the_settings_of_sessions_is_refused(database: Database) -> None:
    parts = conninfo_to_dict(database.dsn)
    with Proxy(str(parts["host"]), int(str(parts["port"])), request=without_options) as pooler:
        url = as_uri(database.dsn, host="127.0.0.1", port=str(pooler.port))
        connector = Connector.of(url, user="", password="", init_statement="")
        for session in (connector.session, connector.new_arrow_session):
            with pytest.raises(DatabaseSetupError, match=r"pooler.*did not reach the server.*of PostgreSQL itself"):
                session()


def test_a_standby_can_be_read_and_not_followed(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_postgres()
    database = Database(server, "postgres")
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


@pytest.mark.parametrize("statement", ["SET statment_timeout = 0", "SELECT no_such_function()", "SET ROLE postgres; x"])
def test_what_is_wrong_with_the_init_statement_is_the_servers_word_alone(
    database: Database, start_stream: StartStream, statement: str
) -> None:
    table_of(database, 10)
    with pytest.raises(DatabaseSetupError, match=r"option sessionInitStatement: [^.]*\(42\w{3}\)$"):
        start_stream(sessionInitStatement=statement).batch(10)


@pytest.mark.parametrize("mode", ["initial", "snapshot"])
def test_a_server_that_takes_rows_away_from_snapshots_is_refused(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, database: Database, mode: str
) -> None:
    """Of the rows of an imported snapshot some are missing then, after a minute and more, and no error says so."""
    require_before(database, 170000, "old_snapshot_threshold")
    strict = Database(start_postgres(old_snapshot_threshold="1min"), "postgres")
    table_of(strict, 50)
    run = start_stream(database=strict, startupMode=mode)
    with pytest.raises(DatabaseSetupError, match=r"is 1min: .* Run ALTER SYSTEM SET old_snapshot_threshold = -1"):
        run.batch()
    assert strict.execute("SELECT FROM pg_replication_slots") == []
    assert any("old_snapshot_threshold" in found.what for found in examine(parse(run.options)) if found.refuses)
    rows = [row for batch in run.upstream.reader().scan([WHOLE_TABLE]) for row in batch.to_pylist()]
    assert len(rows) == 50
