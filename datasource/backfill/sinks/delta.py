"""A keyed Delta table that follows a stream, one commit for each batch.

The commit is a MERGE: rows of deleted keys go, all others are updated or inserted. With it goes the record of the
batch, also of one that changes nothing, in Delta's own form for that, application transactions: `{query}` has the batch
id as its version, `{query}/rows`, `/version`, `/sequence` and `/timestamp` tell the batch from one of another
checkpoint, and `{query}/after` has the version that it was merged into. So a batch that Spark runs again changes
nothing, a gap between batches is noticed, and of two drivers that apply the same one the second fails. Where anybody
else was faster, as OPTIMIZE may be, the batch is merged again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backfill.adapters import needing
from backfill.batches import as_one_batch, coalesced
from backfill.errors import OptionsError, TableError
from backfill.options.texts import as_refused, place
from backfill.sameness import canonical
from backfill.sinks.applied import Applied, is_new, named, require_known
from backfill.sinks.batch import Batch
from backfill.sinks.compacted import Compacted, compacted, key_of
from backfill.sinks.merge_source import DELETED, column_name, kept_name, merge_source
from backfill.widening import widens
from backfill.wording import FRESH_START

with needing("writing a Delta table", "delta"):
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import CommitFailedError, TableNotFoundError

    from backfill.sinks.delta_columns import add_lacking, require_columns, require_partitions, require_types
    from backfill.sinks.fitted import fitted
    from backfill.sinks.restored import require_not_restored, said_of
    from backfill.sinks.spark_times import SparkTimes
    from backfill.upstream.delta.failures import is_conflict, translating
    from backfill.upstream.delta.files.statistics import MISREAD
    from backfill.upstream.delta.keys.columns import EXACT_DIGITS
    from backfill.upstream.delta.snapshot.scan import scanned
    from backfill.upstream.delta.tables.properties import require_names

logger = logging.getLogger("backfill")

KEYS_AT_ONCE: Final = 245_760
"""How many of the target's keys are looked at at once."""

TRIES: Final = 5
"""How often a batch is merged while others write to the table at the same time."""

_PARTS: Final = ("rows", "version", "sequence", "timestamp", "after")
"""What is noted of a query's last batch beside its id."""

_FORGOTTEN: Final = -1
"""The batch id of a query that begins anew: application transactions cannot be removed."""


