"""The sessions of a stream or of a sink, as the server sees them."""

from __future__ import annotations

from integration.database import Database

EXPORTER = "state = 'idle in transaction'"
OTHERS = f"NOT {EXPORTER}"
EVERY = "true"
"""Conditions that choose sessions: the one that holds the state of the readers, all others, and all."""


def terminate(database: Database, which: str) -> int:
    """Ends the chosen sessions, waits until they have gone, and returns how many there were."""
    return sessions(database, which, "pg_terminate_backend(pid, 10000)")


def sessions(database: Database, which: str, counted: str = "*") -> int:
    """How many of the chosen sessions there are."""
    query = (
        f"SELECT count({counted}) FROM pg_stat_activity "
        f"WHERE application_name = 'backfill' AND datname = current_database() AND {which}"
    )
    ((count,),) = database.execute(query)
    return int(count)
