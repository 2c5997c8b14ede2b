"""How `progress-v1.duckdb` and `schema-v1.sql` were made. The files are never edited nor made again.

    python -m tests.state_store.golden.make_v1 DIRECTORY

A later release writes another format; then this script only tells what the files hold.
"""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa

from backfill_state import DuckDBProgressStore, StreamIdentity
from tests.state_store.streams import Row, barrier, bounds_table, key_of

KEY = key_of(
    region=pa.string(),
    vnode=pa.int64(),
    Region=pa.binary(),
    day=pa.date32(),
    at=pa.timestamp("us"),
    instant=pa.timestamp("us", tz="UTC"),
    clock=pa.time64("us"),
    amount=pa.decimal128(20, 4),
    sure=pa.bool_(),
    ratio=pa.float64(),
)
IDENTITY = StreamIdentity(
    stream_id="5f0c9a1b",
    upstream="postgresql",
    system="7412345678901234567",
    table="public.orders",
    table_id="16384",
    key=KEY,
    properties=(("slot", "backfill_5f0c9a1b"), ("publication", "backfill_orders")),
)
POSITION: Row = (
    "eu \u00e9",
    2**63 - 1,
    b"\0\xff",
    date(2024, 2, 29),
    datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - a timestamp without a zone is the point
    datetime(2024, 7, 1, 12, 30, tzinfo=UTC),
    time(23, 59, 59, 999999),
    Decimal("-1234567890123456.7891"),
    True,
    0.1,
)
NOWHERE: Row = (None,) * len(KEY)
BOUNDS: list[Row] = [(0, *POSITION), (1, *NOWHERE)]
FIRST: list[Row] = [(1, *POSITION, False, 5), (2, *NOWHERE, False, None)]
SECOND: list[Row] = [(0, *NOWHERE, True, 4200), (1, *POSITION, False, 512)]
PROGRESS: list[Row] = [*SECOND, FIRST[1]]
OFFSET = '{"version":1,"epoch":{"number":42}}'
SCHEMA = "SELECT sql FROM duckdb_tables() ORDER BY table_name"


def schema_of(path: Path) -> str:
    """The DDL of all tables of a DuckDB file, one statement a line."""
    with duckdb.connect(str(path), read_only=True) as connection:
        return "".join(f"{statement}\n" for (statement,) in connection.execute(SCHEMA).fetchall())


def make(path: Path) -> None:
    """Writes a state file with the contents above."""
    with DuckDBProgressStore(path) as store:
        store.begin(IDENTITY)
        store.set_bounds(bounds_table(BOUNDS, KEY))
        store.commit(barrier(41, *FIRST, key=KEY))
        store.commit(barrier(42, *SECOND, offset=OFFSET, key=KEY))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    make(directory / "progress-v1.duckdb")
    (directory / "schema-v1.sql").write_text(schema_of(directory / "progress-v1.duckdb"))
