"""Which files hold the rows of a table, and whether what a snapshot sees of them is still all there.

TRUNCATE and rewriting ALTERs put other files in the place of a table's, and an older snapshot then sees no row in
them. The server knows only the present partitions: rows of one that was detached are not read any more, and rows of one
that was attached are, although the table did not have them. So are rows that came into another file by COPY with
FREEZE. Empty ones do no harm: partitions for the days to come are made, and those that nobody needed are dropped, at
any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg import sql

from backfill.upstream.postgres.description import QualifiedName


def files_of(table: QualifiedName) -> sql.Composed:
    """An expression for the text of `Files`, of the table and its partitions as they are now."""
    found = sql.SQL("pg_catalog.to_regclass({})").format(sql.Literal(table.quoted()))
    return sql.SQL(
        "(SELECT coalesce(pg_catalog.string_agg(pg_catalog.concat(relid::oid, ':', "
        "pg_catalog.pg_relation_filenode(relid), "
        "CASE WHEN pg_catalog.pg_relation_size(relid) > 0 THEN '' ELSE '-' END), ',' ORDER BY relid::oid), '') "
        "FROM (SELECT {0} AS relid UNION SELECT relid FROM pg_catalog.pg_partition_tree({0})) AS partitions "
        "WHERE pg_catalog.pg_relation_filenode(relid) IS NOT NULL)"
    ).format(found)


@dataclass(frozen=True, slots=True)
class Files:
    """The tables that may hold rows, by OID, each with its file; `empty` are those whose files are empty."""

    held: Mapping[str, str]
    empty: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> Files:
        parts = [part.partition(":")[::2] for part in text.split(",") if part]
        empty = frozenset(oid for oid, file in parts if file.endswith("-"))
        return cls({oid: file.removesuffix("-") for oid, file in parts}, empty)

    def are_those_of(self, before: Files) -> bool:
        """Whether each table has the file it had, and none with rows has come or gone."""
        both = self.held.keys() & before.held.keys()
        come, gone = self.held.keys() - both - self.empty, before.held.keys() - both - before.empty
        return not come and not gone and all(self.held[oid] == before.held[oid] for oid in both)

    def hold_rows_of(self, then: Files) -> bool:
        """Whether all rows that were there `then` still are, and none is in a file that was not there."""
        gone = [oid for oid in then.held.keys() - then.empty if self.held.get(oid) != then.held[oid]]
        come = [oid for oid in self.held.keys() - self.empty if self.held[oid] != then.held.get(oid)]
        return not gone and not come