def apply_to(
    *,
    path: str,
    key: Sequence[str],
    query: str,
    merge_schema: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Callable[[Batch, int], None]:
    """A function for `foreachBatch` that makes the Delta table at `path` follow the stream.

    `path` is absolute, or a URI. The table is created with the columns of batch 0 if there is none by then. `key` is
    the source's key. `query` names the query in the record of batches: one name for each checkpoint. The rows are those
    of the stream, with its metadata columns. Each batch is to be applied, also one without rows. With `merge_schema`
    the table gets columns that it lacks and a batch has, in a commit before the batch's own; else that is an error.

    A batch passes through the driver's memory; `maxBytesPerTrigger` and `maxRowsPerTrigger` bound what that takes. So
    does much of what it is merged with: the files that may have keys between the batch's least and its greatest. That
    is little where new rows have keys beyond those that are there. It is the whole table where a batch has keys from
    far apart, or the key has a float, a decimal of more than 15 digits, or a time after the year 4252. So let batches
    be large if the table is.
    """
    options = dict(storage_options or {})
    return DeltaSink(_place(path), key_of(key), _named(query), merge_schema, options, SparkTimes(options))


def start_over(*, path: str, query: str, storage_options: Mapping[str, str] | None = None) -> None:
    """Empties the table and forgets which batches of the query it has, for a new checkpoint under the same name.

    StateError where the table has rows and no batch of such a query.
    """
    path = _place(path)
    query = _named(query)
    with translating(path):
        table = DeltaTable(path, storage_options=dict(storage_options or {}))
        is_known = _batch_id(table, query) is not None
        require_known(query, table=path, is_known=is_known, is_empty=lambda: _is_empty(table))
        before = table.version()
        record = _record(query, Applied(_FORGOTTEN, 0, None, None), before)
        table.delete(commit_properties=record)
        _note(table, before, record)


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """What `apply_to` returns. Picklable, as Spark Connect wants it."""

    path: str
    key: tuple[str, ...]
    query: str
    merge_schema: bool
    storage_options: dict[str, str] = field(repr=False)
    times: SparkTimes

    def __call__(self, batch: Batch, batch_id: int) -> None:
        rows = batch.toArrow()
        last = compacted(rows, self.key)
        now = Applied.of(batch_id, rows)
        with translating(self.path):
            table = self._table(batch_id, last.rows.schema)
            self._require_not_restored(table)
            if is_new(
                _last_applied(table, self.query, now),
                now,
                self.query,
                table=self.path,
                leaves_rows=last.leaves_rows,
                is_empty=lambda: _is_empty(table),
                mended=lambda before: _without_rows(before, now),
            ):
                self._apply(table, last, now)

    def _apply(self, table: DeltaTable, last: Compacted, now: Applied) -> None:
        """Merges the batch; again where another writer was faster, unless that was a driver of the same query."""
        began = table.version()
        for tries_left in reversed(range(TRIES)):
            try:
                self._apply_once(table, last, now)
            except CommitFailedError as error:
                table.update_incremental()
                if not (tries_left and is_conflict(error) and self._noted(table) == self._noted_at(began)):
                    raise
                self._require_not_restored(table)
                logger.warning("another writer has changed the Delta table %s meanwhile: merging again", self.path)
            else:
                return

    def _apply_once(self, table: DeltaTable, last: Compacted, now: Applied) -> None:
        require_names(table, self.path)
        if self.merge_schema:
            add_lacking(table, last.rows.schema, self.key)
        else:
            require_columns(table, last.rows.schema)
        rows = replace(last, rows=fitted(last.rows, table))
        _require_apart(self.key, last.rows.schema, rows.rows.schema)
        require_partitions(table, self.key, rows.rows)
        _require_kept(table, self.key, rows)
        self.times.require_kept(table)
        _merge(table, self.key, rows, _record(self.query, now, table.version()))

    def _require_not_restored(self, table: DeltaTable) -> None:
        after = table.transaction_version(f"{self.query}/after")
        if after is not None:
            require_not_restored(table, self.query, after, self.storage_options)

    def _noted(self, table: DeltaTable) -> list[int | None]:
        return [table.transaction_version(name) for name in _names(self.query)]

    def _noted_at(self, version: int) -> list[int | None]:
        return self._noted(DeltaTable(self.path, version=version, storage_options=self.storage_options))

    def _table(self, batch_id: int, columns: pa.Schema) -> DeltaTable:
        try:
            return DeltaTable(self.path, storage_options=self.storage_options)
        except TableNotFoundError:
            if batch_id > 0:
                raise TableError(
                    f"there is no Delta table at {self.path}; batch {batch_id} is not the first, and the rows of "
                    "those before were in it. Put it back, or give its new path, and start the query again; else "
                    f"begin a new stream with {FRESH_START}"
                ) from None
            if set("[]").intersection(self.path):
                raise OptionsError(
                    f"path {as_refused(self.path)}; the package deltalake makes no table at a path with [ or ] in it"
                ) from None
            require_types(columns)
            return DeltaTable.create(self.path, schema=columns, storage_options=self.storage_options)


def _place(path: str) -> str:
    """The path, which is what the source's option `path` may be."""
    try:
        return place(path)
    except ValueError as error:
        raise OptionsError(f"path {as_refused(path)}; expected {error}") from None


def _last_applied(table: DeltaTable, query: str, now: Applied) -> Applied | None:
    """The batch that is noted. The fields beside its id are read only if it may be the same batch as `now`.

    For each application transaction that is asked for, `deltalake` reads all of the log that is not in a checkpoint.
    """
    batch_id = _batch_id(table, query)
    if batch_id is None:
        return None
    if now.batch_id > batch_id:
        return Applied(batch_id, 0, None, None)
    rows, *others = (table.transaction_version(name) for name in _names(query)[1:-1])
    return Applied(batch_id, rows or 0, *(None if value == -1 else value for value in others))


def _batch_id(table: DeltaTable, query: str) -> int | None:
    """That of the query's last batch; None where it has applied none since it began."""
    found = table.transaction_version(query)
    return None if found == _FORGOTTEN else found


def _without_rows(last: Applied, now: Applied) -> str:
    """What to do where the batches in between had no rows and were not given to the sink."""
    between = f"range({last.batch_id + 1}, {now.batch_id}) if batch_id == {now.batch_id} else ()"
    return (
        f"give them to it in foreachBatch, before this one: for number in {between}: "
        "apply_batch(batch.limit(0), number)"
    )


def _record(query: str, now: Applied, after: int) -> CommitProperties:
    others = (now.version, now.sequence, now.timestamp)
    versions = (now.batch_id, now.rows, *(-1 if value is None else value for value in others), after)
    transactions = list(map(Transaction, _names(query), versions))
    return CommitProperties(app_transactions=transactions, custom_metadata=said_of(query))


def _names(query: str) -> tuple[str, ...]:
    return query, *(f"{query}/{part}" for part in _PARTS)


def _named(query: str) -> str:
    """As `named`; OptionsError also for a name under which something of another query is noted."""
    other, _, part = named(query).rpartition("/")
    if other and part in _PARTS:
        raise OptionsError(f"query is {query!r}, under which the table notes something of a query {other!r}")
    return query


def _require_apart(key: Sequence[str], given: pa.Schema, fitting: pa.Schema) -> None:
    """Refuses a key whose columns have other types in the table, by which different keys may become the same one: a
    MERGE would insert both of one batch, and make one row of those of two.
    """
    for name in key:
        kind, wanted = given.field(name).type, fitting.field(name).type
        # A value that a narrower type would cut is refused by `fitted`; only floats take the nearest one.
        narrower = widens(kind, wanted) and not pa.types.is_floating(wanted)
        if not (narrower or widens(wanted, kind)):
            raise TableError(
                f"the key column {name} of the Delta table is {wanted}, which may take different values of the source, "
                f"whose type is {kind}, for the same one. Make the table with the source's type, or cast the column in "
                "foreachBatch as it is to be"
            )


def _require_kept(table: DeltaTable, key: Sequence[str], last: Compacted) -> None:
    """Refuses a batch that keeps a value of the target where the target has no such row."""
    kept = np.zeros(last.rows.num_rows, np.bool_)
    for mask in last.kept.values():
        kept |= mask & ~last.deleted
    if not kept.any():
        return
    # A join takes a name that begins with a dot for a path.
    names = [column_name(at) for at in range(len(key))]
    given = last.rows.select(list(key)).filter(pa.array(kept))
    columns = given.schema
    wanted = _joinable(as_one_batch(given), names)
    # Not all at once: the target may be larger than memory.
    found = scanned(table, key, None)
    for keys in coalesced((batch.select(key).cast(columns) for batch in found), KEYS_AT_ONCE):
        if not wanted.num_rows:
            break
        wanted = _joinable(keys, names).join(wanted, names, join_type="right anti")
    if last.emptied or wanted.num_rows:
        raise last.no_row_to_keep()


def _joinable(keys: pa.RecordBatch, names: list[str]) -> pa.Table:
    """Under these names, and with one zero: a join tells a float's two apart, which a MERGE does not."""
    return pa.Table.from_batches([canonical(keys)]).rename_columns(names)


def _merge(table: DeltaTable, key: Sequence[str], last: Compacted, record: CommitProperties) -> None:
    before = table.version()
    if last.rows.num_rows:
        _merge_rows(table, key, last, record)
    elif last.emptied:
        table.delete(commit_properties=record)
    _note(table, before, record)


def _note(table: DeltaTable, before: int, record: CommitProperties) -> None:
    """Commits the record alone if no commit came after that version: of what changes nothing deltalake makes none."""
    if table.version() == before:
        partitions = table.metadata().partition_columns
        table.create_write_transaction([], "append", table.schema(), partitions, commit_properties=record)


def _merge_rows(table: DeltaTable, key: Sequence[str], last: Compacted, record: CommitProperties) -> None:
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
        # Not streamed, files are left out that cannot have the batch's keys, by their statistics.
        streamed_exec=any(_misses_keys(last.rows[name]) for name in key),
        commit_properties=record,
    )
    merger = merger.when_matched_delete(f"s.{DELETED}").when_matched_update(values | kept | cleared)
    merger = merger.when_not_matched_insert(values, f"NOT s.{DELETED}")
    if last.emptied:
        merger = merger.when_not_matched_by_source_delete()
    merger.execute()


def _equal(target: str, source: str, values: pa.ChunkedArray[Any]) -> str:
    """SQL for keys that are one; an equation, as with anything else each row is compared with each.

    It compares the bits of a NaN, of which a database has only one.
    """
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        kind = "DOUBLE" if pa.types.is_float64(values.type) else "FLOAT"
        target, source = (f"nanvl({side}, CAST('NaN' AS {kind}))" for side in (target, source))
    return f"{target} = {source}"


def _is_empty(table: DeltaTable) -> bool:
    return pa.table(table.get_add_actions()).num_rows == 0


def _misses_keys(values: pa.ChunkedArray[Any]) -> bool:
    """Whether a file's statistics may leave out one of these keys, which it has: of that deltalake (1.6) would insert a
    second row.

    They do not know NaN, and have decimals as floating point; and far times are misread by them.
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        latest = pc.max(values.cast(pa.int64())).as_py()
        return latest is not None and latest >= MISREAD
    return pa.types.is_floating(kind) or (pa.types.is_decimal(kind) and kind.precision > EXACT_DIGITS)


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))
