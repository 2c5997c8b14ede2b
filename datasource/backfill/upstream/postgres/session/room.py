"""Whether the server lets in as many sessions as a stream takes, at this moment: others come and go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from backfill.upstream.findings import Finding
from backfill.upstream.postgres.description import quoted
from backfill.upstream.postgres.session.connection import Session, one_row

OF_DRIVER: Final = 3
OF_READER: Final = 2
"""How many sessions the driver and each reader have while the table is read, at the most."""

# The session that asks is gone when a stream begins. Superusers are held to max_connections alone.
_LIMITS: Final = """
    SELECT r.rolname::text, d.datname::text,
           pg_catalog.current_setting('max_connections')::int,
           pg_catalog.current_setting('max_connections')::int
               - pg_catalog.current_setting('superuser_reserved_connections')::int
               - coalesce(pg_catalog.current_setting('reserved_connections', true), '0')::int
               - (pg_catalog.count(*)::int - 1),
           r.rolconnlimit,
           CASE WHEN r.rolconnlimit >= 0 AND NOT r.rolsuper
                THEN r.rolconnlimit - (pg_catalog.count(*) FILTER (WHERE a.usesysid = r.oid)::int - 1) END,
           d.datconnlimit,
           CASE WHEN d.datconnlimit >= 0 AND NOT r.rolsuper
                THEN d.datconnlimit - (pg_catalog.count(*) FILTER (WHERE a.datid = d.oid)::int - 1) END
    FROM pg_catalog.pg_stat_activity a, pg_catalog.pg_roles r, pg_catalog.pg_database d
    WHERE a.usesysid IS NOT NULL AND a.datid IS NOT NULL
      AND r.rolname = SESSION_USER AND d.datname = pg_catalog.current_database()
    GROUP BY r.rolname, d.datname, r.rolconnlimit, r.rolsuper, r.oid, d.datconnlimit, d.oid
"""
"""The role, the database, and for each limit its value and how many more sessions it lets in; null for any number."""


def findings(session: Session, readers: int) -> Iterator[Finding]:
    """The limits that are too narrow for a stream with so many readers. None refuses it: sessions of others may end."""
    role, database, *limits = one_row(session.execute(_LIMITS))
    role, database = map(quoted, (role, database))
    needed = OF_DRIVER + OF_READER * readers
    named = (
        ("max_connections", "ALTER SYSTEM SET max_connections ="),
        (f"the CONNECTION LIMIT of the role {role}", f"ALTER ROLE {role} CONNECTION LIMIT"),
        (f"the CONNECTION LIMIT of the database {database}", f"ALTER DATABASE {database} CONNECTION LIMIT"),
    )
    for (name, raising), limit, room in zip(named, limits[::2], limits[1::2], strict=True):
        if room is not None and room < needed:
            yield Finding(
                f"{name} leaves room for {max(0, room)} more sessions now, and a stream takes up to {needed} while it "
                f"reads its table: {OF_DRIVER}, and {OF_READER} for each of numPartitions={readers} readers. A "
                "session that finds no room tries again for two minutes; then the query ends. Raise the limit "
                "(max_connections with a restart of the server), end sessions that nobody needs, or make "
                "numPartitions smaller",
                f"{raising} {limit + needed - room}",
                refuses=False,
            )
