"""A sink in one SQLite file: transactional by batch id, and a recorder that forgets nothing.

    table_state  the copy of the table: one row per key
    batches      what was applied, one row per batch id: the marker and the history in one, so that no row gets into
                 the history without the transaction that also changed the copy
    attempts     every complete reading of a batch, also of those that were never applied

Rows are kept as the Arrow stream they came in. A batch id that was applied before changes nothing, but its rows must
be those that were applied (I4); so must all complete readings of a batch be equal among themselves.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

Row = dict[str, Any]

_SCHEMA: Final = """
    CREATE TABLE IF NOT EXISTS table_state (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS batches (batch INTEGER PRIMARY KEY, content BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS attempts (number INTEGER PRIMARY KEY, batch INTEGER NOT NULL, content BLOB NOT NULL);
"""


class SinkError(Exception):
    """The stream gave rows that no consumer could apply, or not the same rows again."""


@dataclass(frozen=True)
class Sink:
    """One copy of one table. Opens its file for each use, in whatever process that is.

    `supersedes`: a snapshot row may be of a key that is there, because rows are taken again.
    """

    path: Path
    key: tuple[str, ...]
    supersedes: bool = False

    def write(self, batch: int, rows: pa.Table, reached: Callable[[str], None]) -> None:
        """Applies a batch, unless it was applied before; `reached` is told of the steps around the transaction."""
        content = _packed(rows)
        with self._opened() as connection:
            connection.execute("INSERT INTO attempts (batch, content) VALUES (?, ?)", [batch, content])
        reached("sink about to be written")
        with self._opened() as connection:
            applied = connection.execute("SELECT content FROM batches WHERE batch = ?", [batch]).fetchone()
            if applied is None:
                connection.execute("INSERT INTO batches (batch, content) VALUES (?, ?)", [batch, content])
                for row in sorted(rows.to_pylist(), key=lambda row: int(row["_sequence"])):
                    self._apply(connection, row)
            else:
                require_same(batch, _unpacked(applied[0]), rows)
        reached("sink written")

    def _apply(self, connection: sqlite3.Connection, row: Row) -> None:
        key, value = self.texts_of(row)
        match row["_change_type"]:
            case "insert":
                else_ = "REPLACE" if self.supersedes and row["_is_snapshot"] else "IGNORE"
                done = connection.execute(f"INSERT OR {else_} INTO table_state VALUES (?, ?)", [key, value])
            case "update_preimage":
                done = connection.execute(
                    "UPDATE table_state SET value = value WHERE key = ? AND value = ?", [key, value]
                )
            case "update_postimage":
                done = connection.execute("UPDATE table_state SET value = ? WHERE key = ?", [value, key])
            case "delete":
                done = connection.execute("DELETE FROM table_state WHERE key = ?", [key])
            case other:
                raise SinkError(f"a row of the unknown kind {other!r}")
        if done.rowcount != 1:
            raise SinkError(f"{row['_change_type']} cannot be applied: {row}")

    def texts_of(self, row: Row) -> tuple[str, str]:
        """The key and the columns of a row, without the metadata, as `state` has them."""
        columns = {name: value for name, value in row.items() if not name.startswith("_")}
        return json.dumps([row[name] for name in self.key], default=str), json.dumps(columns, default=str)

    def go_on_from(self, other: Sink) -> None:
        """Takes over another sink's copy of the table, for a query with batch ids of its own."""
        with self._opened() as connection:
            connection.executemany("INSERT INTO table_state VALUES (?, ?)", list(other.state().items()))

    # -- what it holds ---------------------------------------------------------------------------------------------

    def batches(self) -> list[tuple[int, list[Row]]]:
        """Every batch that was applied, with its rows, in the order of the batch ids."""
        with self._opened() as connection:
            found = connection.execute("SELECT batch, content FROM batches ORDER BY batch").fetchall()
        return [(batch, _unpacked(content).to_pylist()) for batch, content in found]

    def state(self) -> dict[str, str]:
        """The copy of the table, as JSON texts."""
        with self._opened() as connection:
            return dict(connection.execute("SELECT key, value FROM table_state").fetchall())

    def require_equal_attempts(self) -> int:
        """All complete readings of a batch must have the same rows (I4); returns how many were beyond the first."""
        with self._opened() as connection:
            found = connection.execute("SELECT batch, content FROM attempts ORDER BY number").fetchall()
        first: dict[int, pa.Table] = {}
        for batch, content in found:
            rows = _unpacked(content)
            require_same(batch, first.setdefault(batch, rows), rows)
        return len(found) - len(first)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """One transaction. Processes are killed, the machine is not: nothing has to reach the disk itself."""
        with closing(sqlite3.connect(self.path, timeout=30)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.executescript(_SCHEMA)
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection


def require_same(batch: int, before: pa.Table, now: pa.Table) -> None:
    """Requires the same rows of two readings of one batch, in whatever order readers gave them."""
    first, second = _sorted(before), _sorted(now)
    if first != second:
        only_first = [row for row in first if row not in second]
        only_second = [row for row in second if row not in first]
        raise SinkError(
            f"batch {batch} was read again and differs: {len(first)} rows, then {len(second)}; "
            f"only the first time {only_first[:3]}, only the second time {only_second[:3]}"
        )


def _sorted(rows: pa.Table) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows.to_pylist())


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def _unpacked(content: bytes) -> pa.Table:
    with ipc.open_stream(content) as reader:
        return reader.read_all()
