"""Beside the primary there is a standby that answers, or the primary from before it was promoted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from backfill.errors import ConnectionLostError, DataLossError, TransientError
from backfill.options import parse
from backfill.upstream import ChangeReader
from backfill.upstream.postgres import PostgresUpstream
from backfill.upstream.postgres.session.connection import Connector
from backfill.upstream.postgres.session.idle_sessions import IdleSessions
from backfill.upstream.postgres.session.retries import RetryPolicy
from integration import standby
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.stream_harness import churn, table_of
from integration.test_failover import Pair, leading_to, with_standby
from integration.waiting import eventually


def backfilled(start_postgres: Callable[..., LocalServer], start_stream: StartStream) -> Pair:
    """A primary and its standby, which has the slot of a stream that has read the table and is stopped."""
    primary, other, database = with_standby(start_postgres)
    servers = Pair(primary, other, start_stream(database=database, vnodeCount="4", numPartitions="2"))
    servers.run.backfill()
    servers.synchronize()
    servers.run.stop()
    return servers


def test_changes_are_not_read_from_a_primary_that_stayed_behind_while_all_else_is_asked_of_the_new_one(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = backfilled(start_postgres, start_stream)
    primary, run = servers.primary, servers.run
    servers.hand_over()
    run.restart(url=leading_to(primary, servers.other))
    churn(run.database, 1)
    run.catch_up()
    monkeypatch.setattr(IdleSessions, "take", lambda *_: None)  # As when half a minute has passed.
    primary.start()
    Database(primary, "postgres").execute("UPDATE t SET v = 'of the old one'")
    run.database.execute("UPDATE t SET v = repeat('x', 3000)")
    run.give_up_after(0)
    with pytest.raises(ConnectionLostError, match=r"a server with timeline 1 of .* has answered as well"):
        run.catch_up()
    primary.stop()
    run.finish()


def test_rows_are_not_read_from_a_primary_that_stayed_behind_while_changes_are_read_from_the_new_one(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sessions that read the log are kept from batch to batch; that of a state is opened for each."""
    primary, other, database = with_standby(start_postgres, 4000)
    run = start_stream(database=database, url=leading_to(primary, other), vnodeCount="4", numPartitions="2")
    servers = Pair(primary, other, run)
    run.batch(50)
    servers.synchronize()
    run.stop()
    servers.hand_over()
    run.restart()
    run.batch(50)
    primary.start()
    Database(primary, "postgres").execute("UPDATE t SET v = 'of the old one'")
    run.database.execute("UPDATE t SET v = repeat('of the new one', 30)")
    ours, reads_log = IdleSessions.take, run.upstream._connector
    # As when an executor was started since the last batch.
    monkeypatch.setattr(IdleSessions, "take", lambda idle, owner: ours(idle, owner) if owner == reads_log else None)
    run.give_up_after(0)
    with pytest.raises(ConnectionLostError, match=r"a server with timeline 1 of .* has answered as well"):
        run.backfill(500)
    assert "of the old one" not in {row["v"] for row in run.fold.rows.values()}
    primary.stop()
    run.finish()


