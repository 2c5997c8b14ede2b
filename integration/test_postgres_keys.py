"""Keys: their text is lossless, compares as the index does and is served by it; Arrow sorts what it is trusted with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from psycopg import sql

from backfill.upstream.postgres.description import KeyColumn, QualifiedName
from backfill.upstream.postgres.session.connection import Connector
from backfill.upstream.postgres.tables.catalog import read_table
from backfill.upstream.postgres.tables.keys import (
    Comparison,
    compare,
    full_name,
    key_column,
    key_literal,
    key_text_expression,
    key_value,
    order_by,
    ordered_locally,
)
from backfill.upstream.postgres.tables.ranges import KeyedTable
from backfill.upstream.postgres.values.conversion import decode_text, encode_text
from backfill.upstream.postgres.values.types import map_column, snapshot_expression
from backfill.vnode import KeyRange
from integration.database import Database, Row, temporary_database
from integration.servers import Server
from integration.values import BEYOND, MOOD, MOODS, OTHERS, SCALARS, Case, integer, number, text, word
from integration.versions import require_version

RANDOM_VALUES = 60
NAME = QualifiedName("public", "t")

Session = psycopg.Connection[Row]
Key = tuple[str, ...]


@pytest.fixture(scope="module")
def keyed_database(postgres: Server) -> Iterator[Database]:
    with temporary_database(postgres) as database:
        yield database


@dataclass(frozen=True)
class Table:
    """A table `t` and its keys as text, in the order in which the database sorts them."""

    session: Session
    keys: tuple[KeyColumn, ...]
    rows: list[Key] = field(default_factory=list)

    @property
    def columns(self) -> list[sql.Composable]:
        return [key_column(key, NAME) for key in self.keys]

    def literals(self, row: Key) -> list[sql.Composable]:
        return [key_literal(key, value) for key, value in zip(self.keys, row, strict=True)]

    def sorted(self) -> list[Key]:
        texts = sql.SQL(", ").join(key_text_expression(key, full_name(key, NAME)) for key in self.keys)
        return self.session.execute(
            sql.SQL("SELECT {} FROM public.t ORDER BY {}").format(texts, order_by(self.keys, NAME))
        ).fetchall()

    def count(self, comparison: Comparison, row: Key) -> int:
        condition = compare(self.keys, self.columns, comparison, self.literals(row))
        return int(self._one(sql.SQL("SELECT count(*) FROM public.t WHERE {}").format(condition)))

    def in_range(self, item: KeyRange) -> int:
        return int(self._one(self._ranged(item)))

    def range_plan(self, item: KeyRange) -> str:
        return "\n".join(line for (line,) in self.session.execute(sql.SQL("EXPLAIN {}").format(self._ranged(item))))

    def _ranged(self, item: KeyRange) -> sql.Composed:
        return KeyedTable(NAME, partitioned=False, key=self.keys).select(sql.SQL("count(*)"), item, "")

    def _one(self, query: sql.Composed) -> Any:
        ((value,),) = self.session.execute(query).fetchall()
        return value

    def holds(self, conditions: Sequence[sql.Composable]) -> bool:
        return bool(self._one(sql.SQL("SELECT {}").format(sql.SQL(" AND ").join(conditions))))

    def plan(self, row: Key) -> str:
        """The plan of the statement that reads what comes after a row."""
        read = sql.SQL(", ").join(snapshot_expression(map_column(key.column)) for key in self.keys)
        query = sql.SQL("EXPLAIN SELECT {} FROM public.t WHERE {} ORDER BY {}").format(
            read, compare(self.keys, self.columns, ">", self.literals(row)), order_by(self.keys, NAME)
        )
        return "\n".join(line for (line,) in self.session.execute(query))


@contextmanager
def filled(
    database: Database, statements: str, values: Sequence[Sequence[str | None]], types: Sequence[str]
) -> Iterator[Table]:
    """The table that the statements make, with one row for each distinct key; `values` has a list for each type."""
    with Connector.of(database.dsn).session() as session:
        session.execute("DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
        session.execute(statements.encode())
        casts = ", ".join(f"CAST(v{index} AS {name})" for index, name in enumerate(types))
        names = ", ".join(f"v{index}" for index in range(len(types)))
        arrays = ", ".join(["%s::text[]"] * len(types))
        session.execute(
            f"INSERT INTO t SELECT {casts} FROM unnest({arrays}) AS u ({names}) ON CONFLICT DO NOTHING".encode(),
            list(values),
        )
        # From here on no name is found by accident, and a plan that sorts has no other choice.
        for setting in ("search_path = ''", "enable_seqscan = off", "enable_bitmapscan = off", "enable_sort = off"):
            session.execute(f"SET {setting}".encode())
        table = Table(session, read_table(session, "public.t").key)
        yield replace(table, rows=table.sorted())


def of_type(name: str, index: int = 0) -> Case:
    return [case for case in (*SCALARS, *OTHERS) if case.type == name][index]


TIMESTAMPTZ = of_type("timestamptz")
CASES: list[tuple[Case, str, str | None, bool]] = [
    *((of_type(name), "", None, True) for name in ("bool", "int2", "int4", "int8", "oid", "bytea", "uuid", "name")),
    *((of_type(name), "", None, True) for name in ("date", "timestamp", "timestamptz", "numeric(12,2)")),
    (of_type("time"), "", None, False),
    (replace(of_type("time"), special=["00:00:00", "23:59:59.999999", "12:00:00.1"]), "", "TIME", True),
    *((of_type(name), 'COLLATE "C"', None, True) for name in ("text", "varchar(20)")),
    *((of_type(name), 'COLLATE "en_US.utf8"', None, False) for name in ("text", "varchar(20)", "char(14)")),
    *((of_type(name), 'COLLATE "C"', None, False) for name in ("char(14)", "bpchar", "citext")),
    *((of_type(name), "", None, False) for name in ("float4", "float8", '"char"', "interval", "timetz")),
    *((of_type(name), "", None, False) for name in ("mood", "inet", "cidr", "macaddr", "macaddr8", "money")),
    *((of_type(name), "", None, False) for name in ("bit(5)", "bit varying", "jsonb", "int4range", "numrange")),
    *((of_type(name), "", None, False) for name in ("pg_lsn", "xid8", "tid", "tsvector", "pair", "oidvector")),
    (of_type("numeric"), "", None, False),
    (of_type("numeric", 1), "", None, False),
    (replace(TIMESTAMPTZ, special=[*TIMESTAMPTZ.special, *BEYOND[2].special]), "", "STRING", False),
    (replace(of_type("date"), special=BEYOND[0].special), "", "STRING", False),
    (replace(of_type("int8")), "", "STRING", False),
    (Case("int4[]", ["{1,2}", "{1}", "{}", "{NULL,10}", "{{1,2},{3,4}}"]), "", "STRING", False),
    (Case("d", ["12"], integer(31), "CREATE DOMAIN d AS int4"), "", None, True),
    (Case("d", ["a"], text, 'CREATE DOMAIN d AS text COLLATE "C"'), "", None, True),
    (Case("d", ["a"], text, 'CREATE DOMAIN d AS text COLLATE "en_US.utf8"'), "", None, False),
    (Case("d", MOODS, setup=f"{MOOD}; CREATE DOMAIN d AS mood"), "", None, False),
]


@pytest.mark.parametrize(
    ("case", "collate", "override", "locally"),
    [pytest.param(*case, id=f"{case[0].type} {case[1]}-{index}") for index, case in enumerate(CASES)],
)
def test_a_key_compares_as_its_index_does(
    case: Case, collate: str, override: str | None, locally: bool, keyed_database: Database, rng: Random
) -> None:
    require_version(keyed_database, case.since, case.type)
    values = [[value for value in case.values(rng, RANDOM_VALUES) if value is not None]]
    statements = f"{case.setup}; CREATE TABLE t (k {case.type} {collate} PRIMARY KEY)"
    with filled(keyed_database, statements, values, [case.type]) as table:
        (key,) = table.keys
        mapped = map_column(key.column, override)
        assert ordered_locally(key, mapped) is locally
        assert len(table.rows) > 1 or len(values[0]) == 1
        literals = [table.literals(row) for row in table.rows]
        assert table.holds(
            [compare(table.keys, one, "<", next_) for one, next_ in pairwise(literals)] or [sql.SQL("true")]
        )
        for rank in rng.sample(range(len(table.rows)), min(len(table.rows), 10)):
            assert table.count("=", table.rows[rank]) == 1
            assert table.count("<=", table.rows[rank]) == rank + 1
            assert table.count(">", table.rows[rank]) == len(table.rows) - rank - 1
        plan = table.plan(table.rows[0])
        assert "Index Cond" in plan
        assert "Sort" not in plan
        typed = decode_text(mapped, pa.array([row[0] for row in table.rows]))
        assert_found_by_text(table, encode_text(typed).to_pylist())
        if locally:
            assert pc.sort_indices(typed).to_pylist() == list(range(len(typed)))
            assert pc.all(pc.less(typed[:-1], typed[1:])).as_py() is not False


def assert_found_by_text(table: Table, texts: Sequence[str | None]) -> None:
    """Requires that text made of the typed keys names the same rows, also where only literals are compared."""
    (key,) = table.keys
    lowest = table.literals(table.rows[0])
    value = key_value(key, sql.SQL("u.v"))
    statement = sql.SQL("SELECT count(*), bool_and({}) FROM public.t JOIN unnest({}::text[]) AS u (v) ON {}").format(
        compare(table.keys, [value], ">=", lowest),
        sql.Literal(list(texts)),
        compare(table.keys, table.columns, "=", [value]),
    )
    assert table.session.execute(statement).fetchall() == [(len(table.rows), True)]


SHARED = ["", "a", "%s", "\\%(b)s'", "A", "b", "B", "é", "_", "10", "9"]


@pytest.mark.parametrize(
    ("statements", "types"),
    [
        ("CREATE TABLE t (a int4, b int8, PRIMARY KEY (a, b))", ["int4", "int8"]),
        ("CREATE TABLE t (a int4, b int8, PRIMARY KEY (b, a))", ["int4", "int8"]),
        ('CREATE TABLE t (a text COLLATE "en_US.utf8", b numeric(12,2), PRIMARY KEY (a, b))', ["text", "numeric"]),
        ("CREATE EXTENSION citext; CREATE TABLE t (a int4, b citext, PRIMARY KEY (a, b))", ["int4", "citext"]),
        (
            "CREATE EXTENSION citext; CREATE TABLE t (a citext, b int4, c text, PRIMARY KEY (a, b, c))",
            ["citext", "int4", "text"],
        ),
        (
            """CREATE TABLE t (a text COLLATE "en_US.utf8" NOT NULL, b text NOT NULL, c int4 NOT NULL);
               CREATE UNIQUE INDEX i ON t (a COLLATE "C", b text_pattern_ops, c);
               ALTER TABLE t REPLICA IDENTITY USING INDEX i""",
            ["text", "text", "int4"],
        ),
        (
            """CREATE TABLE t (a text NOT NULL, b int4 NOT NULL);
               CREATE UNIQUE INDEX i ON t (a DESC, b DESC); ALTER TABLE t REPLICA IDENTITY USING INDEX i""",
            ["text", "int4"],
        ),
        *(
            (
                f"""CREATE TABLE t (a text NOT NULL, b int4 NOT NULL);
                    CREATE UNIQUE INDEX i ON t ({columns}); ALTER TABLE t REPLICA IDENTITY USING INDEX i""",
                ["text", "int4"],
            )
            for columns in (
                "a NULLS FIRST, b NULLS FIRST",
                "a DESC NULLS LAST, b DESC NULLS LAST",
                "a text_pattern_ops NULLS FIRST, b",
            )
        ),
    ],
)
def test_a_composite_key_compares_column_by_column(
    statements: str, types: Sequence[str], keyed_database: Database, rng: Random
) -> None:
    makers = {"int4": integer(3), "int8": integer(60), "numeric": number(4, 2)}
    values = [
        [makers[kind](rng) if kind in makers else rng.choice([*SHARED, word(rng)]) for _ in range(150)]
        for kind in types
    ]
    with filled(keyed_database, statements, values, types) as table:
        assert len(table.rows) > 30
        for rank in rng.sample(range(len(table.rows)), 12):
            row = table.rows[rank]
            assert table.count("=", row) == 1
            assert table.count("<", row) == rank
            assert table.count("<=", row) == rank + 1
            assert table.count(">=", row) == len(table.rows) - rank
            assert table.count(">", row) == len(table.rows) - rank - 1
        plan = table.plan(table.rows[0])
        assert "Index Cond" in plan
        assert "Sort" not in plan
        for _ in range(20):
            first = rng.randrange(len(table.rows))
            last = min(len(table.rows) - 1, first + rng.choice([0, 1, 2, 50]))
            assert table.in_range(KeyRange(table.rows[first], table.rows[last])) == last - first
        alike = [pair for pair in pairwise(table.rows) if pair[0][:-1] == pair[1][:-1]]
        for pair in rng.sample(alike, min(3, len(alike))):
            assert "Filter" not in table.range_plan(KeyRange(*pair))
