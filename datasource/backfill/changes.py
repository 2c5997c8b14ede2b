"""What an upstream's change log looks like to the core: one Arrow layout for every database.

| column      | type                     | meaning                                                          |
|-------------|--------------------------|------------------------------------------------------------------|
| `op`        | uint8                    | `INSERT`, `UPDATE`, `DELETE` or `TRUNCATE`                       |
| `version`   | int64                    | the commit's version; equal for all changes of one commit        |
| `timestamp` | timestamp[us, UTC]       | when the commit happened, by the upstream's clock                |
| `commit_id` | int64                    | the upstream's own name of the commit (PostgreSQL: its xid)      |
| `old_kind`  | uint8                    | how much of the row before the change is known (`OLD_*`)         |
| `new`       | struct of the columns    | the row after the change; null for DELETE and TRUNCATE           |
| `old`       | struct of the columns    | the row before the change as far as known; null for `OLD_NONE`   |
| `unchanged` | list<string>             | columns of `new` whose value the log left out; null means none   |

Rows stand in commit order, and inside a commit in the order in which they were made. The structs hold the
selected columns and the key columns, in the order of `TableSchema.columns`.
"""

from __future__ import annotations

from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

INSERT: Final = 0
UPDATE: Final = 1
DELETE: Final = 2
TRUNCATE: Final = 3

OLD_NONE: Final = 0
OLD_KEY: Final = 1
OLD_ROW: Final = 2


def changes_schema(columns: pa.Schema) -> pa.Schema:
    """The layout above for a table with these columns (all nullable)."""
    row = pa.struct([field.with_nullable(True) for field in columns])
    return pa.schema(
        [
            pa.field("op", pa.uint8()),
            pa.field("version", pa.int64()),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
            pa.field("commit_id", pa.int64()),
            pa.field("old_kind", pa.uint8()),
            pa.field("new", row),
            pa.field("old", row),
            pa.field("unchanged", pa.list_(pa.string())),
        ]
    )


def column_of(row: pa.Array[Any], name: str) -> Any:
    """A column of `new`, `old` or any such struct. As a bare text, a name that begins with a dot would be a path."""
    return pc.struct_field(row, pc.field(name))


def columns_of(row: pa.Array[Any]) -> dict[str, Any]:
    """All columns of such a struct by name. One by one, 1,500 took 1.6 s: the time of each grows with their number."""
    struct = cast("pa.StructArray", row)
    return dict(zip((field.name for field in struct.type), struct.flatten(), strict=True))
