"""Whole rows of one batch after the other, by way of the last rows kept, with look-ups at the right state or later."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.changes import DELETE, INSERT, UPDATE
from backfill.epoch import Epoch
from backfill.handoff import StagedChanges, read
from backfill.mark import mark
from backfill.offset import Barrier
from backfill.progress import Finished
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.upstream import TableSchema
from backfill.upstream.added import NOTHING_ADDED
from backfill.whole_rows.completing import Rules
from backfill.whole_rows.last_rows import LastRows, Logged, Marked
from backfill.whole_rows.lookup import FEW, LookUp
from backfill_state.upsert import DuckDBUpsertState, InMemoryUpsertState, UpsertLayout, UpsertState
from tests.core.whole_rows_reference import (
    COLUMNS,
    KEY,
    KEYS,
    LONG,
    SMALL,
    Change,
    Emitted,
    Key,
    Row,
    among,
    apply,
    apply_in_order,
    batch_of,
    fold,
    in_order,
    key_of,
    row_of,
    rows_found,
    some_changes,
)

MOST_BYTES = 100
FEW_BYTES = Rules(most_bytes=MOST_BYTES)
TABLE = TableSchema("t", COLUMNS, tuple(COLUMNS.names), KEY)


class Stream:
    """Follows a table of which some keys have been emitted; all of its batches are of changes alone."""

    def __init__(
        self,
        folder: Path,
        emitted: set[Key],
        rows: dict[Key, Row],
        rules: Rules = FEW_BYTES,
        open_state: Callable[[UpsertLayout], UpsertState] | None = None,
    ) -> None:
        self.looked_up: list[int] = []
        self._staging = Staging(str(folder)).of_stream("s")
        self._rows = RowFormat(TABLE, mark_unchanged=False)
        self._emitted = emitted
        self._last = LastRows(
            open_state or (lambda layout: InMemoryUpsertState(layout, tombstones=bool(rules.order_column))),
            self._rows,
            rules,
        )
        self.figures = self._last.figures
        self._at = self._barrier(1)
        self._changes(Logged(None, self._at, iter(()), self._look_up({})))
        begun = [Change(INSERT, key, None, row) for key, row in rows.items() if key in emitted]
        self.batch([begun], {})

    @staticmethod
    def _barrier(number: int) -> Barrier:
        return Barrier("s", (), Epoch(number, str(number), number, 0), Finished(1, 0))

    def _look_up(self, table: dict[Key, Row]) -> LookUp:
        def found(keys: pa.RecordBatch) -> pa.RecordBatch:
            self.looked_up.append(keys.num_rows)
            return rows_found(keys, table)

        return found

    def _changes(self, logged: Logged) -> Sequence[StagedChanges]:
        return self._last.changes(logged, self._staging, 1, NOTHING_ADDED)

    def batch(self, pieces: Sequence[Sequence[Change]], looked_into: dict[Key, Row]) -> list[Emitted]:
        """Returns what is told of one batch, whose changes come in pieces."""

        def marked() -> Marked:
            for piece in pieces:
                made = batch_of(piece)
                yield made, mark(made, key=KEY, forwarded=among(self._emitted)), False

        end = self._barrier(self._at.epoch.number + 1)
        parts = self._changes(Logged(self._at, end, marked(), self._look_up(looked_into)))
        self._at = end
        # A staged part needs no reader.
        found = [batch for part in parts for batch in read(part, None, self._rows)]  # type: ignore[arg-type]
        self.sizes = [batch.nbytes for batch in found]
        rows = [row for batch in found for row in batch.to_pylist()]
        return [(row["_change_type"], key_of(row), row_of(row)) for row in rows]


Batches = list[tuple[list[list[Change]], bool]]
"""The pieces of each batch, and whether its rows are looked up late, at the end of all batches."""

# Its key gets another row before it is looked up.
MOVED_ON = [
    Change(UPDATE, ("q", 3), ("p", 2), (7, 0), frozenset({"x"})),
    Change(UPDATE, ("p", 3), ("q", 3), (7, 0), frozenset({"x", "y"})),
    Change(INSERT, ("q", 3), None, (1, 1)),
]


@given(st.data())
def test_the_last_rows_are_those_of_the_table(data: st.DataObject) -> None:
    table = data.draw(st.dictionaries(KEYS, st.tuples(SMALL, SMALL)))
    emitted = data.draw(st.sets(KEYS))
    before, batches, ends = dict(table), [], []
    for _ in range(data.draw(st.integers(1, 3))):
        batches.append([data.draw(some_changes(table)) for _ in range(data.draw(st.integers(1, 3)))])
        ends.append(dict(table))
    late = [data.draw(st.booleans()) for _ in batches]
    require_exact(before, emitted, list(zip(batches, late, strict=True)))


def test_a_row_that_was_looked_up_later_is_no_source_for_another() -> None:
    table: dict[Key, Row] = {("p", 2): (7, 7)}
    emitted = {("p", 3), ("q", 3)}
    one_at_a_time = [[change] for change in MOVED_ON]
    require_exact(table, emitted, [(one_at_a_time, False)])
    require_exact(table, emitted, [([[change]], True) for change in MOVED_ON])
    require_exact(table, emitted, [([MOVED_ON], True)])


def require_exact(table: dict[Key, Row], emitted: set[Key], batches: Batches) -> None:
    """Requires that the consumer has the emitted part of the table after each batch before the first one looked up
    late, and after the last one.
    """
    states = [dict(table)]
    for pieces, _ in batches:
        states.append(dict(states[-1]))
        for change in (change for piece in pieces for change in piece):
            apply(change, states[-1])
    with tempfile.TemporaryDirectory() as folder:
        stream = Stream(Path(folder), emitted, table)
        sink = {key: row for key, row in table.items() if key in emitted}
        exact = True
        for at, (pieces, late) in enumerate(batches, 1):
            fold(stream.batch(pieces, states[-1] if late else states[at]), sink)
            exact &= not late
            if exact or at == len(batches):
                assert sink == {key: row for key, row in states[at].items() if key in emitted}


def test_a_long_value_that_is_never_changed_is_filled_in_for_few_changes_at_once(tmp_path: Path) -> None:
    """The value stands twice in the images of each change."""
    table: dict[Key, Row] = {("p", 1): (0, 1)}
    updates = [Change(UPDATE, ("p", 1), None, (value, 1), frozenset({"y"})) for value in range(500)]
    stream, sink = Stream(tmp_path, {("p", 1)}, table), dict(table)
    fold(stream.batch([updates], {}), sink)
    assert sink == {("p", 1): (499, 1)}
    assert sum(stream.sizes) > 500 * 2 * LONG
    assert max(stream.sizes) < 20 * MOST_BYTES


@given(st.data())
def test_with_an_order_no_row_follows_a_later_one_of_its_key(data: st.DataObject) -> None:
    table: dict[Key, Row] = data.draw(st.dictionaries(KEYS, st.tuples(SMALL, SMALL)))
    emitted = data.draw(st.sets(KEYS))
    rows = {key: row for key, row in table.items() if key in emitted}
    latest, sink = dict(rows), dict(rows)
    with tempfile.TemporaryDirectory() as folder:
        stream = Stream(Path(folder), emitted, table, Rules(order_column="x", skips_equal=True))
        for _ in range(data.draw(st.integers(1, 3))):
            pieces = [[in_order(change) for change in data.draw(some_changes(table))] for _ in range(2)]
            fold(stream.batch(pieces, {}), sink)
            for change in (change for piece in pieces for change in piece):
                apply_in_order(change, emitted, rows, latest)
            assert sink == rows


@pytest.mark.parametrize("together", [True, False])
def test_what_an_update_left_alone_is_not_taken_from_the_row_before_one_that_came_late(
    tmp_path: Path, *, together: bool
) -> None:
    before = Change(UPDATE, ("p", 1), None, (5, 3))
    late = Change(UPDATE, ("p", 1), None, (4, 2))
    after = Change(UPDATE, ("p", 1), None, (6, 2), frozenset({"y"}))
    table: dict[Key, Row] = {("p", 1): (5, 1)}
    stream, sink = Stream(tmp_path, {("p", 1)}, table, Rules(order_column="x")), dict(table)
    if together:
        fold(stream.batch([[before, late, after]], {("p", 1): (6, 2)}), sink)
    else:
        assert stream.batch([[late]], {}) == []
        fold(stream.batch([[after]], {("p", 1): (6, 2)}), sink)
    assert sink == {("p", 1): (6, 2)}


@pytest.mark.parametrize("together", [True, False])
def test_a_key_keeps_the_order_of_a_row_whose_values_were_lost_when_it_was_deleted(
    tmp_path: Path, *, together: bool
) -> None:
    update, delete = Change(UPDATE, ("p", 1), None, (10, 1), frozenset({"y"})), Change(DELETE, ("p", 1))
    table: dict[Key, Row] = {("p", 1): (5, 1)}
    stream, sink = Stream(tmp_path, {("p", 1)}, table, Rules(order_column="x")), dict(table)
    if together:
        fold(stream.batch([[update, delete]], {}), sink)
    else:
        fold(stream.batch([[update]], {("p", 1): (10, 1)}), sink)
        fold(stream.batch([[delete]], {}), sink)
    assert sink == {}
    assert stream.batch([[Change(INSERT, ("p", 1), None, (7, 2))]], {}) == []
    fold(stream.batch([[Change(INSERT, ("p", 1), None, (10, 3))]], {}), sink)
    assert sink == {("p", 1): (10, 3)}


def test_rows_are_looked_up_a_few_at_a_time_where_they_are_large(tmp_path: Path) -> None:
    keys = [("p", number) for number in range(1000)]
    table: dict[Key, Row] = dict.fromkeys(keys, (1, 2))
    stream = Stream(tmp_path, set(keys), {}, Rules(most_bytes=FEW * LONG))
    sink: dict[Key, Row] = {}
    updates = [Change(UPDATE, key, None, (1, 2), frozenset({"y"})) for key in keys]
    fold(stream.batch([updates], table), sink)
    assert sink == table
    assert max(stream.looked_up) <= FEW


@pytest.mark.parametrize("lost", [50, 100])
@pytest.mark.parametrize("whole", [80, 100])
def test_of_a_row_that_is_looked_up_and_one_that_the_log_has_the_greater_order_counts(
    tmp_path: Path, lost: int, whole: int
) -> None:
    """This holds where the whole row comes late after the lost one, too, and however the changes come in pieces."""
    changes_told = [
        Change(UPDATE, ("p", 1), None, (lost, 1), frozenset({"y"})),
        Change(UPDATE, ("p", 1), None, (whole, 2)),
        Change(UPDATE, ("p", 1), None, (60, 3)),
    ]
    for pieces in ([changes_told], [[change] for change in changes_told]):
        table: dict[Key, Row] = {("p", 1): (40, 0)}
        stream, sink = Stream(tmp_path / str(len(pieces)), {("p", 1)}, table, Rules(order_column="x")), dict(table)
        fold(stream.batch(pieces, {("p", 1): (60, 3)}), sink)
        assert sink == {("p", 1): (whole, 2)}


def test_many_rows_are_looked_up_beside_many_changes_with_unchanged_values(tmp_path: Path) -> None:
    stored, added = [("p", number) for number in range(20)], [("q", number) for number in range(300)]
    table: dict[Key, Row] = dict.fromkeys(stored, (0, 1))
    stream = Stream(tmp_path, {*stored, *added}, table, Rules(most_bytes=60 * LONG))
    sink = dict(table)
    updates = [Change(UPDATE, key, None, (number, 1), frozenset({"y"})) for number in range(60) for key in stored]
    moves = [Change(UPDATE, key, None, (1, 2), frozenset({"y"})) for key in added]
    mixed = [change for pair in zip(updates, moves, strict=False) for change in pair] + updates[len(moves) :]
    later: dict[Key, Row] = {**dict.fromkeys(added, (1, 2)), **dict.fromkeys(stored, (59, 1))}
    fold(stream.batch([mixed], later), sink)
    assert sink == later
    assert len(stream.looked_up) < 60


def test_rows_that_are_gone_do_not_make_the_next_ones_be_looked_up_all_at_once(tmp_path: Path) -> None:
    keys = [("p", number) for number in range(2000)]
    stream = Stream(tmp_path, set(keys), {}, Rules(most_bytes=FEW * LONG))
    table: dict[Key, Row] = dict.fromkeys(keys[FEW:], (1, 2))
    sink: dict[Key, Row] = {}
    fold(stream.batch([[Change(UPDATE, key, None, (1, 2), frozenset({"y"})) for key in keys]], table), sink)
    assert sink == table
    assert max(stream.looked_up) <= 4 * FEW


def test_however_many_rows_are_gone_the_next_ones_are_looked_up_in_bounded_number(tmp_path: Path) -> None:
    keys = [("p", number) for number in range(5000)]
    stream = Stream(tmp_path, set(keys), {}, Rules())
    assert stream.batch([[Change(UPDATE, key, None, (1, 2), frozenset({"y"})) for key in keys]], {}) == []
    assert sum(stream.looked_up) == len(keys)
    assert max(stream.looked_up) == 16 * FEW


def test_a_small_batch_asks_its_state_for_nothing_twice(tmp_path: Path) -> None:
    """A statement takes about as long as another hundred keys would."""
    opened: list[DuckDBUpsertState] = []

    def open_state(layout: UpsertLayout) -> DuckDBUpsertState:
        opened.append(DuckDBUpsertState(tmp_path / "upsert.duckdb", layout))
        return opened[-1]

    key = ("p", 1)
    stream = Stream(tmp_path, {key}, {key: (0, 1)}, open_state=open_state)
    with closing(opened[0]):
        connection = opened[0]._file.connection
        assert connection is not None
        connection.execute("CALL enable_logging('QueryLog')")
        assert len(stream.batch([[Change(UPDATE, key, None, (1, 1))]], {})) == 2
        assert stream.figures()["state_rows"] == 1
        assert stream.figures()["state_file_bytes"] == opened[0].file_bytes()
        log = connection.execute("SELECT message FROM duckdb_logs_parsed('QueryLog')").fetchall()
    statements = [message for (message,) in log]
    assert sum("FROM upsert_state AS" in message for message in statements) == 1
    # These find out where to look, where there is room, and what to clean.
    assert sum("FROM segments" in message for message in statements) == 3
    assert not any("__duckdb_source" in message for message in statements)
