"""What others may have made in a schema of the `search_path` is neither run nor read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import backfill
from backfill.options import parse
from backfill.sinks.postgres import PostgresSink
from backfill.upstream.postgres.doctor import examine
from backfill.upstream.postgres.session.connection import Connector
from backfill.upstream.postgres.session.retries import RetryPolicy
from integration import traps
from integration.copies import batch_of
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import table_of

PATH = f"SET search_path = public, {traps.SCHEMA}"


@pytest.fixture
def trapped(database: Database) -> Database:
    database.execute(traps.SET)
    return database


PARTITIONED = (
    " PARTITION BY RANGE (part); CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (1);"
    "CREATE TABLE t2 PARTITION OF t DEFAULT"
)

ATTACHED = "CREATE TABLE t3 (LIKE t INCLUDING ALL); ALTER TABLE t ATTACH PARTITION t3 FOR VALUES FROM (7) TO (8)"


@pytest.mark.parametrize("table", ["", PARTITIONED], ids=["plain", "partitioned"])
def test_a_stream_reaches_no_function_or_operator_of_others(
    trapped: Database, start_stream: StartStream, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    trapped.execute(
        f'CREATE TABLE t (part int, id text COLLATE "en_US.utf8", v text, PRIMARY KEY (part, id)){table};'
        "INSERT INTO t SELECT i % 2, i, repeat('v', 9000) FROM generate_series(1, 400) i; ANALYZE t"
    )
    run = start_stream(key=("part", "id"), sessionInitStatement=PATH, vnodeCount="3", changelog="full")
    run.judged_batch(60)
    trapped.execute("UPDATE t SET id = 'new' || id WHERE id::int % 7 = 0; DELETE FROM t WHERE id < '3'")
    if table:
        trapped.execute(ATTACHED)
    run.judged_batch(60)
    filtered = {**run.options, "snapshotFilter": "v <> 'a'"}
    assert [found.what for found in examine(parse(filtered)) if found.refuses] == []
    assert "could not be checked" not in caplog.text
    run.finish()


def test_a_database_that_turns_numbers_into_texts_by_itself_is_streamed(
    database: Database, start_stream: StartStream
) -> None:
    """Databases that came from a version before 8.3 do that."""
    table_of(database, 60)
    for kind in ("int", "bigint", "oid"):
        database.execute(f"CREATE CAST ({kind} AS text) WITH INOUT AS IMPLICIT")
    run = start_stream(changelog="full")
    run.judged_batch(20)
    database.execute("UPDATE t SET v = 'new' WHERE id < 5")
    run.finish()


def test_a_sink_reaches_no_function_or_operator_of_others(trapped: Database) -> None:
    trapped.execute("CREATE TABLE copy (id int PRIMARY KEY, price numeric(9,2), prices numeric(9,2)[])")
    connector = Connector.of(trapped.dsn, init_statement=PATH)
    apply = PostgresSink(connector, "copy", ("id",), "t", RetryPolicy())
    row = {"id": 1, "price": "1.50", "prices": ["2.50"]}
    for number, change in enumerate(("insert", "update_postimage", "delete")):
        apply(batch_of(row | {"_change_type": change}), number)
        assert trapped.execute("SELECT count(*) FROM copy") == [(change != "delete",)]


def test_functions_are_called_with_their_schema(database: Database) -> None:
    known = {name for (name,) in database.execute("SELECT proname FROM pg_proc")}
    syntax = {"extract", "numeric"}
    advised = {"pg_reload_conf", "pg_drop_replication_slot", "translate"}  # in advice, or in Python
    called = {
        (file.name, name)
        for folder in ("upstream", "sinks")
        for file in Path(backfill.__file__).parent.joinpath(folder, "postgres").rglob("*.py")
        for text in texts_of(file)
        for name in re.findall(r"(?<![\w.\"])[a-z_][a-z_0-9]*(?=\()", text)
    }
    assert [(file, name) for file, name in called if name in known - syntax - advised] == []


def texts_of(file: Path) -> Iterator[str]:
    """The text literals of a module, without its docstrings and the texts that it raises."""
    tree = ast.parse(file.read_text())
    raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    left_out = raised | docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value
