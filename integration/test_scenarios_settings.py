"""Whatever settings a session has before the stream uses it, and whoever made them, they change no value."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from backfill.errors import DatabaseSetupError, UnsupportedTypeError
from backfill.options import parse
from backfill.upstream.postgres.doctor import examine
from backfill.upstream.postgres.session.connection import Connector
from integration.crash.proxy import Proxy
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers.address import as_uri
from integration.stream_harness import table_of
from integration.versions import require_yen

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
    connector = Connector.of(database.dsn)
    for opened in (connector.session, connector.new_arrow_session):
        with closing(opened()) as session:
            cursor = session.cursor() if isinstance(session, psycopg.Connection) else session
            cursor.execute("SELECT pg_catalog.tstzrange('2026-02-01 12:00Z', NULL)::text || chr(246)")
            assert cursor.fetchone() == ('["2026-02-01 12:00:00+00",)ö',)


def test_what_pgoptions_sets_holds_in_every_session_as_far_as_it_changes_no_value(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c search_path=sales -c TimeZone=Asia/Kolkata")
    connector = Connector.of(database.dsn)
    monkeypatch.delenv("PGOPTIONS")  # as on an executor
    for opened in (connector.session, connector.new_arrow_session):
        with closing(opened()) as session:
            cursor = session.cursor() if isinstance(session, psycopg.Connection) else session
            cursor.execute("SELECT current_setting('search_path'), current_setting('TimeZone')")
            assert cursor.fetchone() == ("sales", "UTC")


def test_a_session_goes_where_the_one_that_made_its_connector_would(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = Connector.of(database.dsn)
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.1")  # as on an executor; RFC 5737 keeps it for documents
    for opened in (connector.session, connector.new_arrow_session):
        opened().close()


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


def without_options(data: bytes) -> bytes:
    """A startup message (manual, "Message Formats") as passed on by a pooler that was told to ignore `options`."""
    if data[4:8] != (3 << 16).to_bytes(4, "big"):
        return data
    words = data[8:-2].split(b"\0")
    kept = [pair for pair in zip(words[::2], words[1::2], strict=True) if pair[0] != b"options"]
    content = data[4:8] + b"".join(b"%s\0%s\0" % pair for pair in kept) + b"\0"
    return (len(content) + 4).to_bytes(4, "big") + content


def test_a_pooler_that_leaves_out_the_settings_of_sessions_is_refused(database: Database) -> None:
    parts = conninfo_to_dict(database.dsn)
    with Proxy(str(parts["host"]), int(str(parts["port"])), request=without_options) as pooler:
        url = as_uri(database.dsn, host="127.0.0.1", port=str(pooler.port))
        connector = Connector.of(url)
        for session in (connector.session, connector.new_arrow_session):
            with pytest.raises(DatabaseSetupError, match=r"pooler.*did not reach the server.*of PostgreSQL itself"):
                session()


@pytest.mark.parametrize("statement", ["SET statment_timeout = 0", "SELECT no_such_function()", "SET ROLE postgres; x"])
def test_what_is_wrong_with_the_init_statement_is_the_servers_word_alone(
    database: Database, start_stream: StartStream, statement: str
) -> None:
    table_of(database, 10)
    with pytest.raises(DatabaseSetupError, match=r"option sessionInitStatement: [^.]*\(42\w{3}\)$"):
        start_stream(sessionInitStatement=statement).batch(10)


@pytest.mark.parametrize(
    "setting", ["extra_float_digits = 0", "bytea_output = escape", "DateStyle = 'SQL, DMY'", "row_security = on"]
)
def test_settings_that_change_texts_are_set_again_after_a_statement_of_the_users_own(
    database: Database, start_stream: StartStream, setting: str
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v float8, b bytea, d date);"
        r"INSERT INTO t SELECT i, 1 / i::float8, '\xff5c', '2026-02-01' FROM generate_series(1, 40) i"
    )
    run = start_stream(sessionInitStatement=f"SET {setting}")
    run.judged_batch(20)
    database.execute("UPDATE t SET v = v / 3, d = '2026-04-03' WHERE id % 2 = 0")
    run.backfill(20)
    run.finish()


def test_identifiers_that_the_server_quotes_all_change_nothing(database: Database, start_stream: StartStream) -> None:
    table_of(database, 60)
    database.execute(f"ALTER DATABASE {database.name} SET quote_all_identifiers = on")
    run = start_stream(vnodeCount="3")
    run.batch(20)
    database.execute("UPDATE t SET v = 'new' WHERE id % 2 = 0")
    run.catch_up(20)
    run.require_equal()
