"""Where the log of a server that was restored, or of a standby that was promoted, parted from the log before.

Each such server begins a new timeline (PostgreSQL manual, "Timelines"), whose history names the earlier ones, and where
each of them was left. Roles that may replicate can read that history (manual, "Streaming Replication Protocol",
TIMELINE_HISTORY). The first timeline has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from typing import Final

import psycopg
from psycopg.pq import ExecStatus

from backfill.errors import DatabaseSetupError
from backfill.upstream.postgres.position import Lsn, parse_lsn
from backfill.upstream.postgres.session.connection import Connector
from backfill.upstream.postgres.session.failures import translated

FIRST: Final = "1"

_LEFT_AT: Final = re.compile(rb"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", re.MULTILINE)


def another(read: str, now: str) -> str:
    """The beginning of the error for a server that is on another timeline than the log that was read."""
    return (
        f"the log was read on timeline {read} and this server is on timeline {now}: it was restored, or a standby was "
        "promoted"
    )


def history(connector: Connector, timeline: str) -> Mapping[str, Lsn]:
    """For each timeline that `timeline`, the server's own, comes from: the LSN up to which both have the same log."""
    if timeline == FIRST:
        return {}
    with closing(_replicating(connector, timeline)) as connection:
        # Such a connection takes commands only by the simple protocol.
        found = connection.pgconn.exec_(f"TIMELINE_HISTORY {int(timeline)}".encode())
        text = found.get_value(0, 1) if found.status == ExecStatus.TUPLES_OK else None
        if text is None:
            message = connection.pgconn.get_error_message()
            raise DatabaseSetupError(f"the server does not say where its timeline {timeline} began: {message}")
    # Each line has a number, an LSN and a reason; others are empty, or begin with #.
    return {number.decode(): parse_lsn(at.decode()) for number, at in _LEFT_AT.findall(text)}


def _replicating(connector: Connector, timeline: str) -> psycopg.Connection[tuple[object, ...]]:
    try:
        return psycopg.connect(connector.here(replication="database"))
    except psycopg.Error as error:
        found = translated(error)
        raise type(found)(
            f"the server cannot be asked where its timeline {timeline} began: {found.message}. The role that logs in "
            "needs REPLICATION, and the server a free WAL sender (max_wal_senders)"
        ) from None
