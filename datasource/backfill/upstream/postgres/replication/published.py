"""What a publication passes on of one table.

PostgreSQL's view of that, pg_publication_tables, opens every table of the publication from version 16 on: it waits for
whoever has locked any one of them, and fails where one is dropped meanwhile. So the catalogs behind the view are asked.
Versions to come may know more ways to leave out a table: with them it is the view that is asked.
"""

from __future__ import annotations

from typing import Any, Final, LiteralString

from backfill.upstream.postgres.session.connection import Session

_VIEW_OPENS_TABLES: Final = range(160_000, 200_000)
"""The versions of which that is known, and what their catalogs say."""

_BY_VIEW: Final = """
    SELECT pg_catalog.to_jsonb(p) FROM pg_catalog.pg_publication_tables p
    JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    WHERE p.pubname = %(name)s AND c.oid = %(oid)s
    LIMIT 1 -- PostgreSQL 14 has a partition twice that is published by itself and with its root.
"""

# From version 19 on pg_publication_rel also has the tables that a publication of all tables leaves out. They are never
# partitions themselves, and their own partitions are left out with them.
_LEFT_OUT: Final = """
    (p.puballtables AND EXISTS (
        SELECT FROM pg_catalog.pg_publication_rel e WHERE e.prpubid = p.oid
        AND e.prrelid IN (%(oid)s::oid, pg_catalog.pg_partition_root(%(oid)s::oid::regclass)::oid)))
"""

# A table is also published with its schema, or with a table that it is a partition of: under the name of the topmost
# such table or, without publish_via_partition_root, under its own. Filters and lists of columns mean nothing where its
# schema is published.
_BY_CATALOGS: Final = f"""
    SELECT pg_catalog.jsonb_build_object('rowfilter', r.prqual, 'attnames', (
               SELECT pg_catalog.jsonb_agg(a.attname) FROM pg_catalog.pg_attribute a
               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                 AND CASE WHEN r.prattrs IS NULL
                          THEN a.attgenerated::text IN ('', pg_catalog.to_jsonb(p) ->> 'pubgencols'::text)
                          ELSE a.attnum = ANY (r.prattrs::int2[]) END))
    FROM pg_catalog.pg_publication p
    JOIN pg_catalog.pg_class c ON c.oid = %(oid)s
    LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
         AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_namespace
                         WHERE pnpubid = p.oid AND pnnspid = c.relnamespace)
    CROSS JOIN LATERAL (
        SELECT pg_catalog.bool_or(one.oid = c.oid) AS itself, pg_catalog.bool_or(one.oid <> c.oid) AS above
        FROM pg_catalog.pg_class one
        WHERE (one.oid = c.oid OR one.oid IN (SELECT pg_catalog.pg_partition_ancestors(c.oid)::oid))
          AND (p.puballtables
               OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel WHERE prpubid = p.oid AND prrelid = one.oid)
               OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace
                          WHERE pnpubid = p.oid AND pnnspid = one.relnamespace))) AS named
    WHERE p.pubname = %(name)s AND pg_catalog.pg_relation_is_publishable(c.oid)
      AND CASE WHEN p.pubviaroot THEN itself AND NOT above ELSE c.relkind <> 'p' AND (itself OR above) END
      AND NOT {_LEFT_OUT}
"""


def listing(session: Session) -> LiteralString:
    """A query for a row of the view, for the publication `name` and the table `oid`: with `attnames` and `rowfilter`,
    which versions before 15 do not have.
    """
    return _BY_CATALOGS if session.info.server_version in _VIEW_OPENS_TABLES else _BY_VIEW


def listed(session: Session, name: str, oid: int) -> dict[str, Any] | None:
    """The row that `listing` asks for; None where the publication does not publish the table under its own name."""
    row = session.execute(listing(session), {"name": name, "oid": oid}).fetchone()
    return None if row is None else row[0]


def is_left_out(session: Session, name: str, oid: int) -> bool:
    """Whether the publication is of all tables except some, and the table is one of these."""
    query: LiteralString = f"SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = %(name)s AND {_LEFT_OUT}"
    return session.execute(query, {"name": name, "oid": oid}).fetchone() is not None
