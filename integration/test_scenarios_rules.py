"""What the log does not tell of is changed under a stream: rules for rows, names, keys, publications, settings."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus

from backfill.errors import (
    DatabaseSetupError,
    DataLossError,
    DefiniteError,
    OptionsError,
    SchemaChangedError,
    StateError,
    TableError,
    TableLockedError,
)
from backfill.upstream.postgres.replication.place import Place
from backfill.upstream.postgres.session.connection import Connector
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import StreamRun, table_of
from integration.versions import require_version

BACKFILLED = pytest.mark.parametrize("rows", [20, 200], ids=["in the middle of the backfill", "after it"])


def refused(run: StreamRun, kind: type[DefiniteError], match: str) -> None:
    """The stream ends before it emits anything more, and so does the next process."""
    rows = dict(run.fold.rows)
    with pytest.raises(kind, match=match):
        run.catch_up(20)
    assert run.fold.rows == rows
    run.restart()
    with pytest.raises(DefiniteError):
        run.catch_up(20)


@pytest.mark.parametrize("policy", ["", "; CREATE POLICY p ON t USING (id % 2 = 0)"], ids=["none", "some rows"])
def test_rows_that_are_hidden_by_a_policy_are_not_taken_for_deleted(
    database: Database, start_stream: StartStream, stranger: str, policy: str
) -> None:
    table_of(database, 100)
    database.execute(
        f"ALTER ROLE {stranger} REPLICATION; GRANT SELECT ON t TO {stranger}; CREATE PUBLICATION feed FOR TABLE t"
    )
    run = start_stream(publicationName="feed", sessionInitStatement=f"SET ROLE {stranger}")
    run.judged_batch(20)
    database.execute(f"ALTER TABLE t ENABLE ROW LEVEL SECURITY{policy}")
    refused(run, TableError, "row-level security.*BYPASSRLS")


@BACKFILLED
def test_a_table_that_takes_the_name_of_another_is_not_followed(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    table_of(database, 100)
    run = start_stream()
    run.batch(rows)
    database.execute(
        "CREATE TABLE new (LIKE t INCLUDING ALL); ALTER TABLE t RENAME TO old; ALTER TABLE new RENAME TO t;"
        "INSERT INTO t VALUES (1000, 'of another table')"
    )
    refused(run, TableError, 'not the table any more that the stream began with: that is "public"."old" by now')
    run.restart()
    with pytest.raises(StateError, match="by its new name"):
        run.batch()
    run.restart(dbtable="old")
    run.finish()


def test_a_stream_goes_on_under_the_new_name_of_its_table(database: Database, start_stream: StartStream) -> None:
    table_of(database, 100)
    run = start_stream()
    run.backfill()
    run.catch_up()
    database.execute('CREATE SCHEMA "S"; ALTER TABLE t SET SCHEMA "S"; ALTER TABLE "S".t RENAME TO "T"')
    database.execute('DELETE FROM "S"."T" WHERE id < 5')
    refused(run, TableError, 'Set the option dbtable to "S"."T"')
    run.restart(dbtable='"S"."T"')
    run.finish()


@BACKFILLED
def test_a_table_that_others_inherit_from_by_now_is_followed_alone_and_refused_after_a_restart(
    database: Database, start_stream: StartStream, rows: int
) -> None:
    """Started anew, the stream could not tell whether whoever reads it expects the children's rows too."""
    table_of(database, 100)
    run = start_stream()
    run.batch(rows)
    database.execute(
        "CREATE TABLE child () INHERITS (t); INSERT INTO child VALUES (1, 'of the child'), (500, 'of the child');"
        "UPDATE t SET v = 'of both' WHERE id IN (1, 2, 99)"
    )
    run.catch_up(20)
    assert len(run.fold.rows) == 100
    run.restart()
    refused(run, TableError, 'ALTER TABLE … NO INHERIT "public"."t" for each')
    database.execute("ALTER TABLE child NO INHERIT t")
    run.restart()
    run.finish()


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
    refused(
        run, SchemaChangedError, r"the key \(id\).*not unique any more|a row without a value in the key column 'id'"
    )


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
    refused(run, SchemaChangedError, "a row without a value in the key column 'id'.*onExistingState=restart")


def test_a_key_that_older_rows_may_lack_ends_the_stream(database: Database, start_stream: StartStream) -> None:
    require_version(database, 180_000, "a NOT NULL that is not valid")
    table_of(database, 100, identity="FULL")
    run = start_stream()
    run.batch(20)
    database.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ALTER id DROP NOT NULL;"
        "ALTER TABLE t ADD NOT NULL id NOT VALID; CREATE UNIQUE INDEX ON t (id)"
    )
    refused(run, SchemaChangedError, r"the key \(id\).*not unique any more.*may be null")


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


