"""Deletion vectors are read as Delta's protocol has them; `deltalake`, which reads those of all files, is the judge."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.errors import DataLossError, TableError
from backfill.options import parse
from backfill.upstream.delta.changes.rows import change_rows
from backfill.upstream.delta.files.deletion_vectors import DamagedVectorError, DeletionVector
from backfill.upstream.delta.files.location import Files
from backfill.upstream.delta.files.log import Log
from backfill.upstream.delta.tables.table import described
from tests.delta import vectors
from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun

RANDOM: Final = Random(5)
ROWS: Final = 400_000
SETS: Final = {
    "none": [],
    "the first": [0],
    "few": [1, 5, 65_535],
    "as many as an array has": range(0, 8192, 2),
    "one more": range(0, 8194, 2),
    "all of a container": range(65_536),
    "some of several containers": sorted(RANDOM.sample(range(ROWS), 2000)),
    "most of several containers": sorted(RANDOM.sample(range(ROWS), ROWS - 5000)),
    "a container left out": [3, 70_000, 70_001, 300_000],
}


def bitmap(places: Sequence[int], *, runs: bool) -> bytes:
    """Writes a bitmap in Roaring's format; with `runs`, containers of more than two rows have runs."""
    containers = [(high, [place & 0xFFFF for place in part]) for high, part in groupby(places, lambda at: at >> 16)]
    flags = [runs and len(low) > 2 for _, low in containers]
    heads = b"".join(struct.pack("<HH", high, len(low) - 1) for high, low in containers)
    if any(flags):
        bits = sum(flag << at for at, flag in enumerate(flags)).to_bytes((len(flags) + 7) // 8, "little")
        begin = struct.pack("<I", 12347 | (len(containers) - 1) << 16) + bits
    else:
        begin = struct.pack("<II", 12346, len(containers))
    bodies = [_body(low, run=flag) for (_, low), flag in zip(containers, flags, strict=True)]
    offsets = b""
    if not any(flags) or len(containers) >= 4:
        at = len(begin) + len(heads) + 4 * len(containers)
        for body in bodies:
            offsets += struct.pack("<I", at)
            at += len(body)
    return begin + heads + offsets + b"".join(bodies)


def _body(low: Sequence[int], *, run: bool) -> bytes:
    if run:
        parts = [[at for _, at in part] for _, part in groupby(enumerate(low), lambda pair: pair[1] - pair[0])]
        pairs = b"".join(struct.pack("<HH", part[0], len(part) - 1) for part in parts)
        return struct.pack("<H", len(parts)) + pairs
    if len(low) > 4096:
        return sum(1 << place for place in low).to_bytes(8192, "little")
    return struct.pack(f"<{len(low)}H", *low)


def content(*bitmaps: tuple[int, bytes]) -> bytes:
    return struct.pack("<iq", 1681511377, len(bitmaps)) + b"".join(struct.pack("<I", at) + each for at, each in bitmaps)


def kept_in_file(folder: Path, data: bytes, rows: int, *, prefix: str = "", whole: bool = False) -> dict[str, Any]:
    """Writes a vector to a file after another one, as a file may have several; returns what the log says of it."""
    name = uuid.uuid5(uuid.NAMESPACE_OID, data.hex())
    path = folder / prefix / f"deletion_vector_{name}.bin"
    path.parent.mkdir(exist_ok=True, parents=True)
    other = b"\0" * 10
    path.write_bytes(b"\1" + other + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data)))
    descriptor = path.as_uri() if whole else prefix + vectors.text_of(name.bytes)
    size = {"offset": 1 + len(other), "sizeInBytes": len(data), "cardinality": rows}
    return {"storageType": "p" if whole else "u", "pathOrInlineDv": descriptor, **size}


STORED: dict[str, Callable[[Path, bytes, int], dict[str, Any]]] = {
    "in the log": lambda _, data, rows: vectors.inline(data, rows),
    "in the folder": kept_in_file,
    "in its own folder": lambda folder, data, rows: kept_in_file(folder, data, rows, prefix="aB"),
    "elsewhere": lambda folder, data, rows: kept_in_file(folder.parent / "o ther", data, rows, whole=True),
}


@pytest.mark.parametrize("runs", [False, True], ids=["without runs", "with runs"])
@pytest.mark.parametrize("name", SETS)
def test_the_rows_are_those_that_deltalake_finds(tmp_path: Path, name: str, *, runs: bool) -> None:
    places = list(SETS[name])
    descriptor = kept_in_file(tmp_path, content((0, bitmap(places, runs=runs))), len(places))
    assert DeletionVector.of(descriptor).deleted(Files(str(tmp_path))).tolist() == places
    write_deltalake(tmp_path, pa.table({"id": pa.array(range(ROWS))}), configuration=vectors.PROPERTIES)
    vectors.replace_vector(tmp_path, descriptor)
    [mask] = pa.table(DeltaTable(tmp_path).deletion_vectors()).to_pylist()
    assert [at for at, kept in enumerate(mask["selection_vector"]) if not kept] == places


@pytest.mark.parametrize("stored", STORED)
def test_wherever_it_is_stored_its_rows_come_as_deletes(tmp_path: Path, stored: str) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": pa.array(range(70_000))}), configuration={**FEED, **vectors.PROPERTIES})
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    for places in ([3, 65_535, 65_536, 69_999], [3, 65_536]):
        vectors.replace_vector(table, STORED[stored](table, content((0, bitmap(places, runs=False))), len(places)))
        run.catch_up()
        assert len(run.fold.rows) == 70_000 - len(places)