def test_the_history_of_a_timeline_is_not_asked_of_a_primary_that_stayed_behind(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked over a connection of its own, which may lead to another server. The next try asks the right one."""
    servers = backfilled(start_postgres, start_stream)
    run = servers.run
    servers.hand_over()
    servers.primary.start()
    run.restart(url=leading_to(servers.other))
    ours, elsewhere = Connector.here, iter([Connector.of(servers.primary.dsn)])

    def here(connector: Connector, **parameters: str) -> str:
        return ours(next(elsewhere, connector) if parameters else connector, **parameters)

    monkeypatch.setattr(Connector, "here", here)
    churn(run.database, 1)
    run.finish()
    assert next(elsewhere, None) is None


def test_a_copy_of_the_primary_without_the_slot_is_not_taken_for_a_loss(
    start_postgres: Callable[..., LocalServer],
    start_stream: StartStream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The copy was made of its files, and is reached by the same name. The next try finds the slot."""
    primary, other = start_postgres(), start_postgres()
    run = start_stream(database=Database(primary, "postgres"), vnodeCount="4", numPartitions="2")
    table_of(run.database, 400)
    run.backfill()
    standby.copy(other, primary)
    Database(other, "postgres").execute(f"SELECT pg_drop_replication_slot('{run.slot}')")
    churn(run.database, 1)
    ours = Connector.arrow_session
    elsewhere = iter([Connector.of(other.dsn)])
    monkeypatch.setattr(Connector, "arrow_session", lambda connector: ours(next(elsewhere, connector)))
    run.finish()
    assert next(elsewhere, None) is None
    assert "although it exists and is intact: two servers have answered" in caplog.text


def test_the_error_for_a_snapshot_alone_says_that_the_standby_may_lack_what_it_was_planned_with(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream
) -> None:
    primary, other, database = with_standby(start_postgres)
    run = start_stream(database=database, startupMode="snapshot", numPartitions="2")
    standby.catch_up(other, primary)
    standby.cut_off(other)
    churn(run.database, 1)
    assert run.plan()
    run.stop()
    primary.stop("immediate")
    standby.promote(other)
    run.database = Database(other, "postgres")
    run.restart(**run.database.options)
    run.give_up_after(0)
    with pytest.raises(TransientError, match=r"promoted without that commit.*onExistingState=restart"):
        run.read()
    run.restart(onExistingState="restart")
    run.new_checkpoint().finish()


def test_changes_between_positions_are_planned_anew_where_they_were_planned_on_the_primary_from_before(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream
) -> None:
    servers = backfilled(start_postgres, start_stream)
    run = servers.run
    ((start,),) = run.database.execute("SELECT pg_current_wal_insert_lsn()::text")
    run.database.execute("INSERT INTO t (id) VALUES (900001)")
    url = f"{leading_to(servers.primary, servers.other)} target_session_attrs=read-write"
    given = {"url": url, "dbtable": "t", "slotName": run.slot, "startingPosition": start}

    def planned() -> ChangeReader:
        with closing(PostgresUpstream(parse(given))) as upstream:
            return upstream.span(start, "latest")

    def keys(reader: ChangeReader) -> list[int]:
        return [row["new"]["id"] for batch in reader.read() for row in batch.to_pylist()]

    before = planned()
    assert keys(before) == [900001]
    servers.hand_over()
    eventually(lambda: run.database.execute("SELECT pg_is_in_recovery()") == [(False,)])
    run.database.execute("INSERT INTO t (id) VALUES (900002)")
    with pytest.raises(DataLossError, match="on timeline 1 and this server is on timeline 2"):
        keys(before)
    assert keys(planned()) == [900001, 900002]


def test_changes_are_not_read_from_a_standby_that_has_a_slot_of_that_name(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where url leads to both, and somebody keeps such slots in step by hand. The standby lacks some changes."""
    primary, other, database = with_standby(start_postgres)
    database.execute("SELECT pg_create_logical_replication_slot('kept', 'pgoutput')")
    run = start_stream(database=database, slotName="kept", vnodeCount="4", numPartitions="2")
    run.backfill()
    standby.make_slot(other, primary, "kept")
    churn(run.database, 1)
    standby.catch_up(other, primary)
    standby.pause(other)
    churn(run.database, 2)
    ours = Connector.arrow_session
    elsewhere = iter([Connector.of(other.dsn, primary=False)])
    monkeypatch.setattr(Connector, "arrow_session", lambda connector: ours(next(elsewhere, connector)))
    run.finish()
    assert next(elsewhere, None) is None
    publication = dict(run.barrier().bookmark)["publication"]
    given = {"slotName": "kept", "publicationName": publication, "startingPosition": "earliest"}
    with closing(PostgresUpstream(parse({**database.options, "dbtable": "t", **given}))) as upstream:
        reader = upstream.span("earliest", "latest")
    there = replace(reader, connector=Connector.of(other.dsn, primary=False), retries=RetryPolicy(give_up_after=0))
    with pytest.raises(ConnectionLostError, match="is a standby"):
        list(there.read())
