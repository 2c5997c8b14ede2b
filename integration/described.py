"""What the catalog says, in a session, about a table that was just made."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from backfill.errors import TableError
from backfill.upstream.postgres.description import TableDescription
from backfill.upstream.postgres.tables.catalog import read_table
from integration.database import Row

Session = psycopg.Connection[Row]


def described(session: Session, statements: str, dbtable: str = "t") -> TableDescription:
    session.execute(statements.encode())
    return read_table(session, dbtable)


def refusal(session: Session, statements: str, dbtable: str = "t") -> str:
    with pytest.raises(TableError) as caught:
        described(session, statements, dbtable)
    return caught.value.message


def key_of(table: TableDescription) -> list[str]:
    return [key.column.name for key in table.key]


def become(session: Session, role: str) -> str:
    session.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    return sql.Identifier(role).as_string(None)


PARTITIONED = """
    CREATE TABLE t (id int, r text, v text, PRIMARY KEY (r, id)) PARTITION BY LIST (r);
    CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a');
    CREATE TABLE t_b PARTITION OF t FOR VALUES IN ('b') PARTITION BY RANGE (id);
    CREATE TABLE t_b1 PARTITION OF t_b FOR VALUES FROM (0) TO (1000000);
"""
