"""A chunk is read from the table once, and then, by every reader, from its file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

from backfill.epoch import Epoch
from backfill.errors import ConnectionLostError, SnapshotGoneError, StagingError, StateBusyError
from backfill.handoff import Chunk, SnapshotPart, read
from backfill.plan import Split
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.staging.manifest import Manifest, PlannedSplit
from backfill.upstream import TableSchema
from backfill.vnode import WHOLE_TABLE, KeyRange

COLUMNS = pa.schema([pa.field("n", pa.int64())])
ROWS = RowFormat(TableSchema("t", COLUMNS, ("n",), ("n",)), mark_unchanged=False)
EPOCH = Epoch(7, "position", 42, 1)


@dataclass
class Table:
    """Reads the numbers 0 to `count - 1`, three in a batch, or raises `error`."""

    count: int
    error: Exception | None = None
    asked: list[tuple[str, tuple[KeyRange, ...]]] = field(default_factory=list)

    def read(self, token: str, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        self.asked.append((token, tuple(ranges)))
        if self.error is not None:
            raise self.error
        for at in range(0, self.count, 3):
            numbers = pa.array(range(at, min(at + 3, self.count)), pa.int64())
            yield pa.RecordBatch.from_arrays([numbers], schema=COLUMNS)

    def scan(self, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        raise AssertionError(f"scanned: {ranges}")


def planned(staging: Staging, count: int, *, exact: bool = True, stage_before_emit: bool = False) -> SnapshotPart:
    manifest = Manifest((PlannedSplit(Split((WHOLE_TABLE,), count)),))
    staging.of_batch(EPOCH.number).keep_manifest(manifest)
    [(name, planned)] = manifest.chunks.items()
    chunk = Chunk(staging.of_batch(EPOCH.number), EPOCH, name)
    return SnapshotPart(chunk, planned.split, "pin", exact=exact, stage_before_emit=stage_before_emit)


def numbers(part: Chunk | SnapshotPart, table: Table, found: list[int] | None = None) -> list[int]:
    """Returns what the part gives; adds it to `found` as it comes."""
    found = [] if found is None else found
    for batch in read(part, table, ROWS):
        assert batch.schema == ROWS.schema
        found += batch["n"].to_numpy().tolist()
    return found


@pytest.mark.parametrize("stage_before_emit", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3, 10])
def test_a_chunk_is_read_from_the_table_once_and_then_from_its_file(
    staging: Staging, count: int, *, stage_before_emit: bool
) -> None:
    part, table = planned(staging, count, stage_before_emit=stage_before_emit), Table(count)
    assert numbers(part, table) == list(range(count))
    assert table.asked == [("pin", (WHOLE_TABLE,))]
    assert numbers(part, Table(0, AssertionError("not needed"))) == list(range(count))


def test_a_chunk_that_is_known_to_be_staged_is_not_read_from_the_table_when_its_file_is_gone(staging: Staging) -> None:
    table = Table(3)
    with pytest.raises(StagingError, match=r"chunk-0-1.arrow of epoch 7 is not in stagingDir"):
        numbers(planned(staging, 3).chunk, table)
    assert table.asked == []


def test_a_chunk_with_another_number_of_rows_than_planned_is_refused_and_not_kept(staging: Staging) -> None:
    part = planned(staging, 4)
    with pytest.raises(StagingError, match="a chunk of epoch 7 has 5 rows and was planned with 4"):
        numbers(part, Table(5))
    assert not part.chunk.is_staged


def test_a_chunk_that_is_read_at_a_later_state_may_have_another_number_of_rows(staging: Staging) -> None:
    assert numbers(planned(staging, 4, exact=False), Table(5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stage_before_emit", [False, True])
def test_a_chunk_that_is_cut_off_has_passed_on_no_row_where_it_is_staged_first(
    staging: Staging, *, stage_before_emit: bool
) -> None:
    class CutOff(Table):
        def read(self, token: str, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
            yield from super().read(token, ranges)
            raise ConnectionLostError("gone")

    part, found = planned(staging, 10, stage_before_emit=stage_before_emit), list[int]()
    with pytest.raises(ConnectionLostError, match="gone"):
        numbers(part, CutOff(10), found)
    assert found == ([] if stage_before_emit else list(range(9)))


@pytest.mark.parametrize("stage_before_emit", [False, True])
def test_when_the_state_is_gone_but_another_attempt_has_staged_the_chunk_it_is_read_from_there(
    staging: Staging, *, stage_before_emit: bool
) -> None:
    part = planned(staging, 4, stage_before_emit=stage_before_emit)

    class Late(Table):
        def read(self, token: str, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
            assert numbers(part, Table(4)) == [0, 1, 2, 3]
            return super().read(token, ranges)

    assert numbers(part, Late(0, SnapshotGoneError("released"))) == [0, 1, 2, 3]


@pytest.mark.parametrize("stage_before_emit", [False, True])
@pytest.mark.parametrize("at", [1, 2, 5, 7])
def test_when_the_state_goes_amid_the_rows_those_that_were_passed_on_do_not_come_again(
    staging: Staging, at: int, *, stage_before_emit: bool
) -> None:
    """The other attempt's batches are of three rows, and those of this one of `at` rows."""
    part = planned(staging, 10, stage_before_emit=stage_before_emit)

    class Overtaken(Table):
        def read(self, token: str, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
            self.asked.append((token, tuple(ranges)))
            for begin in range(0, 9, at):
                yield pa.RecordBatch.from_arrays(
                    [pa.array(range(begin, min(begin + at, 9)), pa.int64())], schema=COLUMNS
                )
            assert numbers(part, Table(10)) == list(range(10))
            raise SnapshotGoneError("released")

    assert numbers(part, Overtaken(0)) == list(range(10))


def test_a_state_that_is_gone_before_its_chunk_was_staged_is_reported(staging: Staging) -> None:
    with pytest.raises(SnapshotGoneError, match="released"):
        numbers(planned(staging, 4), Table(4, SnapshotGoneError("released")))


def test_an_executor_that_does_not_see_the_drivers_files_does_not_begin_to_read(
    staging: Staging, tmp_path: Path
) -> None:
    part, table = planned(staging, 4), Table(4)
    local = Staging(str(tmp_path / "local")).of_stream("s1")
    elsewhere = replace(part, chunk=replace(part.chunk, files=local.of_batch(EPOCH.number)))
    with pytest.raises(StagingError, match="set stagingDir to a path or URI that the driver and all executors share"):
        numbers(elsewhere, table)
    assert table.asked == []


def test_snapshot_rows_are_staged_as_the_table_has_them_and_passed_on_with_metadata(staging: Staging) -> None:
    part = planned(staging, 4)
    rows = [row for batch in read(part, Table(4), ROWS) for row in batch.to_pylist()]
    assert {(row["_change_type"], row["_is_snapshot"], row["_commit_version"]) for row in rows} == {
        ("insert", True, 42)
    }
    assert all(batch.schema == COLUMNS for batch in staging.of_batch(7).read(part.chunk.name))


@pytest.mark.parametrize("stage_before_emit", [False, True])
def test_a_reader_whose_batch_was_planned_anew_meanwhile_fails_however_often_it_is_tried(
    staging: Staging, *, stage_before_emit: bool
) -> None:
    """With `stageBeforeEmit` it gives no row to a sink that takes single rows: they come from the other reader."""
    part, found = planned(staging, 10, stage_before_emit=stage_before_emit), list[int]()

    class Followed(Table):
        def read(self, token: str, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
            staging.of_batch(EPOCH.number).keep_manifest(Manifest((PlannedSplit(part.split).reread_at("later"),)))
            return super().read(token, ranges)

    for table in (Followed(10), Table(10)):
        with pytest.raises(StateBusyError, match="the batch up to epoch 7 was planned again"):
            numbers(part, table, found)
    assert stage_before_emit == (not found)
