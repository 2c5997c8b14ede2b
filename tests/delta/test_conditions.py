"""The rows of a Delta table that `filter` and `snapshotFilter` choose, and the files that need not be read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backfill.errors import DataLossError, OptionsError
from backfill.options import parse
from backfill.plan import Measure
from backfill.upstream.delta import DeltaUpstream
from backfill.vnode import WHOLE_TABLE, KeyRange
from tests.delta.laboratory import FEED
from tests.delta.stream import DeltaRun
from tests.delta.tables import COLUMNS, rows


def test_files_without_keys_of_a_range_are_left_out(tmp_path: Path) -> None:
    """The test takes these files away: a read that succeeds without them has not looked at them."""
    table = tmp_path / "table"
    DeltaTable.create(table, schema=COLUMNS, configuration=FEED)
    for first in range(0, 50, 10):
        write_deltalake(table, rows(*[(key, f"v{key}") for key in range(first, first + 10)]), mode="append")
    upstream = DeltaUpstream(parse({"path": str(table), "keyColumns": "id"}))
    ranges = [*upstream.bounds(5)]
    assert ranges == [("10",), ("20",), ("30",), ("40",)]
    pin = upstream.snapshot_epoch(None, max_changes=100).pin
    assert pin is not None
    (request,) = [Measure(WHOLE_TABLE, 100)]
    assert upstream.measure(pin, [request])[0].row_count == 50
    actions = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
    for action in actions:
        if action["min.id"] != 20:
            (table / action["path"]).unlink()
    inside = KeyRange(("20",), ("29",))
    assert upstream.measure(pin, [Measure(inside, 100)])[0].row_count == 9
    assert sum(batch.num_rows for batch in upstream.reader().read(pin.token, [inside])) == 9
    with pytest.raises(DataLossError, match="are gone"):
        upstream.measure(pin, [request])


@pytest.mark.parametrize(
    ("condition", "named"),
    [
        ("random() < 0.5", "uses random"),
        ("id > 0 AND current_timestamp > '2020-01-01'", "uses current_timestamp"),
        ("get_current_timestamp() > '2020-01-01'", "uses get_current_timestamp"),
        ("id IN (SELECT 1)", "has a subselect"),
        ("1 = 2) OR (1 = 1", "is not one condition, but more or less"),
        ("v", 'has the type "?VARCHAR"?, expected a condition'),
        ("age(TIMESTAMP '2020-01-01') > INTERVAL 1 DAY", "uses age"),
        ("ago(INTERVAL 1 DAY) > '2020-01-01'", "uses ago"),
        ("count(*) > 1", "is not a condition on the table's columns"),
        ("row_number() OVER () < 3", "is not a condition on the table's columns"),
        ("COLUMNS(*) = 1", "(has the type|is not a condition)"),
    ],
)
def test_a_snapshot_filter_depends_on_nothing_but_the_row(
    tmp_path: Path, table: Path, condition: str, named: str
) -> None:
    with pytest.raises(OptionsError, match=f"the option snapshotFilter {named}"):
        DeltaRun(tmp_path, table, options={"snapshotFilter": condition}).plan()


def test_a_snapshot_filter_chooses_among_the_rows_that_are_there(tmp_path: Path, table: Path) -> None:
    run = DeltaRun(tmp_path, table, options={"snapshotFilter": "id % 2 = 0 AND v <> 'v4'", "columns": "id"})
    assert run.plan()
    assert [row["id"] for row in run.read()] == [0, 2, 6, 8]
    with pytest.raises(OptionsError, match="the option snapshotFilter is not a condition"):
        DeltaRun(tmp_path / "other", table, options={"snapshotFilter": "nope = 1"}).plan()


def test_a_snapshot_filter_may_compute_with_the_row(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    times = [datetime(year, 1, 1, tzinfo=UTC) for year in (2024, 2025, 2026)]
    write_deltalake(folder, pa.table({"id": [0, 1, 2], "made": times}), configuration=FEED)
    condition = "id + 1 > 1 AND -id < 0 AND year(made) = 2025 AND date_trunc('year', made) = made"
    run = DeltaRun(tmp_path, folder, options={"snapshotFilter": condition})
    assert run.plan()
    assert [row["id"] for row in run.read()] == [1]


def test_a_condition_means_the_same_in_every_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "table"
    times = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (0, 20, 23)]
    write_deltalake(folder, pa.table({"id": [0, 1, 2], "made": times}), configuration=FEED)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    condition = "CAST(made AS DATE) = '2026-01-01' AND made < '2026-01-01 22:00'"
    upstream = DeltaUpstream(parse({"path": str(folder), "keyColumns": "id", "filter": condition}))
    found = pa.Table.from_batches(upstream.reader().scan([WHOLE_TABLE]))
    assert found["made"].to_pylist() == times[:2]
    run = DeltaRun(tmp_path, folder, options={"snapshotFilter": condition})
    assert run.plan()
    assert [row["id"] for row in run.read()] == [0, 1]


@pytest.mark.parametrize("before", [0, 200_000], ids=["at once", "after many others"])
@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("CAST(n AS TINYINT) % 2 = 1", "Conversion Error"),
        ("n * 1000000000000000000 > 1", "Out of Range Error"),
        ("strptime(v, '%Y') IS NULL", "Invalid Input Error"),
    ],
)
def test_a_condition_that_fails_for_a_row_is_at_fault_and_the_row_stays_untold(
    tmp_path: Path, before: int, condition: str, kind: str
) -> None:
    folder = tmp_path / "table"
    found = {"id": range(before + 1), "n": [1] * before + [31_415], "v": ["2020"] * before + ["hunter2"]}
    write_deltalake(folder, pa.table(found), configuration=FEED)
    given = {"path": str(folder), "keyColumns": "id", "filter": condition}
    with pytest.raises(OptionsError, match=f"of the table: {kind}.") as caught:
        list(DeltaUpstream(parse(given)).reader().scan([WHOLE_TABLE]))
    assert "31415" not in caught.value.message
    assert "hunter2" not in caught.value.message
    with pytest.raises(OptionsError, match="snapshotFilter"):
        DeltaRun(tmp_path, folder, options={"snapshotFilter": condition}).plan()


@pytest.mark.parametrize("option", ["filter", "snapshotFilter"])
def test_a_condition_names_no_column_that_is_not_read_rightly(tmp_path: Path, option: str) -> None:
    """Bytes that partition a table are such a column: every comparison with them would be false."""
    parts = pa.array([b"\x01", b"a", b"\xff", b"zz"])
    write_deltalake(tmp_path, pa.table({"id": range(4), "b": parts, "v": [1, 2, 3, 4]}), partition_by=["b"])
    given = {"path": str(tmp_path), "keyColumns": "id", "columns": "id"}
    with pytest.raises(OptionsError, match=f'the option {option} is not a condition .* column "b" not found'):
        DeltaUpstream(parse({**given, option: "b = 'a'::BLOB"})).schema()
    by_others = DeltaUpstream(parse({**given, option: "v > 2"}))
    assert by_others.schema().columns.names == ["id"]
    if option == "filter":
        assert {row for batch in by_others.reader().scan([WHOLE_TABLE]) for row in batch["id"].to_pylist()} == {2, 3}


def test_a_filter_is_a_condition_on_each_row(table: Path) -> None:
    """Rows are looked at a few at a time, so a subselect would choose the greatest of each few."""
    condition = "v = (SELECT max(v) FROM feed)"
    with pytest.raises(OptionsError, match="the option filter has a subselect"):
        DeltaUpstream(parse({"path": str(table), "keyColumns": "id", "filter": condition})).schema()
