"""A primary that stayed behind is up again beside the one that took its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backfill.errors import ConnectionLostError
from backfill.upstream.postgres.session.idle_sessions import IdleSessions
from integration import standby
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.servers import LocalServer
from integration.stream_harness import churn, table_of
from integration.test_failover import Pair
from integration.versions import require_version


def test_changes_are_not_read_from_a_primary_that_stayed_behind_while_all_else_is_asked_of_the_new_one(
    start_postgres: Callable[..., LocalServer], start_stream: StartStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, other = start_postgres(), start_postgres()
    database = Database(primary, "postgres")
    require_version(database, 170_000, "slot synchronization")
    standby.follow(other, primary)
    table_of(database, 400)
    ports = f"{primary.port},{other.port}"
    url = f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname=postgres"
    run = start_stream(database=database, url=url, vnodeCount="4", numPartitions="2")
    servers = Pair(primary, other, run)
    run.backfill()
    servers.synchronize()
    run.stop()
    servers.hand_over()
    run.restart()
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
