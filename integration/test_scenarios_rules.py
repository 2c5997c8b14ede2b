"""Slots, publications and rules for rows are changed under a stream."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus

from backfill.errors import DatabaseSetupError, DataLossError, OptionsError, TableError, TableLockedError
from backfill.upstream.postgres.replication.place import Place
from backfill.upstream.postgres.session.connection import Connector
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.scenarios import ended
from integration.stream_harness import table_of
from integration.versions import require_version


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
    ended(run, TableError, "row-level security.*BYPASSRLS")


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


def test_a_slot_that_decodes_prepared_transactions_is_not_used(database: Database, start_stream: StartStream) -> None:
    table_of(database, 10)
    database.execute("SELECT pg_create_logical_replication_slot('early', 'pgoutput', false, true)")
    run = start_stream(slotName="early")
    with pytest.raises(DatabaseSetupError, match="two_phase"):
        run.batch()
    database.execute("SELECT pg_drop_replication_slot('early')")


def test_a_slot_that_is_made_to_tell_of_prepared_transactions_is_named_and_may_be_put_back(
    database: Database, start_stream: StartStream
) -> None:
    """Also where the slot has told of one, in a message that no stream asks for."""
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
    ended(run, DatabaseSetupError, r"two_phase.*TWO_PHASE false\)")
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
        with pytest.raises(OptionsError, match=rf"began with {option}={began}, and now has {option}=another"):
            run.batch(10)
        run.restart(**{option: began})
    run.restart(publicationName="", slotName="")
    run.finish()


def test_a_slot_of_another_database_is_not_dropped(database: Database, start_stream: StartStream) -> None:
    table_of(database, 10)
    run = start_stream()
    run.batch()
    elsewhere = Connector.of(Database(database.server, "postgres").dsn)
    with elsewhere.session() as session, pytest.raises(DatabaseSetupError, match="nothing was dropped"):
        Place.of(run.barrier().bookmark).drop(session)
    run.finish()


def test_a_table_that_is_locked_is_reported_as_such(database: Database, start_stream: StartStream) -> None:
    table_of(database, 50)
    run = start_stream()
    run.batch(20)
    run.give_up_after(0.02)
    with database.connect() as session:
        session.execute("LOCK TABLE t")
        with pytest.raises(TableLockedError, match="ALTER TABLE, VACUUM FULL and TRUNCATE"):
            run.batch(20)
    run.backfill(20)
    run.finish()


@pytest.mark.parametrize("url", ["nonsense=1 of", "postgresql://%zz@h/d", "secret"])
def test_what_is_no_connection_string_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(OptionsError, match="expected postgresql://") as raised:
        Connector.of(url)
    assert url not in str(raised.value)
