"""What a whole batch comes to: for each key its last row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.arrow.arrays import Indices, Mask, mask
from backfill.arrow.order import differ, sorting_by
from backfill.arrow.sameness import same
from backfill.errors import OptionsError, UnchangedToastError
from backfill.mark import CHANGE_TYPES
from backfill.rows import RESERVED, UNCHANGED_COLUMNS

CHANGE_TYPE: Final = "_change_type"
SEQUENCE: Final = "_sequence"
NEEDED: Final = (CHANGE_TYPE, "_commit_version", SEQUENCE)


@dataclass(frozen=True, slots=True)
class CompactedBatch:
    """A batch as it is applied: if `emptied` all rows of the target go first; then `rows`, one for each key.

    `rows` has the table's columns, in their `large` types, and `deleted`, of equal length. `kept` tells for a column in
    which rows the target's own value stays, because the change log left it out. `target` is what errors call it.
    """

    target: str
    emptied: bool
    rows: pa.Table
    deleted: Mask
    kept: dict[str, Mask]

    @property
    def leaves_rows(self) -> bool:
        return not self.deleted.all()

    def no_row_to_keep(self) -> UnchangedToastError:
        """The error where a value of the target is to stay, and the target has no such row."""
        return UnchangedToastError(
            f"an update left out the large unchanged value of column {' or '.join(self.kept)}, and {self.target} has "
            "no row to take it from. Was the target emptied, or the stream begun with startupMode=latest? Fill the "
            "target and start over"
        )


def key_of(key: Sequence[str]) -> tuple[str, ...]:
    """The key as the sinks keep it; OptionsError for none, and for a bare name, which is a sequence of letters too."""
    if isinstance(key, str) or not key:
        raise OptionsError(f"key is {key!r}; expected a list of columns, such as key=[{key or 'id'!r}]")
    return tuple(key)


def compacted(batch: pa.Table, key: Sequence[str], target: str) -> CompactedBatch:
    """The last row of each key, by `_sequence`, after the last `truncate`; `target` is what errors call the table.

    Raises OptionsError if a column is missing or a key is null, UnchangedToastError if a value is neither here nor in
    the target.
    """
    _require_columns(batch, key)
    batch, emptied = _after_truncate(_large(batch))
    batch = batch.filter(pc.not_equal(batch[CHANGE_TYPE], pa.scalar("update_preimage")))
    _require_keys(batch, key)
    batch = batch.take(pc.sort_indices(batch, sort_keys=sorting_by((*key, SEQUENCE))))
    first = _begins_key(batch, key)
    _require_one_last(batch, key, first)
    last = np.append(first[1:], True)[: len(first)]
    chosen = np.flatnonzero(last)
    rows = batch.select([name for name in batch.column_names if name not in RESERVED]).take(chosen)
    kept: dict[str, Mask] = {}
    for name in _columns_left_out(batch):
        source, stays = _sources(batch, name, first, last, target)
        # Only for the last rows: else the same large value would stand here as often as its row was changed.
        value = batch[name].take(source[chosen])
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), value)
        kept[name] = stays[chosen]
    deleted: Mask = _is(batch, "delete")[chosen]
    return CompactedBatch(target, emptied, rows, deleted, kept)


def large(kind: pa.DataType) -> pa.DataType:
    """The type that holds as many values as there may be: plain text and bytes end at 2 GiB when they are sorted."""
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind


def _large(batch: pa.Table) -> pa.Table:
    return batch.cast(pa.schema([field.with_type(large(field.type)) for field in batch.schema]))


def _require_columns(batch: pa.Table, key: Sequence[str]) -> None:
    counts = Counter(batch.column_names)
    missing = [name for name in (*key, *NEEDED) if name not in counts]
    if missing:
        raise OptionsError(
            f"the batch has no column {', '.join(missing)}; it has {', '.join(batch.column_names)}. "
            f"The sink needs the key of its table, and of the metadata columns {', '.join(NEEDED)}: leave the option "
            "metadataColumns out, or name them"
        )
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise OptionsError(f"the batch has the column {', '.join(twice)} more than once; give it once, in foreachBatch")
    if not set(pc.unique(batch[CHANGE_TYPE]).to_pylist()).issubset(CHANGE_TYPES) or batch[SEQUENCE].null_count:
        raise OptionsError(
            f"the batch has rows of which {CHANGE_TYPE} is none of {', '.join(CHANGE_TYPES)}, or {SEQUENCE} is "
            "null; leave the metadata columns in foreachBatch as they are, and add no rows of your own without them"
        )


def _after_truncate(batch: pa.Table) -> tuple[pa.Table, bool]:
    at = pc.max(batch[SEQUENCE].filter(pc.equal(batch[CHANGE_TYPE], pa.scalar("truncate"))))
    return (batch.filter(pc.greater(batch[SEQUENCE], at)), True) if at.is_valid else (batch, False)


def _require_keys(batch: pa.Table, key: Sequence[str]) -> None:
    """Refuses a null in the key, by which no row is found: the row would not be deleted, or be inserted twice. Refuses
    a nested type as well, such as a list, since it has no order.
    """
    nested = [name for name in key if pa.types.is_nested(batch[name].type)]
    if nested:
        raise OptionsError(
            f"the key column {', '.join(nested)} is a {batch[nested[0]].type}; expected one of single values. Make it "
            "a string in foreachBatch"
        )
    missing = [name for name in key if batch[name].null_count]
    if missing:
        raise OptionsError(
            f"the key column {', '.join(missing)} is null in a row of the batch, so its row cannot be found. Name the "
            "key of the stream's table as key: the change log may have no other column of a deleted row, unless the "
            "table has REPLICA IDENTITY FULL or the stream changelog=full"
        )


def _begins_key(batch: pa.Table, key: Sequence[str]) -> Mask:
    """Where in the sorted rows another key begins."""
    first = np.zeros(batch.num_rows, np.bool_)
    first[:1] = True
    for name in key:
        values = batch[name].combine_chunks()
        first[1:] |= differ(values[1:], values[:-1])
    return first


def _require_one_last(batch: pa.Table, key: Sequence[str], first: Mask) -> None:
    """Refuses different rows with one key and one place; any of them will do where they are the same."""
    sequence = batch[SEQUENCE].to_numpy()
    tied = np.flatnonzero(~first[1:] & (sequence[1:] == sequence[:-1]))
    one, other = batch.take(tied), batch.take(tied + 1)
    if len(tied) and not all(
        same(one[name].combine_chunks(), other[name].combine_chunks()).all() for name in batch.column_names
    ):
        raise OptionsError(
            f"the batch has different rows with the same {', '.join(key)} and the same {SEQUENCE}, so none of them is "
            "the last one. Name the key of the stream's table as key; if foreachBatch makes several rows of one, as "
            "a join may, also name the columns in which they differ"
        )


def _columns_left_out(batch: pa.Table) -> list[str]:
    """The columns of which values are marked as left out.

    A marked column that the batch does not have is refused: it may have been renamed on the way, and then its nulls
    are no values.
    """
    present = set(batch.column_names)
    if UNCHANGED_COLUMNS not in present:
        return []
    marked = sorted(set(map(str, pc.unique(pc.list_flatten(batch[UNCHANGED_COLUMNS].combine_chunks())))))
    for name in marked:
        if name not in present:
            raise OptionsError(
                f"{UNCHANGED_COLUMNS} marks values of the column {name}, which the batch does not have. If "
                "foreachBatch renames that column, rename it in the marks as well, in Spark's SQL by "
                f"transform({UNCHANGED_COLUMNS}, c -> if(c = '{name}', 'the other name', c)); if foreachBatch drops "
                f"it, take it out of the marks by array_remove({UNCHANGED_COLUMNS}, '{name}')"
            )
    return marked


def _sources(batch: pa.Table, name: str, first: Mask, last: Mask, target: str) -> tuple[Indices, Mask]:
    """For each row, which row of its key has the value (itself or an earlier one); and for which rows none has it, so
    that the target's value stays.

    An insert begins a row anew, so an unchanged value after it cannot be one from before it.
    """
    count = batch.num_rows
    marks = batch[UNCHANGED_COLUMNS].combine_chunks()
    marked = np.zeros(count, np.bool_)
    named = mask(pc.equal(pc.list_flatten(marks), pa.scalar(name)))
    marked[pc.list_parent_indices(marks).to_numpy()[named]] = True
    places = np.arange(count)
    known = np.maximum.accumulate(np.where(~marked | _is(batch, "insert"), places, -1))
    kept = known < np.maximum.accumulate(np.where(first, places, 0))
    source = np.where(kept, places, known)
    if (marked[source] & ~kept & last).any():
        raise UnchangedToastError(
            f"in a batch for {target}, an update changed the key of a row and left its large value of column {name} "
            "unchanged, so the change log has it under neither key. If the key of the source is its primary key, run "
            "ALTER TABLE … REPLICA IDENTITY FULL there, and on each of its partitions; else leave the column out "
            "with the option columns. Then start over"
        )
    return source, kept


def _is(batch: pa.Table, change_type: str) -> Mask:
    return mask(pc.equal(batch[CHANGE_TYPE], pa.scalar(change_type)))
