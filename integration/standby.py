"""Standbys: a server that follows nobody for a while, and one that follows another until it is promoted. And a copy."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg

from integration.database import Database
from integration.servers import LocalServer
from integration.waiting import eventually


def become_standby(server: LocalServer) -> None:
    server.stop()
    data = server.folder / "data"
    subprocess.run(["cp", "-a", data / "PG_VERSION", data / "standby.signal"], check=True)
    server.start()


def become_primary(server: LocalServer) -> None:
    """Makes the standby a primary on the same timeline: it is restarted and not promoted."""
    server.stop()
    (server.folder / "data" / "standby.signal").unlink()
    server.start()


def follow(server: LocalServer, primary: LocalServer, name: str = "standby") -> None:
    """Makes `server` a standby of `primary`, whose slots it takes over from version 17 on; what it had is gone."""
    server.stop()
    data = server.folder / "data"
    shutil.rmtree(data)
    with psycopg.connect(primary.dsn, autocommit=True) as session:
        session.execute("SELECT pg_create_physical_replication_slot(%s, true)", [name])
    source = f"{primary.dsn}?application_name={name}"
    backup = server.bin("pg_basebackup")
    options = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync", f"--slot={name}")
    server._site.sandbox.run([backup, f"--pgdata={data}", f"--dbname={source}", *options])
    server.settings = {**server.settings, "hot_standby_feedback": "on", "sync_replication_slots": "on"}
    server._configure()
    server.start()


def copy(server: LocalServer, primary: LocalServer) -> None:
    """Makes `server` a primary with the files of another one, which is down meanwhile."""
    server.stop()
    primary.stop()
    data = server.folder / "data"
    shutil.rmtree(data)
    subprocess.run(["cp", "-a", primary.folder / "data", data], check=True)
    server._configure()
    primary.start()
    server.start()


def catch_up(server: LocalServer, primary: LocalServer) -> None:
    """Waits until the standby has all that the primary has written."""
    with psycopg.connect(primary.dsn) as session:
        (end,) = session.execute("SELECT pg_current_wal_insert_lsn()").fetchone() or ()
    with psycopg.connect(server.dsn, autocommit=True) as session:
        eventually(lambda: session.execute("SELECT pg_last_wal_replay_lsn() >= %s", [end]).fetchone() == (True,))


def make_slot(server: LocalServer, primary: LocalServer, name: str) -> None:
    """Makes a logical slot on the standby, which waits until the primary has logged its open transactions."""
    asked = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    with (
        psycopg.connect(server.dsn, autocommit=True) as session,
        psycopg.connect(primary.dsn, autocommit=True) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        made = pool.submit(session.execute, asked, [name])

        def is_made() -> bool:
            other.execute("SELECT pg_log_standby_snapshot()")
            return made.done()

        eventually(is_made)
        made.result()


def pause(server: LocalServer) -> None:
    """Lets the standby show nothing newer from now on."""
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("SELECT pg_wal_replay_pause()")
        eventually(lambda: session.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() == ("paused",))


def cut_off(server: LocalServer) -> None:
    """Cuts the standby off from the primary's log."""
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("ALTER SYSTEM SET primary_conninfo = ''")
        session.execute("SELECT pg_reload_conf()")
        eventually(lambda: session.execute("SELECT FROM pg_stat_wal_receiver WHERE pid IS NOT NULL").fetchone() is None)


def promote(server: LocalServer) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute("SELECT pg_promote()")


@contextmanager
def no_standby(database: Database) -> Iterator[None]:
    """Makes commits wait for a standby that does not exist, until the block ends."""
    database.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    database.execute("SELECT pg_reload_conf()")
    eventually(lambda: database.execute("SHOW synchronous_standby_names") == [("nobody",)])
    try:
        yield
    finally:
        database.execute("ALTER SYSTEM RESET synchronous_standby_names")
        database.execute("SELECT pg_reload_conf()")
