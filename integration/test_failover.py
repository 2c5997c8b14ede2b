"""A standby is promoted: the stream goes on where nothing that it has read is undone, and nothing is missing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count

import psycopg
import pytest

from backfill.__main__ import main
from backfill.errors import DataLossError
from backfill.upstream.postgres.changes.changelog import ChangeLog
from backfill.upstream.postgres.session.connection import Connector, Session
from integration import standby
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.scenarios import AT_ANY_TIME, following, refused
from integration.servers import LocalServer
from integration.stream_harness import StreamRun, churn, table_of
from integration.versions import require_version
from integration.waiting import eventually


@dataclass(frozen=True)
class Pair:
    """A primary, its standby, and a stream of the primary's table."""

    primary: LocalServer
    other: LocalServer
    run: StreamRun

    def synchronize(self) -> None:
        """Has the standby take over the stream's slot, which needs to have advanced since it was made."""
        with psycopg.connect(self.other.dsn, autocommit=True) as session:
            asked = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary"

            def has_come_along() -> bool:
                churn(self.run.database, next(numbers))
                self.run.batch(1)
                self.run.database.execute("SELECT pg_log_standby_snapshot()")
                return session.execute(asked, [self.run.slot]).fetchone() is not None

            numbers = count()
            eventually(has_come_along)

    def hand_over(self) -> None:
        """As `fail_over`, once the standby has all that the primary has written."""
        standby.catch_up(self.other, self.primary)
        self.fail_over()

    def fail_over(self) -> None:
        """The primary dies, and the standby takes its place; the stream is told of it."""
        self.primary.stop("immediate")
        standby.promote(self.other)
        self.run.database = Database(self.other, "postgres")


def with_standby(
    start_postgres: Callable[..., LocalServer], rows: int = 400
) -> tuple[LocalServer, LocalServer, Database]:
    """A primary with a table, its standby, and the primary's database."""
    primary, other = start_postgres(), start_postgres()
    database = Database(primary, "postgres")
    require_version(database, 170_000, "slot synchronization")
    standby.follow(other, primary)
    table_of(database, rows)
    return primary, other, database


def leading_to(*servers: LocalServer) -> str:
    hosts, ports = ",".join("127.0.0.1" for _ in servers), ",".join(str(server.port) for server in servers)
    return f"host={hosts} port={ports} user=postgres dbname=postgres"


@pytest.fixture
def pair(start_postgres: Callable[..., LocalServer], start_stream: StartStream) -> Callable[..., Pair]:
    def start(rows: int = 400, **options: str) -> Pair:
        primary, other, database = with_standby(start_postgres, rows)
        return Pair(primary, other, start_stream(database=database, vnodeCount="4", numPartitions="2", **options))

    return start


def go_on(run: StreamRun, **options: str) -> None:
    run.restart(**run.database.options, **options)


@AT_ANY_TIME
@pytest.mark.parametrize("logged", [False, True], ids=["between batches", "in a batch"])
def test_a_stream_goes_on_by_itself_with_the_slot_that_came_along(
    pair: Callable[..., Pair],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    when: str,
    *,
    logged: bool,
) -> None:
    servers = pair(4000)
    run = servers.run
    following(run, when)
    if when == "while the log is followed":
        run.catch_up()
    servers.synchronize()
    churn(run.database, 1)
    if logged:
        assert run.plan(50)
    churn(run.database, 2)
    run.stop()
    servers.hand_over()
    churn(run.database, 3)
    go_on(run)
    with caplog.at_level(logging.WARNING, "backfill"):
        run.batch(50)
        churn(run.database, 4)
        run.batch(50)  # The timeline is noted with the first batch that is planned on it.
    (warning,) = [record.getMessage() for record in caplog.records if "timeline" in record.getMessage()]
    assert "server is on timeline 2 and was on 1" in warning
    assert warning.endswith(f"it has replication slot {run.slot}, so nothing is lost")
    caplog.clear()
    run.restart()
    churn(run.database, 5)
    with caplog.at_level(logging.WARNING, "backfill"):
        run.finish()
    assert "timeline" not in caplog.text
    assert main(["status", "--state-dir", run.options["stateDir"], "--url", run.options["url"]]) == 0
    shown = capsys.readouterr().out
    assert "behind" in shown
    assert "database:" not in shown


