"""The record of the batches that were applied, as application transactions; their names are shown in `__init__`."""

from __future__ import annotations

import time
from typing import Final

from deltalake import CommitProperties, DeltaTable, Transaction

from backfill.errors import OptionsError
from backfill.sinks import applied
from backfill.sinks.applied import AppliedBatch
from backfill.sinks.delta.restored import commit_properties

_OF_BATCH: Final = ("rows", "version", "sequence", "timestamp")
"""What is noted of a query's last batch beside its id: fields of `AppliedBatch`, in their order."""

_PARTS: Final = (*_OF_BATCH, "after")

_FORGOTTEN: Final = -1
"""The batch id of a query that begins anew: application transactions cannot be removed."""

_NO_BATCH: Final = AppliedBatch(_FORGOTTEN, 0, None, None)


def last_applied(table: DeltaTable, query: str, now: AppliedBatch) -> AppliedBatch | None:
    """The query's last batch, as noted. The fields beside its id are read only if it may be the same batch as `now`.

    For each application transaction that is asked for, `deltalake` reads all of the log that is not in a checkpoint.
    """
    batch_id = _batch_id(table, query)
    if batch_id is None:
        return None
    if now.batch_id > batch_id:
        return AppliedBatch(batch_id, 0, None, None)
    rows, *others = (table.transaction_version(f"{query}/{part}") for part in _OF_BATCH)
    return AppliedBatch(batch_id, rows or 0, *(None if value == -1 else value for value in others))


def is_known(table: DeltaTable, query: str) -> bool:
    """Whether the query has applied a batch since it began."""
    return _batch_id(table, query) is not None


def _batch_id(table: DeltaTable, query: str) -> int | None:
    """The number of the query's last batch; None where it has applied none since it began."""
    found = table.transaction_version(query)
    return None if found == _FORGOTTEN else found


def without_rows(last: AppliedBatch, now: AppliedBatch) -> str:
    """What to do where the batches in between had no rows and were not given to the sink."""
    between = f"range({last.batch_id + 1}, {now.batch_id}) if batch_id == {now.batch_id} else ()"
    return f"apply them before this one in foreachBatch: for number in {between}: apply_batch(batch.limit(0), number)"


def record(query: str, now: AppliedBatch, after: int) -> CommitProperties:
    """What the commit of this batch notes; `after` is the version of the table that the batch is merged into."""
    # In a table whose transactions expire, Spark keeps none that does not say when it was written.
    written = time.time_ns() // 1_000_000
    transactions = [Transaction(name, version, written) for name, version in _versions(query, now, after).items()]
    return CommitProperties(app_transactions=transactions, custom_metadata=commit_properties(query))


def forgotten(query: str, after: int) -> CommitProperties:
    """The record of a query that begins anew after that version."""
    return record(query, _NO_BATCH, after)


def is_forgotten(table: DeltaTable, query: str, after: int) -> bool:
    """Whether the table notes by now that the query begins anew after that version."""
    table.update_incremental()
    return noted(table, query) == list(_versions(query, _NO_BATCH, after).values())


def noted(table: DeltaTable, query: str) -> list[int | None]:
    """All that is noted of the query's last batch."""
    return [table.transaction_version(name) for name in _names(query)]


def merged_after(table: DeltaTable, query: str) -> int | None:
    """The version that the query's last batch was merged into; None where there is no such batch."""
    return table.transaction_version(f"{query}/after")


def _versions(query: str, now: AppliedBatch, after: int) -> dict[str, int]:
    """What is noted of a batch, by the names under which it is noted."""
    values = (now.batch_id, now.rows, now.version, now.sequence, now.timestamp, after)
    return {name: -1 if value is None else value for name, value in zip(_names(query), values, strict=True)}


def _names(query: str) -> tuple[str, ...]:
    return query, *(f"{query}/{part}" for part in _PARTS)


def named(query: str) -> str:
    """As `applied.named`; OptionsError also for a name under which something of another query is noted."""
    other, _, part = applied.named(query).rpartition("/")
    if other and part in _PARTS:
        raise OptionsError(f"query is {query!r}, under which the table has a record of the query {other!r}")
    return query


def note(table: DeltaTable, before: int, record: CommitProperties) -> None:
    """Commits the record alone if no commit came after that version: for what changes nothing, deltalake makes none."""
    if table.version() == before:
        partitions = table.metadata().partition_columns
        table.create_write_transaction([], "append", table.schema(), partitions, commit_properties=record)
