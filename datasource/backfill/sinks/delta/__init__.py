"""A keyed Delta table that follows a stream, one commit for each batch.

The commit is a MERGE: rows of deleted keys are removed, all others updated or inserted. It has the record of the batch
in it, also of one that changes nothing, in Delta's own form for that, application transactions: `{query}` has the batch
id as its version; `{query}/rows`, `/version`, `/sequence` and `/timestamp` tell the batch from one of another
checkpoint; and `{query}/after` has the version that it was merged into. So a batch that Spark runs again changes
nothing, a gap between batches is noticed, and of two drivers that apply the same batch the second fails. Where another
writer was faster, as OPTIMIZE may be, the batch is merged again.

merge           from the last rows of a batch to the table
record          the batches that were applied
columns         whether the table has a batch's columns
fitted          these rows in the table's types
spark_times     files that a MERGE must not write anew
restored        whether a RESTORE took batches out of the table, or it was made anew
clean_up        commits after which the log was cleaned up by somebody else as well
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Final

import pyarrow as pa

from backfill.adapters import needing
from backfill.errors import OptionsError, TableError
from backfill.options.texts import as_refused, place
from backfill.sinks import Batch
from backfill.sinks.applied import AppliedBatch, FilledTable
from backfill.sinks.compacted import CompactedBatch, compacted, key_of
from backfill.wording import FRESH_START

with needing("writing a Delta table", "delta"):
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

    from backfill.sinks.delta.clean_up import though_cleaned_up
    from backfill.sinks.delta.columns import (
        add_lacking,
        require_apart,
        require_columns,
        require_partitions,
        require_types,
    )
    from backfill.sinks.delta.fitted import fitted
    from backfill.sinks.delta.merge import merge, require_kept, without_strays
    from backfill.sinks.delta.record import (
        forgotten,
        is_forgotten,
        is_known,
        last_applied,
        merged_after,
        named,
        note,
        noted,
        record,
        without_rows,
    )
    from backfill.sinks.delta.restored import require_not_restored
    from backfill.sinks.delta.spark_times import SparkTimes
    from backfill.upstream.delta.failures import is_conflict, is_gone, translating
    from backfill.upstream.delta.tables.properties import require_names

logger = logging.getLogger("backfill")

PATIENCE: Final = 120.0
"""For how many seconds at the least a batch is merged again and again while others write to the table.

Of two queries that always have a batch, each fails every other time. No try waits, since whoever has just committed
would have its next batch in meanwhile.
"""

TRIES: Final = 5
"""How often a batch is merged at the least, even where that takes longer than PATIENCE."""

_TAKEN: Final = "Invalid table version: 0"
"""What `deltalake` (1.6) says where it was to make a table and somebody else has written the first commit."""


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
    of the stream, with its metadata columns. Every batch has to be applied, also one without rows. With `merge_schema`
    the table gets columns that it lacks and a batch has, in a commit before the batch's own; else that is an error.

    A batch passes through the driver's memory; `maxBytesPerTrigger` and `maxRowsPerTrigger` bound what that takes. Much
    of what it is merged with passes through it too: the files that may have keys between the batch's least and its
    greatest. That is little where new rows have keys beyond those in the table. It is the whole table where the keys of
    a batch are far apart, or where the key has a float, a decimal of more than 15 digits, or a time after the year
    4252; or where it has a character beyond U+FFFF, and so has the greatest key of a file. So let batches be large if
    the table is.
    """
    options = dict(storage_options or {})
    return DeltaSink(_place(path), key_of(key), named(query), merge_schema, options, SparkTimes(options))


def start_over(*, path: str, query: str, storage_options: Mapping[str, str] | None = None) -> None:
    """Empties the table and forgets which batches of the query it has, for a new checkpoint under the same name.

    Raises StateError where the table has rows but knows no batch of such a query. Where others write at the same time,
    it is tried again for two minutes.
    """
    path = _place(path)
    query = named(query)
    with translating(path):
        table = DeltaTable(path, storage_options=dict(storage_options or {}))
        FilledTable(path, query, lambda: _is_empty(table)).require_known(is_known=is_known(table, query))
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return _empty(table, query)
            except CommitFailedError as error:
                if not is_conflict(error) or time.monotonic() >= until:
                    raise
                table.update_incremental()


