"""Says whom a stream waits for in the server, while it waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from psycopg import sql

from backfill.upstream.postgres.session.connection import Connector, Session
from backfill.upstream.postgres.session.failures import translating

logger = logging.getLogger("backfill")

SAY_AFTER: Final = 5.0
"""Seconds of waiting for the server after which the stream says what it waits for."""

SAY_EVERY: Final = 60.0
"""The most seconds between two messages. Each pause is twice the one before: a standby may be away for days."""


def logging_blockers(connector: Connector, waiting: Session, what: str) -> AbstractContextManager[None]:
    """While the body waits in the server with this session, logs now and then which sessions it waits for.

    Where there are none, logs what the server does: a commit may wait for a standby, or the answer be on its way.
    """
    pid = waiting.info.backend_pid

    def blockers(session: Session) -> str:
        rows = session.execute(
            "SELECT pid, state, coalesce(wait_event, 'at work') FROM pg_catalog.pg_stat_activity "
            "WHERE pid = %(pid)s OR backend_xid IS NOT NULL OR pid = ANY (pg_catalog.pg_blocking_pids(%(pid)s)) "
            "ORDER BY xact_start",
            {"pid": pid},
        ).fetchall()
        prepared = session.execute("SELECT gid FROM pg_catalog.pg_prepared_xacts ORDER BY prepared")
        gids = "".join(f", {sql.Literal(row[0]).as_string(session)}" for row in prepared.fetchall())
        pids = ", ".join(str(row[0]) for row in rows if row[0] != pid)
        if not pids and not gids:
            # The state of the session's own process may be hidden from its role, as after SET ROLE.
            own = "".join(f"; its process is {row[0]}{f', {row[1]} ({row[2]})' if row[1] else ''}" for row in rows)
            return f"no open transaction blocks it: the network or the server is slow{own}"
        also = f"; prepared and neither committed nor rolled back: {gids[2:]}" if gids else ""
        return f"the server waits for open transactions (of its processes {pids or 'none'}{also})"

    return asking_in_background(connector, what, blockers)


@contextmanager
def asking_in_background(connector: Connector, what: str, ask: Callable[[Session], str | None]) -> Iterator[None]:
    """While the body waits in the server, asks why in another session, less and less often, and logs the answers.

    Where `ask` returns None it is asked no more: there is nothing to say of this wait. An empty answer is not logged,
    and does not make the next pause longer.
    """
    done = threading.Event()

    def watch() -> None:
        found: str | None
        rest = SAY_AFTER
        while not done.wait(rest):
            try:
                with translating(), connector.session() as session:
                    found = ask(session)
            except Exception as error:  # noqa: BLE001 - a courtesy must not end the stream
                found = f"and the server does not say why ({error})"
            if found is None or done.is_set():
                return
            if found:
                logger.warning("waiting for %s: %s", what, found)
                rest = min(2 * rest, SAY_EVERY)

    threading.Thread(target=watch, name="backfill-waiting", daemon=True).start()
    try:
        yield
    finally:
        done.set()
