"""How large a table is estimated to be, and where a given number of rows ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.adapters import open_upstream
from backfill.options import parse
from backfill.plan import Extent, Measure
from backfill.upstream.delta import DeltaUpstream
from backfill.upstream.delta.files.footers import largest_rows
from backfill.upstream.delta.keys.columns import KeyColumns
from backfill.upstream.delta.keys.sorted_keys import SortedKeys
from backfill.upstream.delta.snapshot import measuring, sizes
from backfill.upstream.delta.snapshot.rows import Rows
from backfill.vnode import WHOLE_TABLE, KeyRange
from tests.delta.laboratory import FEED


def test_rows_are_as_large_as_they_are_in_memory_whatever_their_files_take(tmp_path: Path) -> None:
    """`maxBytesPerTrigger` bounds what a batch takes in memory, and compressed files are a fraction of that."""
    rows = {"id": range(2000), "doc": ["a text of which there are many, " * 100] * 2000}
    write_deltalake(tmp_path / "table", pa.table(rows))
    with closing(open_upstream(parse({"path": str(tmp_path / "table"), "keyColumns": "id"}))) as upstream:
        size = upstream.size()
        assert size.row_count == 2000
        assert 3200 < size.row_bytes < 4000
    with closing(
        open_upstream(parse({"path": str(tmp_path / "table"), "keyColumns": "id", "columns": "id"}))
    ) as narrow:
        assert narrow.size().row_bytes < 100


@pytest.mark.parametrize("seed", range(4))
def test_where_rows_end_is_found_while_few_keys_are_held(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys that are held are cut down again and again to those that are needed, in whatever order the keys lie."""
    monkeypatch.setattr(measuring, "CHUNK_ROWS", 16)
    random = Random(seed)
    keys = random.sample(range(2000), 600)
    held = _held(monkeypatch)
    with _measured(tmp_path / "table", keys) as measure:
        for _ in range(8):
            measures = [_measure(random, keys, *ends) for ends in _ranges(random)]
            random.shuffle(measures)
            assert measure([request for request, _ in measures]) == tuple(found for _, found in measures)
    assert held
    assert max(held) < 400


@contextmanager
def _measured(table: Path, keys: Sequence[object]) -> Iterator[Callable[[Sequence[Measure]], tuple[Extent, ...]]]:
    """Makes a table that has these keys, in this order, in many files; gives the function that measures it."""
    for first in range(0, len(keys), 20):
        write_deltalake(table, pa.table({"id": keys[first : first + 20]}), mode="append")
    options = parse({"path": str(table), "keyColumns": "id", "startupMode": "snapshot"})
    with closing(open_upstream(options)) as upstream:
        pin = upstream.snapshot_epoch(None, max_changes=1).pin
        assert pin is not None
        yield partial(upstream.measure, pin)


def _held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the number of keys held each time that they are cut down to those that are needed."""
    held: list[int] = []
    needed = SortedKeys.needed

    def watched(found: SortedKeys, requests: Sequence[Measure]) -> pa.Table:
        held.append(len(found))
        return needed(found, requests)

    monkeypatch.setattr(SortedKeys, "needed", watched)
    return held


def _ranges(random: Random) -> list[tuple[int | None, int | None]]:
    cuts = [None, *sorted(random.sample(range(2000), random.randint(0, 3))), None]
    return list(pairwise(cuts))


def _measure(random: Random, keys: list[int], after: int | None, upto: int | None) -> tuple[Measure, Extent]:
    """Returns a request, and what it has to find."""
    limit = random.choice([1, 2, 7, 40])
    inside = sorted(key for key in keys if (after is None or key > after) and (upto is None or key <= upto))
    last = (str(inside[limit - 1]),) if len(inside) > limit else None
    first, end = (None if bound is None else (str(bound),) for bound in (after, upto))
    return Measure(KeyRange(first, end), limit), Extent(min(limit, len(inside)), last)


def test_keys_of_many_files_are_held_in_few_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each file would cost as much as all the files before it."""
    pieces: list[int] = []

    def sorted_keys(columns: KeyColumns, keys: pa.Table) -> SortedKeys:
        pieces.append(keys.column(0).num_chunks)
        return SortedKeys(columns, keys)

    with _measured(tmp_path / "table", Random(1).sample(range(2000), 600)) as measure:
        monkeypatch.setattr(measuring, "SortedKeys", sorted_keys)
        [found] = measure([Measure(WHOLE_TABLE, 1000)])
    assert found == Extent(600, None)
    assert pieces == [2]  # The first one is empty.


def test_of_wide_rows_few_are_read_at_a_time(tmp_path: Path) -> None:
    """Otherwise 8,192 rows of 100 kB would be in memory several times over."""
    rows = {"id": range(3000), "doc": [Random(at).randbytes(16_000) for at in range(3000)]}
    write_deltalake(tmp_path / "table", pa.table(rows))
    types: dict[str, pa.DataType] = {"id": pa.int64(), "doc": pa.binary()}
    for condition in ("", "id >= 0 AND doc IS NOT NULL"):
        read = Rows.of(DeltaTable(tmp_path / "table"), pa.schema(types), condition)
        found = [batch.num_rows for batch in read.where(None)]
        assert sum(found) == 3000
        assert max(found) < 600


