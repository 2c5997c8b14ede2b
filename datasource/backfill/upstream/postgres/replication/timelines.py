"""Where the log of a server that was restored, or of a standby that was promoted, parted from the log before.

Each such server begins a new timeline (PostgreSQL manual, "Timelines"), whose history names the earlier ones, and where
each of them was left. Roles that may replicate can read that history (manual, "Streaming Replication Protocol",
TIMELINE_HISTORY). The first timeline has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

import psycopg
from psycopg.pq import ExecStatus

from backfill.errors import DatabaseSetupError
from backfill.upstream.postgres.position import Lsn, parse_lsn
from backfill.upstream.postgres.session.connection import Connector
from backfill.upstream.postgres.session.failures import translated
from backfill.upstream.postgres.session.server import ORIGIN, require_origin

FIRST: Final = "1"

_LEFT_AT: Final = re.compile(r"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", re.MULTILINE)


def another(read: str, now: str) -> str:
    """The beginning of the error for a server that is on another timeline than the log that was read."""
    return (
        f"the log was read on timeline {read} and this server is on timeline {now}: it was restored, or a standby was "
        "promoted"
    )


def history(connector: Connector, system: str, timeline: str) -> Mapping[str, Lsn]:
    """For each timeline that `timeline`, the server's own, comes from: the LSN up to which both have the same log.

    OtherServerError where the server that answers is not on that timeline of that system: see `require_log_of`.
    """
    if timeline == FIRST:
        return {}
    with closing(_replicating(connector, timeline)) as connection:
        require_origin(_row(connection, ORIGIN, timeline), system, timeline)
        _, text = _row(connection, f"TIMELINE_HISTORY {int(timeline)}", timeline)
    # Each line has a number, an LSN and a reason; others are empty, or begin with #.
    return {number: parse_lsn(at) for number, at in _LEFT_AT.findall(text or "")}


def _row(connection: psycopg.Connection[Any], statement: str, timeline: str) -> list[str | None]:
    # Such a connection takes commands only by the simple protocol.
    found = connection.pgconn.exec_(statement.encode())
    if found.status != ExecStatus.TUPLES_OK:
        message = connection.pgconn.get_error_message()
        raise DatabaseSetupError(f"the server does not say where its timeline {timeline} began: {message}")
    values = [found.get_value(0, column) for column in range(found.nfields)]
    return [None if value is None else value.decode(errors="replace") for value in values]


def _replicating(connector: Connector, timeline: str) -> psycopg.Connection[Any]:
    try:
        return psycopg.connect(connector.here(replication="database"))
    except psycopg.Error as error:
        found = translated(error)
        raise type(found)(
            f"the server cannot be asked where its timeline {timeline} began: {found.message}. The role that logs in "
            "needs REPLICATION, and the server a free WAL sender (max_wal_senders)"
        ) from None
