"""Changes that are kept until the batch is planned."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from backfill.errors import ConnectionLostError, StagingError
from backfill.upstream.postgres.changes import log
from backfill.upstream.postgres.changes.spool import IN_MEMORY, Spool
from backfill.upstream.postgres.position import Lsn, Position
from backfill.upstream.postgres.replication.own_log import OwnLog
from backfill.upstream.postgres.replication.place import Place
from backfill.upstream.postgres.session.connection import Connector
from tests.full_disk import room_for


def test_a_temporary_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    monkeypatch.setattr(tempfile, "tempdir", str(gone))
    large = pa.record_batch({"v": pa.array(["x" * (IN_MEMORY + 1)])})
    spool = Spool(large.schema)
    with pytest.raises(StagingError, match=f"{gone}.*TMPDIR"):
        spool.add(large)
    spool.close()


def test_that_there_is_no_temporary_folder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    large = pa.record_batch({"v": pa.array(["x" * (IN_MEMORY + 1)])})
    with pytest.raises(StagingError, match=r"temporary folder \(.*No usable temporary directory.*TMPDIR"):
        Spool(large.schema).add(large)


def test_a_disk_that_is_full_at_the_end_of_the_changes_is_named() -> None:
    """The last changes are in the file's buffer until then."""
    large = pa.record_batch({"v": pa.array(["x" * (IN_MEMORY + 1)])})
    spool = Spool(large.schema)
    spool.add(large)
    with room_for(os.fstat(spool._file.fileno()).st_size):
        with pytest.raises(StagingError, match="Make room there"):
            spool.finish()
        spool.close()


def test_changes_are_in_their_file_before_they_are_read() -> None:
    large = pa.record_batch({"v": pa.array(["x" * (IN_MEMORY + 1)])})
    spool = Spool(large.schema)
    spool.add(large)
    spool.finish()
    with room_for(0):
        assert list(spool) == [large]
    spool.close()


def test_changes_come_in_the_order_in_which_they_were_added_from_memory_and_from_the_file() -> None:
    batches = [pa.record_batch({"v": pa.array([letter * (IN_MEMORY // 2 + 1)])}) for letter in "abcd"]
    spool = Spool(batches[0].schema)
    for count, batch in enumerate(batches, 1):
        spool.add(batch)
        assert spool.row_count == count
    spool.finish()
    assert list(spool) == batches
    assert list(spool) == batches
    spool.close()


def test_what_was_read_of_the_log_before_an_error_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    large = pa.record_batch({"v": pa.array(["x" * (IN_MEMORY + 1)])})
    made: list[Spool] = []

    def spool(_: object) -> Spool:
        made.append(Spool(large.schema))
        made[0].add(large)
        return made[0]

    def lost(*_: object) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"data": pa.array([], pa.binary())})
        raise ConnectionLostError("gone")

    monkeypatch.setattr(log, "Spool", spool)
    monkeypatch.setattr(log, "_messages", lost)
    stretch = log.Stretch(Position(Lsn(1)), Position(Lsn(2)), Lsn(2))
    place = Place("slot", "publication", own_publication=True, log=OwnLog("7", "1"))
    with pytest.raises(ConnectionLostError):
        log.peek(Connector(""), log.Feed(place, 1, ()), stretch, limit=1)
    assert [spool._file.closed for spool in made] == [True]


@pytest.mark.parametrize("size", [1, IN_MEMORY + 1], ids=["in memory", "in a file"])
def test_a_spool_that_was_closed_does_not_look_like_one_without_changes(size: int) -> None:
    batch = pa.record_batch({"v": pa.array(["x" * size])})
    spool = Spool(batch.schema)
    spool.add(batch)
    spool.finish()
    assert list(spool) == [batch]
    spool.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(iter(spool))


def test_of_more_columns_more_of_the_log_is_decoded_at_a_time_up_to_a_bound() -> None:
    assert log.batch_bytes(4) == log.batch_bytes(100) == 4 << 20
    assert log.batch_bytes(100) < log.batch_bytes(450) < log.batch_bytes(1600) == 16 << 20


def test_of_rows_of_many_nulls_a_bounded_number_of_values_is_decoded_at_a_time() -> None:
    messages = pa.array([bytes([number % 256]) for number in range(10_000)])
    parts = list(log.parts(messages, 1600))
    assert len(parts) > 1
    assert max(map(len, parts)) * 1600 <= 8 << 20
    assert pa.concat_arrays(parts).equals(messages)
    assert list(log.parts(messages, 100)) == [messages]
