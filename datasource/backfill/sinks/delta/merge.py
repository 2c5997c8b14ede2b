"""From the last rows of a batch to the target: one MERGE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable

from backfill.arrow.arrays import Indices, Mask
from backfill.arrow.batches import as_one_batch, coalesced
from backfill.arrow.sameness import canonical
from backfill.errors import UnsupportedTypeError
from backfill.sinks.compacted import CompactedBatch
from backfill.sinks.delta.record import note
from backfill.sinks.merge_source import DELETED, column_name, kept_name, merge_source
from backfill.upstream.delta.files.statistics import leaving_out, may_miss
from backfill.upstream.delta.keys.columns import KeyColumn, KeyColumns
from backfill.upstream.delta.snapshot.scan import scanned
from backfill.upstream.delta.tables.properties import has_feed
from backfill.upstream.delta.tables.types import arrow_type

KEYS_AT_ONCE: Final = 245_760
"""How many of the target's keys are looked at together."""


def merge(table: DeltaTable, key: Sequence[str], last: CompactedBatch, record: CommitProperties) -> None:
    """Applies the batch to the table, in one commit, which has the record of the batch."""
    before = table.version()
    if last.rows.num_rows:
        _merge_rows(table, key, last, record)
    elif last.emptied:
        table.delete(commit_properties=record)
    note(table, before, record)


def require_kept(table: DeltaTable, key: Sequence[str], last: CompactedBatch) -> None:
    """Refuses a batch that keeps a value of the target where the target has no such row."""
    kept = np.zeros(last.rows.num_rows, np.bool_)
    for mask in last.kept.values():
        kept |= mask & ~last.deleted
    if len(_not_there(table, key, last, kept)):
        raise last.no_row_to_keep()


def without_strays(table: DeltaTable, key: Sequence[str], last: CompactedBatch) -> CompactedBatch:
    """The batch without deletes of rows that are not there, where `deltalake` (1.6) would hold these to the table's
    constraints.

    With the change data feed it checks also what a MERGE leaves out: rows of which all columns are null.
    """
    if not (has_feed(table.metadata().configuration) and _is_constrained(table)):
        return last
    strays = _not_there(table, key, last, last.deleted)
    if not len(strays):
        return last
    others = np.ones(last.rows.num_rows, np.bool_)
    others[strays] = False
    kept = {name: mask[others] for name, mask in last.kept.items()}
    return replace(last, rows=last.rows.filter(pa.array(others)), deleted=last.deleted[others], kept=kept)


def _is_constrained(table: DeltaTable) -> bool:
    """Whether the table may refuse a row: by a constraint, a column that takes no null, or an invariant in metadata."""
    named = any(name.startswith("delta.constraints.") for name in table.metadata().configuration)
    return named or any(column.metadata or not column.nullable for column in table.schema().fields)


def _not_there(table: DeltaTable, key: Sequence[str], last: CompactedBatch, chosen: Mask) -> Indices:
    """Which of the chosen rows of the batch have a key that the table does not have; all of them after a truncation."""
    if last.emptied or not chosen.any():
        return np.flatnonzero(chosen)
    # A join takes a name that begins with a dot for a path.
    names = [column_name(at) for at in range(len(key))]
    given = as_one_batch(last.rows.select(list(key)).filter(pa.array(chosen)))
    columns = given.schema
    wanted = _joinable(given, names).append_column("place", pa.array(np.flatnonzero(chosen)))
    # Not all at once: the target may be larger than memory.
    found = scanned(table, key, _around(table, given))
    for keys in coalesced((batch.select(key).cast(columns) for batch in found), KEYS_AT_ONCE):
        if not wanted.num_rows:
            break
        wanted = _joinable(keys, names).join(wanted, names, join_type="right anti")
    return wanted["place"].to_numpy()


def _around(table: DeltaTable, keys: pa.RecordBatch) -> str | None:
    """SQL that leaves out files that cannot have any of these keys; None where their statistics do not tell."""
    name = keys.schema.names[0]
    [kind] = [field.type for field in table.schema().fields if field.name == name]
    try:
        key = KeyColumns((KeyColumn.of(pa.field(name, arrow_type(name, kind))),))
    except UnsupportedTypeError:
        return None
    return leaving_out(table, key, (key.around(keys),))


def _joinable(keys: pa.RecordBatch, names: list[str]) -> pa.Table:
    """The keys under these names, with a float's two zeros made one: a join tells them apart, and a MERGE does not."""
    return pa.Table.from_batches([canonical(keys)]).rename_columns(names)


def _merge_rows(table: DeltaTable, key: Sequence[str], last: CompactedBatch, record: CommitProperties) -> None:
    names = last.rows.column_names
    values = {_quoted(name): f"s.{column_name(at)}" for at, name in enumerate(names)}
    # Of a row that was there before a truncation nothing is left.
    others = [field.name for field in table.schema().fields if last.emptied and field.nullable]
    cleared = {_quoted(name): "NULL" for name in others if name not in names}
    kept = {
        _quoted(name): f"CASE WHEN s.{kept_name(at)} THEN t.{_quoted(name)} ELSE {values[_quoted(name)]} END"
        for at, name in enumerate(last.kept)
    }
    same = " AND ".join(_equal(f"t.{_quoted(name)}", values[_quoted(name)], last.rows[name]) for name in key)
    merger = table.merge(
        merge_source(last, names),
        same,
        source_alias="s",
        target_alias="t",
        # If it is not streamed, it leaves out files that cannot have the batch's keys, by their statistics.
        streamed_exec=any(may_miss(table, name, last.rows[name]) for name in key),
        commit_properties=record,
    )
    merger = merger.when_matched_delete(f"s.{DELETED}").when_matched_update(values | kept | cleared)
    merger = merger.when_not_matched_insert(values, f"NOT s.{DELETED}")
    if last.emptied:
        merger = merger.when_not_matched_by_source_delete()
    merger.execute()


def _equal(target: str, source: str, values: pa.ChunkedArray[Any]) -> str:
    """SQL for keys that are equal. It is an equation, as with anything else each row would be compared with each.

    An equation compares the bits of NaNs, which are all one value to a database.
    """
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        kind = "DOUBLE" if pa.types.is_float64(values.type) else "FLOAT"
        target, source = (f"nanvl({side}, CAST('NaN' AS {kind}))" for side in (target, source))
    return f"{target} = {source}"


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))
