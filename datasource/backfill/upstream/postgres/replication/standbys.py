"""Standbys that a failover slot waits for (PostgreSQL 17): its reader is told nothing that they might not have."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

from backfill.upstream.postgres.replication.blockers import asking_in_background
from backfill.upstream.postgres.session.connection import Connector, Session, one_row

_SINCE: Final = 170000

_MAY_WAIT: Final = """
    SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
                   WHERE s.slot_name = %s AND s.failover
                     AND pg_catalog.current_setting('synchronized_standby_slots') <> '')
"""
# A role sees what a session waits for only if it has the rights of the role that the session logged in as.
_WAITS: Final = """
    SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
                   JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
                   WHERE s.slot_name = %s AND a.wait_event = 'WaitForStandbyConfirmation')
"""
# Names of slots have letters, digits and underscores only, whether the list quotes them or not.
_AWAY: Final = """
    SELECT coalesce(pg_catalog.string_agg(name, ', ' ORDER BY name), '')
    FROM (SELECT pg_catalog.btrim(part, ' "') AS name
          FROM pg_catalog.string_to_table(pg_catalog.current_setting('synchronized_standby_slots'), ',') part) named
    WHERE name <> ''
      AND EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s AND s.failover)
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = name AND s.active)
"""

_WAY_OUT: Final = (
    "A failover slot passes on no change before all standbys in synchronized_standby_slots have it: start the "
    "standby, or take its slot out of that setting (ALTER SYSTEM SET synchronized_standby_slots = …; SELECT "
    "pg_reload_conf())"
)


def logging_awaited_standbys(connector: Connector, session: Session, slot: str) -> AbstractContextManager[None]:
    """While the body reads the slot, logs now and then that it waits for standbys, if it does."""
    if session.info.server_version < _SINCE:
        return nullcontext()
    return asking_in_background(
        connector, f"changes of replication slot {slot}", lambda asked: _waited_for(asked, slot)
    )


def _waited_for(session: Session, slot: str) -> str | None:
    if one_row(session.execute(_MAY_WAIT, [slot])) == (False,):
        return None
    behind = f"a standby is behind. {_WAY_OUT}" if one_row(session.execute(_WAITS, [slot])) == (True,) else ""
    return away(session, slot) or behind


def away(session: Session, slot: str) -> str:
    """The words for standbys that hold up reading this slot because they are not connected; empty without any."""
    if session.info.server_version < _SINCE:
        return ""
    (names,) = one_row(session.execute(_AWAY, [slot]))
    return names and f"no standby is connected to the slot {names}. {_WAY_OUT}"