def _empty(table: DeltaTable, query: str) -> None:
    before = table.version()
    anew = forgotten(query, before)
    with though_cleaned_up(lambda: is_forgotten(table, query, before)):
        table.delete(commit_properties=anew)
        note(table, before, anew)


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
        last = compacted(rows, self.key, f"the Delta table {self.path}")
        now = AppliedBatch.of(batch_id, rows)
        with translating(self.path):
            table = self._table(batch_id, last.rows.schema)
            self._require_not_restored(table)
            filling = FilledTable(self.path, self.query, lambda: _is_empty(table))
            before = last_applied(table, self.query, now)
            if filling.is_new(before, now, leaves_rows=last.leaves_rows, way_out=without_rows):
                self._apply(table, last, now)

    def _apply(self, table: DeltaTable, last: CompactedBatch, now: AppliedBatch) -> None:
        """Merges the batch; again where another writer was faster, unless that was a driver of the same query."""
        began, until = table.version(), time.monotonic() + PATIENCE
        noted_before = cache(lambda: self._noted_at(began))
        for tries in itertools.count(1):
            version = table.version()
            try:
                self._apply_once(table, last, now)
            except Exception as error:
                if not (is_conflict(error) or is_gone(error)):
                    raise
                if self._is_applied(table, now):
                    # Where the answer to a commit was lost, deltalake sends it again, and it meets itself. Or what
                    # comes after it failed, see `clean_up`; after that of an added column the batch is merged again.
                    return
                is_over = tries >= TRIES and time.monotonic() >= until
                is_lost = is_gone(error) and table.version() == version
                if is_over or is_lost or noted(table, self.query) != noted_before():
                    raise
                self._require_not_restored(table)
                logger.warning("another writer has changed the Delta table %s meanwhile; merging again", self.path)
            else:
                return

    def _apply_once(self, table: DeltaTable, last: CompactedBatch, now: AppliedBatch) -> None:
        require_names(table, self.path)
        if self.merge_schema:
            add_lacking(table, last.rows.schema, self.key)
        else:
            require_columns(table, last.rows.schema)
        rows = replace(last, rows=fitted(last.rows, table))
        require_apart(self.key, last.rows.schema, rows.rows.schema)
        require_partitions(table, self.key, rows.rows)
        require_kept(table, self.key, rows)
        self.times.require_kept(table)
        merge(table, self.key, without_strays(table, self.key, rows), record(self.query, now, table.version()))

    def _is_applied(self, table: DeltaTable, now: AppliedBatch) -> bool:
        table.update_incremental()
        return last_applied(table, self.query, now) == now

    def _require_not_restored(self, table: DeltaTable) -> None:
        after = merged_after(table, self.query)
        if after is not None:
            known = partial(is_known, table, self.query)
            require_not_restored(table, self.query, after, self.storage_options, is_known=known)

    def _noted_at(self, version: int) -> list[int | None]:
        return noted(DeltaTable(self.path, version=version, storage_options=self.storage_options), self.query)

    def _table(self, batch_id: int, columns: pa.Schema) -> DeltaTable:
        try:
            return DeltaTable(self.path, storage_options=self.storage_options)
        except TableNotFoundError:
            if batch_id > 0:
                raise TableError(
                    f"there is no Delta table at {self.path}; and batch {batch_id} is not the first, so the rows of "
                    "the batches before would be missing. Restore the table, or give its new path, and start the "
                    f"query again; else begin a new stream with {FRESH_START}"
                ) from None
            if set("[]").intersection(self.path):
                raise OptionsError(
                    f"path {as_refused(self.path)}; the package deltalake makes no table at a path with [ or ] in it"
                ) from None
            require_types(columns)
            return self._created(columns)

    def _created(self, columns: pa.Schema, tries: int = TRIES) -> DeltaTable:
        try:
            return DeltaTable.create(self.path, schema=columns, storage_options=self.storage_options)
        except DeltaError as error:
            # Another query that fills the table may have been faster, or the answer was lost.
            with suppress(TableNotFoundError):
                return DeltaTable(self.path, storage_options=self.storage_options)
            # S3 answers so (409) also while somebody else writes the same file, which is not there yet.
            if _TAKEN not in str(error) or tries == 1:
                raise
        return self._created(columns, tries - 1)


def _place(path: str) -> str:
    """The path in one form; it may be whatever the source's option `path` may be."""
    try:
        return place(path)
    except ValueError as error:
        raise OptionsError(f"path {as_refused(path)}; expected {error}") from None


def _is_empty(table: DeltaTable) -> bool:
    return pa.table(table.get_add_actions()).num_rows == 0