def test_few_wide_keys_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "CHUNK_BYTES", 10_000)
    texts = [f"{number:0200}" for number in Random(1).sample(range(2000), 1000)]
    held = _held(monkeypatch)
    with _measured(tmp_path / "table", texts) as measure:
        [found] = measure([Measure(WHOLE_TABLE, 7)])
    assert found == Extent(7, (sorted(texts)[6],))
    assert held
    assert max(held) < 200


@pytest.mark.parametrize("condition", ["", "id >= 0"])
def test_rows_that_become_large_are_read_few_at_a_time(
    tmp_path: Path, condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds where the first rows are small, and whether or not one text is there many times."""
    monkeypatch.setattr(sizes, "row_bytes", lambda *_: 13)
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": range(2000), "doc": ["small"] * 2000}))
    large = [f"{number:06}" * 20_000 for number in range(200)]
    write_deltalake(table, pa.table({"id": range(2000, 2200), "doc": large}), mode="append")
    write_deltalake(table, pa.table({"id": range(2200, 2400), "doc": [large[0]] * 200}), mode="append")
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("doc", pa.string())]
    columns = pa.schema(fields)
    found = list(Rows.of(DeltaTable(table), columns, condition).where(None))
    rows = {row["id"]: row["doc"] for batch in found for row in batch.to_pylist()}
    assert rows == dict(enumerate(["small"] * 2000 + large + [large[0]] * 200))
    assert max(batch.nbytes for batch in found) < 10 << 20


@pytest.mark.parametrize("mapping", ["none", "name"])
def test_a_file_of_one_row_says_little_of_how_large_rows_are(tmp_path: Path, mapping: str) -> None:
    """Such a file has some bytes for each column, whatever the column holds."""
    columns = {f"c{number}": ["x"] for number in range(200)}
    rows = pa.table({"id": [0], "doc": ["small"], **columns})
    DeltaTable.create(tmp_path / "table", rows.schema, configuration={"delta.columnMapping.mode": mapping})
    write_deltalake(tmp_path / "table", rows, mode="append")
    large = [f"{number:06}" * 5_000 for number in range(300)]
    columns = {name: values * 300 for name, values in columns.items()}
    write_deltalake(tmp_path / "table", pa.table({"id": range(1, 301), "doc": large, **columns}), mode="append")
    table = DeltaTable(tmp_path / "table")
    assert 30_000 < largest_rows(table, table.schema().to_arrow().names) < 60_000
    assert largest_rows(table, ["c0", "c1"]) < 10


def test_changes_that_have_one_large_text_many_times_come_few_at_a_time(tmp_path: Path) -> None:
    """The file has the text once, so its size says little."""
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": [0], "doc": ["small"]}), configuration=FEED)
    write_deltalake(table, pa.table({"id": range(1, 5001), "doc": ["x" * 20_000] * 5000}), mode="append")
    with closing(DeltaUpstream(parse({"path": str(table), "keyColumns": "id"}))) as upstream:
        before = pa.total_allocated_bytes()
        taken = found = 0
        for batch in upstream.span("0", "latest").read():
            found += batch.num_rows
            taken = max(taken, pa.total_allocated_bytes() - before)
    assert found == 5000
    assert taken < 100 << 20


@pytest.mark.parametrize("condition", ["", "id % 2 = 0"])
def test_rows_that_have_one_large_text_many_times_come_few_at_a_time(tmp_path: Path, condition: str) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": range(5000), "doc": ["x" * 20_000] * 5000}))
    given = {"path": str(table), "keyColumns": "id"} | ({"filter": condition} if condition else {})
    found: list[int] = []
    with closing(DeltaUpstream(parse(given))) as upstream:
        for batch in upstream.reader().scan([WHOLE_TABLE]):
            assert batch.nbytes < 20 << 20
            assert batch["doc"].unique().to_pylist() == ["x" * 20_000]
            found += batch["id"].to_numpy().tolist()
    assert sorted(found) == list(range(0, 5000, 2 if condition else 1))


@pytest.mark.parametrize("condition", ["", "id % 2 = 0"])
def test_rows_are_read_few_at_a_time_if_one_large_text_begins_after_many_small_ones(
    tmp_path: Path, condition: str
) -> None:
    """Neither the first rows nor the file, which has the text once, say how large the rows are."""
    rows = pa.table({"id": range(5000), "doc": [None] * 1200 + ["x" * 20_000] * 3800})
    write_deltalake(tmp_path, rows)
    found = list(Rows.of(DeltaTable(tmp_path), rows.schema, condition).where(None))
    assert max(batch.nbytes for batch in found) < 10 << 20
    wanted = rows.take(list(range(0, 5000, 2))) if condition else rows
    assert pa.Table.from_batches(found).sort_by("id").equals(wanted)
