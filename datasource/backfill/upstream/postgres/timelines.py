"""Where the log of a server that was restored, or of a standby that was promoted, parted from the log before.

Each such server begins a new timeline (PostgreSQL manual, 25.3.5), whose history names the earlier ones, and where each
of them was left. Whoever may replicate is given it (manual, 53.4, TIMELINE_HISTORY).
"""

from __future__ import annotations

import re

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus

from backfill.errors import ConnectionLostError
from backfill.upstream.postgres.connection import Connector
from backfill.upstream.postgres.failures import translating
from backfill.upstream.postgres.position import Lsn, parse_lsn

_LEFT_AT = re.compile(rb"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", re.MULTILINE)


def left_at(connector: Connector, before: str, now: str) -> Lsn | None:
    """The LSN up to which the log of timeline `now`, which the server is on, is that of timeline `before`.

    None where it does not come from that one.
    """
    left = {int(number): parse_lsn(at.decode()) for number, at in _LEFT_AT.findall(_history(connector, int(now)))}
    return left.get(int(before))


def _history(connector: Connector, timeline: int) -> bytes:
    """Lines of a number, an LSN and a reason, with tabs between them; also empty lines, and such as begin with #."""
    with translating(), psycopg.connect(make_conninfo(connector.conninfo, replication="database")) as connection:
        # Such a connection takes commands in the simple protocol alone.
        found = connection.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
        text = found.get_value(0, 1) if found.status == ExecStatus.TUPLES_OK else None
        if text is None:
            said = connection.pgconn.get_error_message()
            raise ConnectionLostError(f"the server does not say where its timeline {timeline} began: {said}")
        return text