def test_a_publication_that_was_altered_and_altered_back_ends_a_running_stream(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 100)
    run = start_stream()
    run.backfill()
    run.catch_up()
    for statement in (
        f"ALTER PUBLICATION {run.slot} SET (publish = 'insert')",
        "DELETE FROM t WHERE id = 7",
        f"ALTER PUBLICATION {run.slot} SET (publish = 'insert, update, delete, truncate')",
    ):
        database.execute(statement)
    with pytest.raises(DataLossError, match="altered"):
        run.catch_up()


def test_a_slot_that_tells_of_prepared_transactions_is_not_used(database: Database, start_stream: StartStream) -> None:
    table_of(database, 10)
    database.execute("SELECT pg_create_logical_replication_slot('early', 'pgoutput', false, true)")
    run = start_stream(slotName="early")
    with pytest.raises(DatabaseSetupError, match="two_phase"):
        run.batch()
    database.execute("SELECT pg_drop_replication_slot('early')")


def test_a_slot_that_is_made_to_tell_of_prepared_transactions_is_named_and_may_be_put_back(
    database: Database, start_stream: StartStream
) -> None:
    """Also where it has told of one, in a message that no stream asks for."""
    require_version(database, 180_000, "slots whose two_phase can be altered")
    table_of(database, 10)
    run = start_stream()
    run.catch_up()

    def two_phase(value: str) -> None:
        with psycopg.connect(make_conninfo(database.dsn, replication="database"), autocommit=True) as replication:
            command = f"ALTER_REPLICATION_SLOT {run.slot} (TWO_PHASE {value})"
            assert replication.pgconn.exec_(command.encode()).status == ExecStatus.COMMAND_OK

    two_phase("true")
    prepared = ("BEGIN", "UPDATE t SET v = 'new' WHERE id = 5", "PREPARE TRANSACTION 'two'")
    with database.connect() as writer:
        for statement in prepared:
            writer.execute(statement)
    refused(run, DatabaseSetupError, r"two_phase.*TWO_PHASE false\)")
    two_phase("false")
    database.execute("COMMIT PREPARED 'two'")
    run.restart()
    run.finish()


def test_a_stream_keeps_to_its_slot_and_publication(database: Database, start_stream: StartStream) -> None:
    table_of(database, 40)
    database.execute("CREATE PUBLICATION feed FOR TABLE t")
    run = start_stream(publicationName="feed")
    run.batch(10)
    for option, began in {"slotName": run.slot, "publicationName": "feed"}.items():
        run.restart(**{option: "another"})
        with pytest.raises(OptionsError, match=rf"began with {option}={began}, and is given {option}=another now"):
            run.batch(10)
        run.restart(**{option: began})
    run.restart(publicationName="", slotName="")
    run.finish()


def test_a_slot_of_another_database_is_not_dropped(database: Database, start_stream: StartStream) -> None:
    table_of(database, 10)
    run = start_stream()
    run.batch()
    elsewhere = Connector.of(Database(database.server, "postgres").dsn, user="", password="", init_statement="")
    with elsewhere.session() as session, pytest.raises(DatabaseSetupError, match="nothing was dropped"):
        Place.of(run.barrier().bookmark).drop(session)
    run.finish()


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


def test_a_label_of_the_key_that_was_renamed_is_said_to_be(database: Database, start_stream: StartStream) -> None:
    database.execute(
        "CREATE TYPE size AS ENUM ('small', 'large');"
        "CREATE TABLE t (kind size, id int, v text NOT NULL, PRIMARY KEY (kind, id));"
        "INSERT INTO t SELECT (ARRAY['small', 'large'])[1 + i / 51]::size, i, 'v' FROM generate_series(1, 100) AS i"
    )
    run = start_stream()
    run.judged_batch(20)
    database.execute("ALTER TYPE size RENAME VALUE 'small' TO 'little'")
    refused(run, SchemaChangedError, "a label that its type no longer has.*RENAME VALUE gives the name back")
    database.execute("ALTER TYPE size RENAME VALUE 'little' TO 'small'")
    run.restart()
    run.catch_up(20)
    run.require_equal()


def test_a_table_that_is_locked_is_said_to_be(database: Database, start_stream: StartStream) -> None:
    table_of(database, 50)
    run = start_stream()
    run.batch(20)
    run.give_up_after(0.1)
    with database.connect() as session:
        session.execute("LOCK TABLE t")
        with pytest.raises(TableLockedError, match="ALTER TABLE, VACUUM FULL or TRUNCATE"):
            run.batch(20)
    run.backfill(20)
    run.finish()


@pytest.mark.parametrize("url", ["nonsense=1 of", "postgresql://%zz@h/d", "secret"])
def test_what_is_no_connection_string_is_said_without_quoting_it(url: str) -> None:
    with pytest.raises(OptionsError, match="expected postgresql://") as raised:
        Connector.of(url, user="", password="", init_statement="")
    assert url not in str(raised.value)