@pytest.mark.parametrize("committed", [True, False])
def test_a_chunk_that_was_read_later_on_the_new_timeline_is_not_taken_for_one_of_the_old(
    pair: Callable[..., Pair], *, committed: bool
) -> None:
    servers = pair(4000)
    run = servers.run
    run.batch(50)
    servers.synchronize()
    assert run.plan(50)
    run.stop()
    servers.hand_over()
    churn(run.database, 3)
    go_on(run)
    rows = run.read()
    if committed:
        run.commit(rows)
    run.restart()
    run.finish()


@pytest.mark.parametrize("further", [False, True], ids=["on that timeline", "on one that comes from it"])
def test_another_log_whose_timeline_has_the_same_number_is_distinguished_from_the_one_that_was_read(
    pair: Callable[..., Pair], start_postgres: Callable[..., LocalServer], *, further: bool
) -> None:
    """As if two standbys are promoted one after the other, and the second has not followed the first."""
    servers, third = pair(), start_postgres()
    run = servers.run
    standby.follow(third, servers.primary, "third")
    run.backfill()
    servers.synchronize()
    replace(servers, other=third).synchronize()
    standby.cut_off(third)
    churn(run.database, 1)
    run.catch_up()
    run.stop()
    servers.hand_over()
    run.database.execute("UPDATE t SET v = 'of the second'")
    go_on(run)
    run.catch_up()
    run.stop()
    servers.other.stop("immediate")
    standby.promote(third)
    run.database = Database(third, "postgres")
    run.database.execute("UPDATE t SET v = repeat('of the third', 500)")
    if further:
        standby.become_standby(third)
        standby.promote(third)
    go_on(run)
    refused(
        run,
        DataLossError,
        "timeline 2 of the log that was read began at .*, and this server's timeline 2 began at",
        restarts=True,
    )


def test_a_primary_that_stayed_behind_is_distinguished_from_the_one_that_took_its_place(
    pair: Callable[..., Pair],
) -> None:
    servers = pair()
    run = servers.run
    run.backfill()
    servers.synchronize()
    run.stop()
    servers.hand_over()
    go_on(run)
    run.database.execute("UPDATE t SET v = 'of the new one'")
    run.catch_up()
    run.stop()
    servers.primary.start()
    run.database = Database(servers.primary, "postgres")
    run.database.execute("UPDATE t SET v = repeat('x', 3000)")
    go_on(run)
    refused(run, DataLossError, "on timeline 1, which has that log nowhere.*point url at the new one", restarts=True)


def test_a_query_that_runs_ends_and_goes_on_when_it_is_started_again(pair: Callable[..., Pair]) -> None:
    servers = pair()
    run = servers.run
    run.restart(url=leading_to(servers.primary, servers.other))
    run.batch(50)
    servers.synchronize()
    run.catch_up()
    servers.hand_over()
    churn(run.database, 500)
    with pytest.raises(DataLossError, match=r"timeline 1 and this server is on timeline 2.*Start the query again"):
        run.catch_up()
    run.restart()
    run.finish()


def test_a_stream_that_waits_to_begin_begins_on_the_standby_that_is_promoted_meanwhile(
    pair: Callable[..., Pair], capsys: pytest.CaptureFixture[str]
) -> None:
    servers = pair()
    run = servers.run
    run.restart(url=leading_to(servers.primary, servers.other))
    old = run.database
    with old.connect() as writer, ThreadPoolExecutor(1) as pool:
        writer.execute("INSERT INTO t (id) VALUES (900001)")
        begun = pool.submit(run.plan, 50)
        eventually(lambda: old.execute("SELECT count(*) FROM pg_replication_slots WHERE plugin = 'pgoutput'") == [(1,)])
        servers.hand_over()
        assert begun.result()
        writer.close()
    run.commit(run.read())
    churn(run.database, 1)
    run.batch(50)
    assert main(["status", "--state-dir", run.options["stateDir"], "--url", run.options["url"]]) == 0
    assert "database:" not in capsys.readouterr().out
    run.restart()
    run.finish()


