"""Whether those who write to the table still can once it is published.

Where PostgreSQL is to log whole rows, and a publication leaves out some of their columns, it refuses every UPDATE and
DELETE; only the writer gets the error. In a partitioned table the identity of the partition that is written counts.
"""

from __future__ import annotations

from typing import Final

from backfill.errors import TableError
from backfill.upstream.postgres.description import Generated, TableDescription, quoted
from backfill.upstream.postgres.session.connection import Session
from backfill.upstream.postgres.tables.partitions import with_whole_rows

# From version 15 on a list of columns will not do, not even of all of them; from 18 on generated columns count.
_LEAVES_OUT: Final = """
    SELECT pg_catalog.to_jsonb(r) ->> 'prattrs'::text IS NOT NULL, pg_catalog.to_jsonb(p) ->> 'pubgencols'::text = 'n'
    FROM pg_catalog.pg_publication p
    LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = %(oid)s
    WHERE p.pubname = %(name)s
"""

_NAMED: Final = 10


def require_writable(session: Session, publication: str, table: TableDescription) -> None:
    """Refuses a table whose updates and deletes fail with this publication, or would with one that a stream makes."""
    why, other_way = against_whole_rows(session, publication, table)
    whole = [name.quoted() for name in with_whole_rows(session, table.oid)] if why else []
    if whole:
        identity = "USING INDEX …" if table.replica_identity == "i" else "DEFAULT"
        mends = "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY {identity}" for name in whole[:_NAMED])
        more = "; …" if len(whole) > _NAMED else ""
        raise TableError(
            f"{', '.join(whole[:_NAMED])}{', …' if more else ''} has REPLICA IDENTITY FULL, and {why}: PostgreSQL "
            f"refuses every UPDATE and DELETE there while the table is published. Run {mends}{more}{other_way}"
        )


def against_whole_rows(session: Session, publication: str, table: TableDescription) -> tuple[str, str]:
    """Why writers fail where the replica identity is FULL, and what else would help; empty where they do not.

    Where there is no such publication, the answer is about the one that a stream would make.
    """
    virtual = _generated(table, Generated.VIRTUAL)
    if virtual:
        return f"virtual generated column {virtual} is never published", ""
    found = session.execute(_LEAVES_OUT, {"name": publication, "oid": table.oid}).fetchone()
    listed, without_stored = found or (False, False)
    if listed:
        return f"publication {publication} has a list of its columns", "; or publish it without the list"
    stored = _generated(table, Generated.STORED)
    if without_stored and stored:
        alter = f"ALTER PUBLICATION {quoted(publication)}"
        mend = f"; or {alter} SET (publish_generated_columns = stored)"
        return f"publication {publication} leaves out stored generated column {stored}", mend
    return "", ""


def _generated(table: TableDescription, kind: Generated) -> str:
    return ", ".join(column.name for column in table.columns if column.generated is kind)
