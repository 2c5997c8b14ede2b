"""What `upsert-v1.duckdb.gz` holds, which an older release has written. The files are never edited nor made again."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa

from backfill_state.upsert import Totals, UpsertLayout
from tests.upsert_state.upserts import Cells, columns_of

LAYOUT = UpsertLayout(
    "5f0c9a1b",
    columns_of(("region", pa.string()), ("probe", pa.binary()), ("day", pa.date32())),
    columns_of(
        ("region", pa.string()),
        ("instant", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(20, 4)),
        ("large", pa.decimal256(50, 0)),
        ("ratio", pa.float64()),
        ("tags", pa.list_(pa.struct([pa.field("a", pa.uint64()), pa.field("b", pa.bool_())]))),
    ),
)
KEYS: list[Cells] = [("eu é", b"\0\xff", date(2024, 2, 29)), ("", b"", date(1, 1, 1)), ("us", b"x", date(2024, 1, 1))]
ROW: Cells = (
    "eu é",
    datetime(2024, 7, 1, 12, 30, tzinfo=UTC),
    Decimal("-1234567890123456.7891"),
    Decimal(10**49),
    -0.0,
    [{"a": 2**64 - 1, "b": None}, None],
)
NOTHING: Cells = (None,) * len(LAYOUT.row)
BATCH = "42"
SIZES = [16 + 11 + 5 + 8 + 16 + 32 + 8 + 8, 16 + 4, 16 + 7]
ENTRIES = [
    (7, -1, True, SIZES[0], ROW),
    (8, 0, False, SIZES[1], NOTHING),
    (7, 0, True, SIZES[2], NOTHING),
]
TOTALS = Totals(2, 1, sum(SIZES))
SCHEMA = "SELECT sql FROM duckdb_tables() ORDER BY table_name"


def schema_of(path: Path) -> str:
    """The DDL of all tables of a DuckDB file, one statement a line."""
    with duckdb.connect(str(path), read_only=True) as connection:
        return "".join(f"{statement}\n" for (statement,) in connection.execute(SCHEMA).fetchall())