def test_deletes_count_as_what_a_batch_may_take(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": pa.array(range(20))}), configuration={**FEED, **vectors.PROPERTIES})
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    for count in (2, 4, 6, 8):
        vectors.delete_rows(table, range(count))
    run.batch(3)
    assert run.version == 2, "two commits of two rows each"
    assert len(run.fold.rows) == 16


def test_of_a_file_that_is_kept_the_rows_come_that_are_deleted_otherwise(tmp_path: Path) -> None:
    """This holds wherever in the row groups they are, and with no vector before or after; each state is compared."""
    table = tmp_path / "table"
    rows = pa.table({"id": pa.array(range(100), pa.int64())})
    DeltaTable.create(table, schema=rows.schema, configuration={**FEED, **vectors.PROPERTIES})
    pq.write_table(rows, table / "kept.parquet", row_group_size=7)
    file = {"path": "kept.parquet", "partitionValues": {}, "size": (table / "kept.parquet").stat().st_size}
    add = {**file, "modificationTime": 1, "dataChange": True, "stats": '{"numRecords": 100}'}
    vectors.commit(table, [{"add": add}])
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    random, before, descriptor = Random(3), set[int](), None
    for step in range(12):
        after = (
            set() if step == 7 else {at for at in range(100) if random.random() < 0.1} | (before if step % 2 else set())
        )
        vector = vectors.inline(content((0, bitmap(sorted(after), runs=False))), len(after)) if after else None
        removed = {**file, "dataChange": True, "deletionVector": descriptor}
        vectors.commit(table, [{"remove": removed}, {"add": {**add, "deletionVector": vector}}])
        run.fold.counts.clear()
        run.catch_up()
        expected = {"delete": len(after - before), "insert": len(before - after)}
        assert run.fold.counts == {kind: count for kind, count in expected.items() if count}
        opened = DeltaTable(table)
        commit = Log(opened).commit(opened.version())
        assert commit is not None
        described_as = described(opened, parse({"path": str(table), "keyColumns": "id"}))
        read = sum(batch.num_rows for batch in change_rows(Log(opened).files, described_as, [commit]))
        assert read == len(before ^ after), "no row that is as before is put in order"
        before, descriptor = after, vector
    few = vectors.inline(content((0, bitmap([3], runs=False))), 1)
    vectors.commit(
        table,
        [
            {"remove": {**file, "dataChange": True, "deletionVector": descriptor}},
            {"add": {**add, "deletionVector": few}},
        ],
    )
    run.catch_up()
    vectors.commit(table, [{"remove": {**file, "dataChange": True, "deletionVector": few}}])
    run.fold.counts.clear()
    run.catch_up()
    assert run.fold.counts == {"delete": 99}, "a file that goes takes the rows of all its row groups with it"


def test_rows_beyond_those_that_32_bits_count_are_found(tmp_path: Path) -> None:
    one = bitmap([1, 2], runs=False)
    descriptor = vectors.inline(content((0, one), (3, one)), 4)
    assert DeletionVector.of(descriptor).deleted(Files(str(tmp_path))).tolist() == [1, 2, (3 << 32) + 1, (3 << 32) + 2]


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (lambda data: data[:-1] + b"\7", "its size or its checksum"),
        (lambda data: data[:-3], "its size or its checksum|requires a buffer"),
        (lambda data: b"\2" + data[1:], "its size or its checksum"),
    ],
)
def test_one_that_is_damaged_is_refused(tmp_path: Path, damaged: Callable[[bytes], bytes], message: str) -> None:
    data = content((0, bitmap([1, 5], runs=False)))
    found = DeletionVector.of(kept_in_file(tmp_path, data, 2))
    [file] = tmp_path.glob("*.bin")
    whole = file.read_bytes()
    at = whole.index(data)
    file.write_bytes(whole[:at] + damaged(data) + whole[at + len(data) :])
    with pytest.raises(DamagedVectorError, match=message):
        found.deleted(Files(str(tmp_path)))


def test_other_rows_than_the_log_says_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": range(9)}), configuration={**FEED, **vectors.PROPERTIES})
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    vectors.replace_vector(table, vectors.inline(content((0, bitmap([1], runs=False))), 2))
    run.plan()
    with pytest.raises(TableError, match="cannot be read \\(it has 1 rows, and the log says 2\\)"):
        run.read()


def test_a_deletion_vector_that_vacuum_took_away_is_reported(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": range(9)}), configuration={**FEED, **vectors.PROPERTIES})
    run = DeltaRun(tmp_path, table)
    run.catch_up()
    vectors.replace_vector(table, kept_in_file(table, content((0, bitmap([1], runs=False))), 1))
    run.plan()
    [file] = table.glob("*.bin")
    file.unlink()
    with pytest.raises(DataLossError, match="VACUUM has removed them"):
        run.read()
    run.restart(failOnDataLoss="false")
    assert run.read() == []


def test_an_offset_that_is_left_out_is_that_of_the_only_source(tmp_path: Path) -> None:
    data = content((0, bitmap([4], runs=False)))
    descriptor = kept_in_file(tmp_path, data, 1)
    [file] = tmp_path.glob("*.bin")
    file.write_bytes(b"\1" + file.read_bytes()[11:])
    found = DeletionVector.of({**descriptor, "offset": None})
    assert found == replace(DeletionVector.of(descriptor), offset=1)
    assert found.deleted(Files(str(tmp_path))).tolist() == [4]
