"""Keys that databases and languages order differently: changes land on the right side of every border."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql

from integration.database import Database
from integration.fixtures.streams import StartStream

WORDS = (
    *("a", "A", "b", "B", "é", "e", "É", "z", "Z", "_", "-", " ", "  ", "", "10", "9", "1", "_10", "a b", "ab", "a-b"),
    *("ß", "ss", "Ö", "o", "ö", "'", '"', "\\", "€", "😀", "\t", "a\n", "%", "NULL", "null", "{}", "ab ", " ab"),
)


ENOUGH = 100_000
"""Changes that one batch may take; it is `maxBytesPerTrigger` that keeps the chunks small."""


def literal(text: str) -> str:
    return sql.Literal(text).as_string(None)


@dataclass(frozen=True)
class Key:
    """A table `t (v, <definition>)` and SQL literals of keys, in no order."""

    definition: str
    columns: tuple[str, ...]
    values: list[str]
    select: str
    setup: str = ""

    @property
    def listed(self) -> str:
        return ", ".join(self.columns)


def texts(collation: str) -> Key:
    return Key(f'id text COLLATE "{collation}" PRIMARY KEY', ("id",), [literal(word) for word in WORDS], "*")


def simple(kind: str, *values: str, select: str = "id::text") -> Key:
    return Key(f"id {kind} PRIMARY KEY", ("id",), [f"'{value}'::{kind}" for value in values], f"v, {select}")


KEYS = {
    "text in a linguistic order": texts("en_US.utf8"),
    "text in the order of bytes": texts("C"),
    "uuid": simple("uuid", *(f"{n * 7919 % 256:02x}{n:06x}-0000-4000-8000-{n * 31:012x}" for n in range(36))),
    "bytea": simple("bytea", *(f"\\x{n * 37 % 256:02x}{'00' * (n % 3)}" for n in range(36)), "\\x", select="id"),
    "numeric": simple(
        "numeric",
        *("NaN", "Infinity", "-Infinity", "0", "-0.5", "1e20", "-1e20", "1e-20", "10", "9", "9.000", "1.10", "0.00001"),
        *(str(n * n - 50) + ".25" for n in range(24)),
    ),
    "numeric with a scale": simple("numeric(12,3)", *(f"{n * 7 - 100}.{n:03d}" for n in range(36)), select="id"),
    "float8": simple(
        "float8",
        *(
            "Infinity",
            "-Infinity",
            "0",
            "1e300",
            "-1e300",
            "1e-300",
            "5e-324",
            "0.1",
            "-0.1",
            "9007199254740993",
        ),
        *(str(n * n - 50) + ".25" for n in range(24)),
        select="id",
    ),
    "timestamptz": simple(
        "timestamptz",
        *("0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "1969-12-31 23:59:59.999999+00"),
        *(f"{1900 + n * 7}-03-{n % 28 + 1:02d} {n % 24:02d}:30:00.{n:06d}+05:30" for n in range(34)),
        select="id",
    ),
    "date": simple("date", *(f"{1800 + n * 11}-02-{n % 28 + 1:02d}" for n in range(36)), select="id"),
    "boolean and smallint": Key(
        "a boolean, b smallint, PRIMARY KEY (a, b)",
        ("a", "b"),
        [f"{n % 2 == 0}, {(n - 18) * 1000}" for n in range(36)],
        "*",
    ),
    "enum": Key(
        "a mood, b int, PRIMARY KEY (a, b)",
        ("a", "b"),
        [f"'{('sad', 'ok', 'happy', 'angry')[n % 4]}', {n // 4}" for n in range(36)],
        "v, a::text, b",
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); ALTER TYPE mood ADD VALUE 'angry' BEFORE 'ok'",
    ),
    "char(n), which ignores blanks at the end": Key(
        "id char(6) PRIMARY KEY",
        ("id",),
        [literal(word) for word in dict.fromkeys(word.rstrip(" ") for word in WORDS)],
        "*",
    ),
    "inet": simple(
        "inet", *(f"{10 + n % 3}.{n}.0.{255 - n}/{8 + n % 25}" for n in range(36)), select="format('%s', id) AS id"
    ),
    "interval": Key(
        "id interval PRIMARY KEY",
        ("id",),
        [f"interval '{n} days {24 * (40 - n)} hours {n} seconds'" for n in range(36)],
        "v, id::text",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET IntervalStyle = iso_8601', current_database()); END $$",
    ),
    "a domain over text": Key(
        "id code PRIMARY KEY",
        ("id",),
        texts("C").values,
        "v, id::text",
        'CREATE DOMAIN code AS text COLLATE "en_US.utf8"',
    ),
    "an index that descends": Key(
        'a text COLLATE "en_US.utf8" NOT NULL, b int NOT NULL',
        ("a", "b"),
        [f"'{'aBéZ_1'[n % 6]}', {n - 18}" for n in range(36)],
        "*",
        "",
    ),
    "four columns of which the first ones are equal": Key(
        "a int, b text, c uuid, d numeric(8,2), PRIMARY KEY (a, b, c, d)",
        ("a", "b", "c", "d"),
        [f"1, '{'xX'[n % 2]}', '{n % 3:08x}-0000-4000-8000-000000000000', {n}.5" for n in range(36)],
        "v, a, b, c::text, d",
    ),
}


def table_with(database: Database, key: Key) -> None:
    """Makes the table with every second key."""
    if key.setup:
        database.execute(key.setup)
    database.execute(f"CREATE TABLE t (v text, {key.definition})")
    if "PRIMARY KEY" not in key.definition:
        database.execute("CREATE UNIQUE INDEX t_key ON t (a DESC, b); ALTER TABLE t REPLICA IDENTITY USING INDEX t_key")
    for value in key.values[::2]:
        database.execute(f"INSERT INTO t (v, {key.listed}) VALUES ('first', {value})")
    database.execute("ANALYZE t")


def churn(database: Database, key: Key, rng: random.Random) -> None:
    """Inserts, updates, deletes and moves all over the table, so also at both sides of every border."""
    with database.connect(autocommit=True) as connection:
        for value in rng.sample(key.values, 8):
            is_it = f"({key.listed}) = ({value})"
            statements = [
                f"INSERT INTO t (v, {key.listed}) VALUES ('new', {value}) ON CONFLICT DO NOTHING",
                f"UPDATE t SET v = v || '+' WHERE {is_it}",
                f"DELETE FROM t WHERE {is_it}",
                f"UPDATE t SET ({key.listed}) = ROW({rng.choice(key.values)}) WHERE {is_it}",
            ]
            with contextlib.suppress(psycopg.errors.UniqueViolation):  # a move may lead to where there is a row
                connection.execute(rng.choice(statements))


@pytest.mark.parametrize("name", KEYS)
def test_changes_land_on_the_right_side_of_every_border(
    database: Database, start_stream: StartStream, name: str, rng: random.Random
) -> None:
    key = KEYS[name]
    table_with(database, key)
    # The server assumes that a row of so small a table has a few hundred bytes.
    run = start_stream(key=key.columns, select=key.select, vnodeCount="4", maxBytesPerTrigger="1500")
    number = 0
    while not number or not run.backfilled:
        number += 1
        run.judged_batch(ENOUGH)
        churn(database, key, rng)
        if rng.random() < 0.1:
            run.restart()
    assert run.judged > 3
    run.finish()
