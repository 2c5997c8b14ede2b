"""The simulated database's log in the layout of `backfill.changes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from backfill.changes import DELETE, INSERT, OLD_KEY, OLD_NONE, OLD_ROW, TRUNCATE, UPDATE, changes_schema
from tests.simulator.database import TRUNCATION, Change, Commit, Row

_FIELDS: list[pa.Field[Any]] = [pa.field("a", pa.int64()), pa.field("b", pa.int64()), pa.field("v", pa.string())]
COLUMNS = pa.schema(_FIELDS)
CHANGES = changes_schema(COLUMNS)


def logged(rows: list[tuple[Commit, Change]], *, full_identity: bool, leaves_out: bool) -> pa.RecordBatch:
    """Returns the changes of commits, with as much of the rows before them as the replica identity puts into the log.

    With `leaves_out`, an update does not carry a value that it left as it was.
    """
    commits = np.array([entry.lsn for entry, _ in rows], np.int64)
    known = [_known(change, full=full_identity) for _, change in rows]
    left_out = [leaves_out and _leaves_out(change, full=full_identity) for _, change in rows]
    new = [
        (*change.new[:2], None) if change.new and left else change.new
        for left, (_, change) in zip(left_out, rows, strict=True)
    ]
    old = [
        None
        if change.old is None or kind == OLD_NONE
        else (*change.old[:2], change.old[2] if kind == OLD_ROW else None)
        for kind, (_, change) in zip(known, rows, strict=True)
    ]
    columns: list[pa.Array[Any]] = [
        pa.array([_operation(change) for _, change in rows], pa.uint8()),
        pa.array(commits),
        pa.array(commits * 1_000_000).cast(CHANGES.field("timestamp").type),
        pa.array(commits),
        pa.array(known, pa.uint8()),
        _struct(new),
        _struct(old),
        pa.array([["v"] if left else None for left in left_out], CHANGES.field("unchanged").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CHANGES)


def _operation(change: Change) -> int:
    if change == TRUNCATION:
        return TRUNCATE
    return INSERT if change.old is None else DELETE if change.new is None else UPDATE


def _known(change: Change, *, full: bool) -> int:
    """Returns how much of the row before is in the log, which PostgreSQL decides by the replica identity."""
    if change.old is None:
        return OLD_NONE
    if full:
        return OLD_ROW
    return OLD_KEY if change.new is None or change.new[:2] != change.old[:2] else OLD_NONE


def _leaves_out(change: Change, *, full: bool) -> bool:
    """Whether this is an update, of the key or not, that leaves the value alone; never where the old row is logged."""
    return change.old is not None and change.new is not None and change.old[2] == change.new[2] and not full


def _struct(rows: Sequence[Row | None]) -> pa.StructArray:
    missing = pa.array([row is None for row in rows], pa.bool_())
    present = [(None, None, None) if row is None else row for row in rows]
    return pa.StructArray.from_arrays(columns_of(present), fields=list(COLUMNS), mask=missing)


def columns_of(rows: Sequence[tuple[int | None, int | None, str | None]]) -> list[pa.Array[Any]]:
    return [pa.array([row[at] for row in rows], COLUMNS.field(at).type) for at in range(len(COLUMNS))]
