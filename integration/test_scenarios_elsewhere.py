"""The url leads to something other than what the stream began with: nothing of that is emitted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg import sql

from backfill.__main__ import main
from backfill.errors import ConnectionLostError, DatabaseSetupError
from backfill.options import parse
from backfill.upstream.postgres.session.connection import Connector
from integration.database import Database, drop, end_sessions, maintenance, new_name
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.standby import become_primary, become_standby
from integration.stream_harness import StreamRun, table_of

STATES: dict[str, Callable[[StreamRun], object]] = {
    "its first batch planned": lambda run: run.plan(30),
    "in the middle of the backfill": lambda run: run.batch(30),
    "following the log": lambda run: run.catch_up(),
}


def clone(database: Database) -> Database:
    """Another database of the same server, with the same tables under the same OIDs."""
    other = replace(database, name=new_name())
    with closing(maintenance(database.server)) as session:
        end_sessions(session, database.name)
        names = sql.Identifier(other.name), sql.Identifier(database.name)
        session.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
    return other


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_clone_of_the_database_is_not_taken_for_it(
    database: Database,
    start_stream: StartStream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    state: str,
    fails: str,
) -> None:
    table_of(database, 100)
    run = start_stream(failOnDataLoss=fails)
    STATES[state](run)
    run.stop()
    other = clone(database)
    try:
        other.execute("UPDATE t SET v = 'of the clone'")
        run.restart(**other.options)
        with pytest.raises(
            DatabaseSetupError, match=f"belongs to database {database.name}.*name {database.name} in url"
        ):
            run.batch(30)
        run.stop()
        if state == "following the log":  # Where it stands is recorded then.
            main(["status", "--state-dir", run.options["stateDir"], "--url", other.url(tmp_path), "--json"])
            assert f"belongs to database {database.name}" in capsys.readouterr().out
    finally:
        drop(other)
    run.restart(**database.options)
    run.catch_up()
    run.finish()


@pytest.mark.parametrize("state", ["in the middle of the backfill", "following the log"])
def test_a_primary_that_is_a_standby_for_a_while_is_waited_for(
    own_database: tuple[LocalServer, Database], start_stream: StartStream, state: str
) -> None:
    server, database = own_database
    table_of(database, 100)
    run = start_stream(database=database)
    STATES[state](run)
    become_standby(server)
    run.give_up_after(0.5)
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="the server is a standby, and a stream needs the primary"):
            run.batch(30)
    become_primary(server)
    database.execute("UPDATE t SET v = 'not lost' WHERE id < 50")
    run.catch_up(30)
    run.finish()


def test_of_several_hosts_a_stream_takes_the_primary_and_reading_a_table_the_first(
    start_postgres: Callable[..., LocalServer],
) -> None:
    primary, standby = start_postgres(), start_postgres()
    become_standby(standby)
    url = f"postgresql://postgres@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/postgres"
    for options, recovers in ({"stateDir": "/state"}, False), ({}, True):
        connector = Connector.of_options(parse({"url": url, "dbtable": "t", **options}))
        with connector.session() as session, connector.arrow_session() as other:
            assert session.execute("SELECT pg_is_in_recovery()").fetchone() == (recovers,)
            other.execute("SELECT pg_is_in_recovery()")
            assert other.fetchone() == (recovers,)
    named = Connector.of(f"{url}?target_session_attrs=standby")
    with named.session() as session:
        assert session.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