@pytest.mark.parametrize("mode", ["initial", "latest"])
def test_a_stream_whose_place_was_made_on_the_server_before_ends_before_its_first_batch(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """As it has read nothing, it begins anew when it is started again."""
    servers = pair(startupMode=mode)
    run = servers.run
    run.restart(url=leading_to(servers.primary, servers.other))
    ours = ChangeLog.begin_place

    def and_then_fail_over(log: ChangeLog, session: Session) -> None:
        ours(log, session)
        servers.hand_over()

    with monkeypatch.context() as patched:
        patched.setattr(ChangeLog, "begin_place", and_then_fail_over)
        with pytest.raises(DataLossError, match=r"timeline 1 and this server is on timeline 2.*Start the query again"):
            run.plan(50)
    run.restart()
    run.batch(50)
    run.database.execute("INSERT INTO t VALUES (900001, 'new')")
    run.catch_up()
    assert run.fold.rows[900001,]["v"] == "new"


def test_a_standby_that_answers_in_place_of_the_primary_is_not_taken_for_a_loss(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that leads to both. The next try finds the slot."""
    servers = pair()
    run = servers.run
    run.backfill()
    churn(run.database, 1)
    ours = Connector.arrow_session
    elsewhere = iter([Connector.of(servers.other.dsn, primary=False)])
    monkeypatch.setattr(Connector, "arrow_session", lambda connector: ours(next(elsewhere, connector)))
    run.finish()
    assert next(elsewhere, None) is None


@AT_ANY_TIME
@pytest.mark.parametrize("fails", [True, False], ids=["failing", "going on"])
def test_what_the_standby_had_not_is_found_however_much_it_has_written_since(
    pair: Callable[..., Pair], when: str, *, fails: bool
) -> None:
    servers = pair(failOnDataLoss=str(fails).lower())
    run = servers.run
    following(run, when)
    servers.synchronize()
    standby.cut_off(servers.other)
    run.database.execute("UPDATE t SET v = 'of the old primary alone'")
    run.batch(30)
    run.stop()
    servers.fail_over()
    run.database.execute("UPDATE t SET v = repeat('x', 1000); INSERT INTO t VALUES (5000, 'new')")
    go_on(run)
    refused(
        run, DataLossError, r"\A(?!.*failOnDataLoss=false).*which has that log as far as .*Start over", restarts=True
    )


def test_a_chunk_that_was_read_later_than_the_standby_had_come_is_not_forgotten(pair: Callable[..., Pair]) -> None:
    servers = pair(failOnDataLoss="false")
    run = servers.run
    run.batch(50)
    servers.synchronize()
    assert run.plan(50)
    assert not run.backfilled
    run.stop()
    standby.catch_up(servers.other, servers.primary)
    standby.cut_off(servers.other)
    run.database.execute("UPDATE t SET v = 'of the old primary alone'")
    run.commit(run.read())
    run.stop()
    servers.fail_over()
    run.database.execute("UPDATE t SET v = repeat('x', 1000) WHERE id % 2 = 0")
    go_on(run)
    refused(run, DataLossError, "which has that log as far as .*Start over", restarts=True)


def test_a_slot_that_did_not_come_along_may_lack_changes(
    pair: Callable[..., Pair], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = pair()
    run = servers.run
    run.batch(50)
    run.batch(50)
    run.stop()
    servers.hand_over()
    go_on(run)
    refused(
        run, DataLossError, "timeline 2.*has all that was read, but.*is not there.*failOnDataLoss=false", restarts=True
    )
    assert main(["status", "--state-dir", run.options["stateDir"], "--url", run.options["url"]]) == 0
    assert f"but the replication slot {run.slot} is not there" in " ".join(capsys.readouterr().out.split())
    go_on(run, failOnDataLoss="false")
    with caplog.at_level(logging.ERROR, "backfill"):
        run.batch(50)
    assert "timeline 1" in caplog.text
    go_on(run, failOnDataLoss="true")
    run.finish()
