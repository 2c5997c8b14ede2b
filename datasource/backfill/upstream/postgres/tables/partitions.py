"""The partitions of a partitioned table: they have its rows, whose changes are logged under the root's name.

What is logged of an old row depends on each partition's own replica identity, which ALTER TABLE on the root does not
change (PostgreSQL manual, ALTER TABLE); but whether the log calls that the whole row depends on the root's. A foreign
table cannot be among them, because a root with a key has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from psycopg.rows import class_row

from backfill.errors import TableError
from backfill.upstream.postgres.description import QualifiedName, TableDescription, quoted
from backfill.upstream.postgres.session.connection import Session
from backfill.wording import FRESH_START


def with_partitions(root: str) -> str:
    """A WITH clause that gives the query after it the OIDs of a table and all its partitions, as `partitions(relid)`.

    Not by pg_partition_tree, which waits for whoever has locked one of the partitions.
    """
    return f"""
    WITH RECURSIVE partitions AS (
        SELECT {root}::oid AS relid
        UNION ALL
        SELECT h.inhrelid FROM partitions JOIN pg_catalog.pg_inherits h ON h.inhparent = relid
        WHERE NOT h.inhdetachpending
    )
"""


_PARTITIONS: Final = f"""
    {with_partitions("%(root)s")}
    SELECT c.oid::int8 AS oid, n.nspname AS schema, c.relname, c.relkind <> 'p' AS is_leaf,
           c.relfilenode::int8 AS file, c.reltuples < 0::real AS is_uncounted, c.relpersistence::text AS persistence,
           c.relreplident::text AS replica_identity, root.relreplident = 'f' AS logs_whole_rows,
           (SELECT h.xmin::text FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid AND c.oid <> root.oid) AS placed,
           ARRAY(SELECT a.attname::text
                 FROM pg_catalog.pg_index i
                 CROSS JOIN LATERAL pg_catalog.generate_series(0, i.indnkeyatts - 1) k
                 JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[k]
                 WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
                   AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
           ) AS logged
    FROM partitions
    JOIN pg_catalog.pg_class c ON c.oid = relid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_class root ON root.oid = %(root)s
    ORDER BY 1
"""

_KEYS_AS_ROWS: Final = f"""
    {with_partitions("%(root)s")}
    SELECT EXISTS (SELECT FROM partitions JOIN pg_catalog.pg_class c ON c.oid = relid
                   WHERE c.relkind <> 'p' AND c.relreplident <> 'f')
    FROM pg_catalog.pg_class root
    WHERE root.oid = %(root)s AND root.relreplident = 'f'
"""

_KEY_INDEX: Final = """
    SELECT x.relname::text
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
    WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid
      AND i.indpred IS NULL AND i.indexprs IS NULL
      AND ARRAY(SELECT a.attname::text FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) k
                JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k] ORDER BY 1)
          OPERATOR(pg_catalog.=) ARRAY(SELECT k FROM pg_catalog.unnest(%s::text[]) k ORDER BY 1)
    LIMIT 1
"""
"""A query for an index of this table that tells its rows apart by just these columns: each partition has its own."""

_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, at whatever level, or the table itself."""

    oid: int
    schema: str
    relname: str
    is_leaf: bool
    """Whether it has rows, and not partitions of its own."""

    file: int
    """The number of the file that has its rows. After TRUNCATE it is another one, and after whatever rewrites them."""

    is_uncounted: bool
    """Whether its rows have not been counted since it got that file; VACUUM FULL and CLUSTER count them themselves."""

    persistence: str
    replica_identity: str
    logs_whole_rows: bool
    """Whether the log calls what it has of an old row the whole row."""

    placed: str | None
    """The transaction that gave it its place among the partitions; None for the table itself."""

    logged: list[str]
    """The columns that are logged of an old row, where those are not all."""

    @property
    def name(self) -> QualifiedName:
        return QualifiedName(self.schema, self.relname)

    def logs(self, key: Sequence[str]) -> bool:
        """Whether it logs the key of an old row; and no more than that, where the log calls it the whole row and it is
        not: the other columns would pass for null.
        """
        if self.replica_identity == "f":
            return True
        return set(key) == set(self.logged) if self.logs_whole_rows else set(key) <= set(self.logged)


def read_partitions(session: Session, root: TableDescription) -> list[Partition]:
    """The table and its partitions. Refuses one that does not log its rows as the table's key and identity require."""
    partitions, key = _partitions(session, root.oid), root.key_names
    leaves = [each for each in partitions if each.is_leaf]
    problems = []
    for leaf in leaves:
        name = leaf.name.quoted()
        if leaf.persistence != "p":
            problems.append(f"{name} is unlogged; run ALTER TABLE {name} SET LOGGED")
        elif not leaf.logs(key):
            identity = f"USING INDEX {_key_index(session, leaf, key)}" if root.replica_identity == "i" else "DEFAULT"
            logged = ", ".join(leaf.logged) or "nothing"
            problems.append(
                f"{name} logs {logged} of an old row, expected {('just ' if leaf.logs_whole_rows else '')}its key "
                f"({', '.join(key)}) or all of it; run ALTER TABLE {name} REPLICA IDENTITY {identity}"
            )
    if problems:
        raise TableError(
            f"the changes of {len(problems)} of {len(leaves)} partitions of {root.name.quoted()} cannot be followed: "
            f"{'; '.join(problems[:_NAMED])}{('; …' if len(problems) > _NAMED else '')}. A stream that began before "
            f"may have missed changes without an error: then start over with {FRESH_START}"
        )
    return partitions


def _key_index(session: Session, leaf: Partition, key: Sequence[str]) -> str:
    """The index to make the replica identity; whole rows would keep writers out with some publications (`writers`)."""
    found = session.execute(_KEY_INDEX, [leaf.oid, list(key)]).fetchone()
    return "…" if found is None else quoted(found[0])


def logs_keys_as_rows(session: Session, oid: int) -> bool:
    """Whether the log calls old rows of this partitioned table whole, and some partition logs only keys.

    Asked before each look at the log, and so by a cheaper query than that for all partitions, which comes after it.
    """
    found = session.execute(_KEYS_AS_ROWS, {"root": oid}).fetchone()
    return found is not None and bool(found[0])


def without_whole_rows(session: Session, oid: int) -> list[QualifiedName]:
    """The partitions for which the log has no more than a key of a row before an update or delete."""
    return [each.name for each in _partitions(session, oid) if each.is_leaf and each.replica_identity != "f"]


def with_whole_rows(session: Session, oid: int) -> list[QualifiedName]:
    """The partitions whose old rows are logged whole; the table itself, where it has none and they are."""
    return [each.name for each in _partitions(session, oid) if each.is_leaf and each.replica_identity == "f"]


def _partitions(session: Session, oid: int) -> list[Partition]:
    with session.cursor(row_factory=class_row(Partition)) as cursor:
        return cursor.execute(_PARTITIONS, {"root": oid}).fetchall()
