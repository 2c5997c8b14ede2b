"""What the laws need of an upstream: a table that a test can do anything to, and ways to read what an adapter gives.

For a new adapter, write a `Laboratory`, make it a fixture of this name, and derive a class from `UpstreamLaws`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from backfill.changes import DELETE, INSERT, OLD_KEY, OLD_NONE, OLD_ROW, UPDATE, changes_schema
from backfill.upstream import Bookmark, TableSchema, Upstream

KeyValue: TypeAlias = tuple[Any, ...]
"""A key as Python has it once Arrow has given it out: one value per key column, in key order."""

VALUE = "v"
"""The one column that is not part of the key: a text, which may be null."""

Rows: TypeAlias = dict[KeyValue, str | None]


@dataclass(frozen=True)
class Write:
    """One row written. `old` is the key of the row before, `key` that of the row after; None where there is none."""

    old: KeyValue | None
    key: KeyValue | None
    value: str | None = None


def insert(key: KeyValue, value: str | None = "new") -> Write:
    return Write(None, key, value)


def update(key: KeyValue, value: str | None = "changed") -> Write:
    return Write(key, key, value)


def move(old: KeyValue, key: KeyValue, value: str | None = "moved") -> Write:
    return Write(old, key, value)


def delete(key: KeyValue) -> Write:
    return Write(key, None)


class Held(Protocol):
    """A transaction that has written and has not ended."""

    def commit(self) -> None:
        """Commits; when this returns, readers see it."""
        ...

    def roll_back(self) -> None: ...


class Laboratory(Protocol):
    """A table of some upstream, empty at first, and ways to write to it."""

    keys: Sequence[KeyValue]
    """At least 40 keys, in ascending order as the upstream itself has it, and not as the adapter says."""

    def open(self) -> Upstream:
        """Opens a new adapter, as a new process would, and closes one that was opened before."""
        ...

    def reading(self, bookmark: Bookmark) -> Upstream:
        """Opens a further adapter, for a batch read of changes, with options that name this place in the log."""
        ...

    def write(self, *writes: Write) -> None:
        """Makes these writes in one transaction; when this returns, it is committed and readers see it."""
        ...

    def hold(self, *writes: Write) -> Held:
        """Begins a transaction that stays open. Where the upstream has none, it may do all its work when it commits."""
        ...

    def rows(self) -> Rows:
        """Returns the rows that a reader sees now, found by other means than the adapter's."""
        ...

    def lose_changes(self, bookmark: Bookmark) -> None:
        """Loses what the log holds for this bookmark."""
        ...


class HidingLaboratory(Laboratory, Protocol):
    """A laboratory of an upstream where a commit may be in the log before readers see it."""

    def commit_unseen(self, *writes: Write) -> Held:
        """Makes a transaction that is in the log when this returns; its `commit` lets readers see it."""
        ...


class LosingLaboratory(Laboratory, Protocol):
    """A laboratory of an upstream that may be told to go on although changes were lost."""

    def open_forgiving(self) -> Upstream:
        """Opens an adapter as `open` does, and tells it to go on although changes were lost."""
        ...


class GrowingLaboratory(Laboratory, Protocol):
    """A laboratory of an upstream whose table may get a column while a stream follows it."""

    def add_column(self, name: str) -> None:
        """Adds a column to the table, null in every row."""
        ...


# -- what an adapter gives, as Python values -------------------------------------------------------------------------


def rows_of(batches: Iterable[pa.RecordBatch], schema: TableSchema) -> list[tuple[KeyValue, str | None]]:
    """Returns snapshot rows in the order in which they came."""
    found: list[tuple[KeyValue, str | None]] = []
    for batch in batches:
        assert batch.schema.equals(_nullable(schema.columns)), f"not the columns: {batch.schema}"
        values: list[Any] = batch[VALUE].to_pylist()
        found += zip(keys_of(batch.select(list(schema.key))), values, strict=True)
    return found


def keys_of(batch: pa.RecordBatch) -> list[KeyValue]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def key_batch(upstream: Upstream, keys: Sequence[KeyValue]) -> pa.RecordBatch:
    """Makes a batch of keys, whose columns have the upstream's types."""
    schema = upstream.schema().key_schema
    columns = [pa.array([key[at] for key in keys], field.type) for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


@dataclass(frozen=True)
class Commit:
    """What one commit did, in order. A key that moves is a delete and an insert."""

    version: int
    writes: tuple[Write, ...]


def commits_of(batches: Iterable[pa.RecordBatch], schema: TableSchema) -> list[Commit]:
    """Groups changes by commit, in the order in which they came; refuses what the layout does not allow."""
    found: list[Commit] = []
    for batch in batches:
        assert batch.schema.equals(changes_schema(schema.columns)), f"not the layout of changes: {batch.schema}"
        for change in batch.to_pylist():
            writes = tuple(_writes(change, schema))
            if found and found[-1].version == change["version"]:
                found[-1] = Commit(found[-1].version, (*found[-1].writes, *writes))
            else:
                found.append(Commit(change["version"], writes))
    versions = [commit.version for commit in found]
    assert len(set(versions)) == len(versions), "the changes of a commit do not stand together"
    return found


def _writes(change: dict[str, Any], schema: TableSchema) -> Iterable[Write]:
    new, old, known = change["new"], change["old"], change["old_kind"]
    assert (old is None) == (known == OLD_NONE)
    assert known in (OLD_NONE, OLD_KEY, OLD_ROW)
    before = None if old is None else tuple(old[name] for name in schema.key)
    after = None if new is None else tuple(new[name] for name in schema.key)
    match change["op"]:
        case op if op == INSERT:
            assert new is not None
            assert old is None
            yield Write(None, after, new[VALUE])
        case op if op == DELETE:
            assert new is None
            assert old is not None
            yield Write(before, None)
        case op if op == UPDATE:
            assert new is not None
            if before is None or before == after:
                yield Write(after, after, new[VALUE])
            else:
                yield Write(before, None)
                yield Write(None, after, new[VALUE])
        case op:
            raise AssertionError(f"unknown operation {op}")


def applied(rows: Rows, commit: Commit) -> Rows:
    """Returns the rows after the commit; refuses what no table can do (I2)."""
    result = dict(rows)
    for write in commit.writes:
        if write.old is not None:
            assert write.old in result, f"{write} to a key that is absent"
            del result[write.old]
        if write.key is not None:
            assert write.key not in result, f"{write} to a key that is present"
            result[write.key] = write.value
    return result


def _nullable(columns: pa.Schema) -> pa.Schema:
    fields: list[Any] = [field.with_nullable(True) for field in columns]
    return pa.schema(fields)
