"""Rows in place of a DataFrame, with what a keyed sink uses of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Rows:
    """Has the one method of a DataFrame that a keyed sink calls."""

    table: pa.Table

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self.table

    def having(self, **columns: Any) -> Rows:
        """Returns the same rows with these columns, in place of those of the same names, or after the others."""
        table = self.table
        for name, values in columns.items():
            if name in table.column_names:
                table = table.set_column(table.column_names.index(name), name, pa.array(values))
            else:
                table = table.append_column(name, pa.array(values))
        return Rows(table)
