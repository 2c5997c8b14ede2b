"""The sink that the rows go to: a consumer that checks everything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pyarrow as pa

from tests.simulator.database import Key, Row

Output = tuple[Any, Any, str | None, str, bool, int, int, int]
"""`a`, `b`, `v`, `_change_type`, `_is_snapshot`, `_commit_version`, `_commit_timestamp`, `_sequence`."""

_sequence = itemgetter(7)


def output_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> list[Output]:
    """Returns the rows of batches, which must have exactly this schema."""
    table = pa.Table.from_batches(list(batches), schema=schema)
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@dataclass(slots=True)
class Sink:
    """Folds what it gets in the order of `_sequence`, and refuses what no consumer could apply (I2, I3).

    Rows that are taken again are snapshot rows of keys that are there: they supersede what was there.
    """

    rows: dict[Key, Row] = field(default_factory=dict)
    sequences: dict[Key, int] = field(default_factory=dict)

    def copy(self) -> Sink:
        return Sink(dict(self.rows), dict(self.sequences))

    def apply(self, batch: Iterable[Output], *, full: bool = False, again: bool = False) -> None:
        """Applies the rows of a batch.

        With `full`, each update comes with the row before it, and each delete with the whole row. With `again`, the
        keys of snapshot rows are there already.
        """
        before: Output | None = None
        for row in sorted(batch, key=_sequence):
            if full and row[3] == "delete":
                assert self.rows.get(row[:2]) == row[:3], f"not the row that is deleted: {row}"
            if full and row[3] == "update_postimage":
                assert before is not None, f"an update without the row before: {row}"
                assert (before[3], before[:2]) == ("update_preimage", row[:2]), (
                    f"an update without the row before: {row}"
                )
            self._apply(row, again=again)
            before = row

    def _apply(self, output: Output, *, again: bool) -> None:
        row, kind, sequence = output[:3], output[3], output[7]
        if kind == "truncate":
            assert row == (None, None, None)
            self.rows.clear()
            return
        key = row[:2]
        assert sequence > self.sequences.get(key, -1), f"_sequence does not grow: {output}"
        self.sequences[key] = sequence
        match kind:
            case "insert":
                there = key in self.rows
                assert there == (again and output[4]), (
                    f"insert of {'a present' if there else 'an absent'} key: {output}"
                )
                self.rows[key] = row
            case "update_preimage":
                assert self.rows.get(key) == row, f"not the row before: {output}"
            case "update_postimage":
                assert key in self.rows, f"update of an absent key: {output}"
                self.rows[key] = row
            case "delete":
                assert key in self.rows, f"delete of an absent key: {output}"
                del self.rows[key]
            case _:
                raise AssertionError(f"unknown change type: {output}")
