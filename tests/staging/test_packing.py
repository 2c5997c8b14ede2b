"""Changes travel to readers inline or in staged files, the same ones each time."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from backfill.errors import SchemaChangedError, StagingError
from backfill.handoff import InlineChanges, Part, StagedChanges, read
from backfill.packing import FILE_BYTES, INLINE_BYTES, pack, stage, staged
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.upstream import TableSchema
from backfill.vnode import KeyRange
from tests.lost_power import Disk

SCHEMA = pa.schema([pa.field("v", pa.string())])
BARE = RowFormat(TableSchema("t", SCHEMA, ("v",), ("v",)), mark_unchanged=False, metadata=())
"""The format of rows in this schema."""


def changes(*sizes: int) -> list[pa.RecordBatch]:
    """Returns a batch of one row of about so many bytes for each size; for 0, one without rows."""
    values = [
        pa.array([letter * size] if size else [], pa.string()) for letter, size in zip("abcdefgh", sizes, strict=False)
    ]
    return [pa.RecordBatch.from_arrays([value], schema=SCHEMA) for value in values]


class Unused:
    """A reader that must not be used."""

    def read(self, token: str, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        raise AssertionError(f"read at {token}: {ranges}")

    def scan(self, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        raise AssertionError(f"scanned: {ranges}")


def rows_of(parts: Sequence[Part]) -> list[Any]:
    return [row for part in parts for batch in read(part, Unused(), BARE) for row in batch.column(0).to_pylist()]


@pytest.mark.parametrize("sizes", [(), (0,), (0, 0)])
def test_no_rows_need_no_part(staging: Staging, tmp_path: Path, sizes: tuple[int, ...]) -> None:
    assert pack(changes(*sizes), SCHEMA, staging.of_batch(7), 4) == ()
    assert list(tmp_path.iterdir()) == []


def test_few_rows_travel_in_the_task_itself(staging: Staging, tmp_path: Path) -> None:
    (part,) = pack(changes(10, 0, 20), SCHEMA, staging.of_batch(7), 4)
    assert isinstance(part, InlineChanges)
    assert rows_of([part]) == ["a" * 10, "c" * 20]
    assert list(tmp_path.iterdir()) == []


def test_up_to_the_limit_rows_are_inline_and_beyond_it_staged(staging: Staging) -> None:
    overhead = changes(1)[0].nbytes - 1
    (at_limit,) = pack(changes(INLINE_BYTES - overhead), SCHEMA, staging.of_batch(7), 4)
    (beyond,) = pack(changes(INLINE_BYTES - overhead + 1), SCHEMA, staging.of_batch(7), 4)
    assert isinstance(at_limit, InlineChanges)
    assert isinstance(beyond, StagedChanges)
    assert rows_of([beyond]) == ["a" * (INLINE_BYTES - overhead + 1)]


def test_many_small_batches_together_are_staged(staging: Staging) -> None:
    half = INLINE_BYTES // 2
    (part,) = pack(changes(half, half, half), SCHEMA, staging.of_batch(7), 4)
    assert isinstance(part, StagedChanges)
    assert [len(row) for row in rows_of([part])] == [half] * 3


@pytest.mark.parametrize(("readers", "shares"), [(1, [5]), (2, [3, 2]), (4, [2, 1, 1, 1]), (9, [1] * 5)])
def test_large_changes_are_files_spread_over_the_readers(staging: Staging, readers: int, shares: list[int]) -> None:
    parts = pack(changes(*[FILE_BYTES] * 5), SCHEMA, staging.of_batch(7), readers)
    staged = [part for part in parts if isinstance(part, StagedChanges)]
    assert [len(part.names) for part in staged] == shares
    assert sorted(row[0] for row in rows_of(parts)) == list("abcde")
    names = [name for part in staged for name in part.names]
    assert [name.split("-")[1] for name in sorted(names)] == list("01234")


def test_the_rest_after_a_full_file_gets_one_too(staging: Staging) -> None:
    (part,) = pack(changes(FILE_BYTES, 5), SCHEMA, staging.of_batch(7), 1)
    assert isinstance(part, StagedChanges)
    assert [len(row) for row in rows_of([part])] == [FILE_BYTES, 5]
    assert len(part.names) == 2


def test_no_more_than_one_file_is_held_in_memory(staging: Staging, tmp_path: Path) -> None:
    def making() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(changes(*[FILE_BYTES] * 3)):
            assert len(list(tmp_path.rglob("changes-*.arrow"))) == number
            yield batch

    pack(making(), SCHEMA, staging.of_batch(7), 2)


@pytest.mark.parametrize("sizes", [(10, 20), (INLINE_BYTES, 1), (FILE_BYTES, FILE_BYTES, 3)])
def test_the_same_changes_make_the_same_parts_and_files(
    staging: Staging, tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    def packed() -> tuple[list[object], list[tuple[str, bytes]]]:
        parts = pack(changes(*sizes), SCHEMA, staging.of_batch(7), 2)
        described: list[object] = [part if isinstance(part, InlineChanges) else part.names for part in parts]
        return described, sorted((path.name, path.read_bytes()) for path in tmp_path.rglob("*.arrow"))

    assert packed() == packed()


def test_only_what_cannot_be_made_again_is_synced(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, files = Disk(tmp_path, monkeypatch), staging.of_batch(7)
    pack(changes(INLINE_BYTES, 1), SCHEMA, files, 1)
    assert disk.files == set()
    files.keep_changes(stage(changes(1), SCHEMA, files))
    disk.lose_power()
    assert rows_of(staged(files, files.change_files(), 1)) == ["a"]


def test_readers_keep_their_rows_though_another_driver_packs_the_same_changes_with_more_columns(
    staging: Staging,
) -> None:
    """The wider changes are cut into files at other places."""
    third = FILE_BYTES // 3 + 1
    rows = changes(*[third] * 6)
    more = pa.schema([*SCHEMA, pa.field("more", pa.string())])
    wider = [pa.RecordBatch.from_arrays([batch["v"], batch["v"]], schema=more) for batch in rows]
    before = pack(rows, SCHEMA, staging.of_batch(7), 2)
    after = pack(wider, more, staging.of_batch(7), 2)
    for parts in (before, after):
        assert sorted(row[0] for row in rows_of(parts)) == list("abcdef")


def test_staged_changes_lose_columns_that_are_no_longer_asked_for_and_are_refused_for_want_of_others(
    staging: Staging,
) -> None:
    schema = pa.schema([*SCHEMA, pa.field("more", pa.int64())])
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([1])], schema=schema)
    parts = staged(staging.of_batch(7), stage([batch], schema, staging.of_batch(7)), 1)
    assert [batch.to_pylist() for part in parts for batch in read(part, Unused(), BARE)] == [[{"v": "a"}]]
    with pytest.raises(SchemaChangedError, match="epoch 7 was staged without column _sequence"):
        list(read(parts[0], Unused(), replace(BARE, metadata=("_sequence",))))


def staged_as(staging: Staging, values: pa.Array[Any], now: pa.DataType) -> list[Any]:
    """Returns how staged values are read after their column has got another type."""
    schema = pa.schema([pa.field("v", values.type, nullable=False)])
    batch = pa.RecordBatch.from_arrays([values], schema=schema)
    (part,) = staged(staging.of_batch(7), stage([batch], schema, staging.of_batch(7)), 1)
    columns = pa.schema([pa.field("v", now)])
    rows = RowFormat(TableSchema("t", columns, ("v",), ("v",)), mark_unchanged=False, metadata=())
    found = pa.Table.from_batches(read(part, Unused(), rows), rows.schema)
    return found["v"].to_pylist()


@pytest.mark.parametrize(
    ("value", "before", "now"),
    [
        (-7, pa.int16(), pa.int32()),
        (-7, pa.int16(), pa.int64()),
        (1 << 30, pa.int32(), pa.int64()),
        (0.25, pa.float32(), pa.float64()),
        (Decimal("999.99"), pa.decimal128(5, 2), pa.decimal128(9, 2)),
        (Decimal("999.99"), pa.decimal128(5, 2), pa.decimal128(7, 4)),
        ("a", pa.string(), pa.string()),
    ],
    ids=str,
)
def test_staged_values_are_the_same_in_a_wider_type(
    staging: Staging, value: object, before: pa.DataType, now: pa.DataType
) -> None:
    assert staged_as(staging, pa.array([value, None], before), now) == [value, None]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (pa.int64(), pa.int32()),
        (pa.int32(), pa.string()),
        (pa.float64(), pa.float32()),
        (pa.decimal128(5, 2), pa.decimal128(9, 1)),
        (pa.decimal128(5, 2), pa.decimal128(6, 4)),
    ],
    ids=str,
)
def test_staged_values_of_a_type_that_the_column_has_no_more_are_refused_with_what_to_do(
    staging: Staging, before: pa.DataType, now: pa.DataType
) -> None:
    found = rf"epoch 7 was staged when column v \({re.escape(str(now))}\) was {re.escape(str(before))}\. .*customSchema"
    with pytest.raises(SchemaChangedError, match=found):
        staged_as(staging, pa.array([1], before), now)


def test_changes_that_were_staged_before_they_were_to_be_marked_are_not(staging: Staging) -> None:
    (part,) = staged(staging.of_batch(7), stage(changes(1), SCHEMA, staging.of_batch(7)), 1)
    (batch,) = read(part, Unused(), replace(BARE, mark_unchanged=True))
    assert batch.to_pylist() == [{"v": "a", "_unchanged_columns": None}]


def test_an_executor_that_does_not_share_the_directory_is_told_so_before_it_is_told_of_a_loss(tmp_path: Path) -> None:
    elsewhere = Staging(str(tmp_path / "of another machine"))
    advice = r"set stagingDir to a path or URI that the driver and all executors share; .* the file was lost"
    with pytest.raises(StagingError, match=advice):
        list(read(StagedChanges(elsewhere.of_batch(7), ("changes-0.arrow",)), Unused(), BARE))


def test_rows_do_not_show_in_a_parts_representation(staging: Staging) -> None:
    (part,) = pack(changes(10), SCHEMA, staging.of_batch(7), 1)
    assert "aaa" not in repr(part)


@pytest.mark.parametrize("sizes", [(10,), (INLINE_BYTES, 5)])
def test_a_part_can_be_sent_to_another_process(staging: Staging, sizes: tuple[int, ...]) -> None:
    parts = pack(changes(*sizes), SCHEMA, staging.of_batch(7), 1)
    assert rows_of(pickle.loads(pickle.dumps(parts))) == rows_of(parts)  # noqa: S301 - our own bytes
