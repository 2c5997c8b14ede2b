"""Whatever is done to them, the upsert state in DuckDB and the one in memory say the same, statistics included."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from backfill_state import StateStoreError
from backfill_state.upsert import DuckDBUpsertState, Found, InMemoryUpsertState, UpsertLayout, UpsertState
from backfill_state.upsert.long_cells import LONG
from tests.upsert_state.upserts import (
    Cells,
    Update,
    columns_of,
    diffs_of,
    entries,
    entries_of,
    keys_of,
    rows_of,
    updates,
)

LAYOUTS = (
    UpsertLayout("s", columns_of(("id", pa.uint8())), columns_of(("id", pa.uint8()), ("x", pa.float32()))),
    UpsertLayout(
        "s",
        columns_of(("Id", pa.string()), ("id", pa.date32())),
        columns_of(
            ("probe", pa.list_(pa.float64())), ("k0", pa.binary()), ("k0", pa.decimal256(50, 3)), ("seq", pa.string())
        ),
    ),
)
_DAYS = (date(1969, 12, 31), date(1970, 1, 1), date(2024, 10, 4))
_KEYS: tuple[list[Cells], ...] = (
    [(0,), (1,), (7,), (255,)],
    [(text, day) for text in ("", "a/", "a", "a\0") for day in _DAYS],
)
_LONG_LISTS = [[1.5] * LONG, [2.5] * (LONG // 8 + 1), [float("nan")] * (LONG // 8), [None, *[-0.0] * LONG]]
_ROWS = (
    st.tuples(st.integers(0, 3), st.floats(width=32)),
    st.tuples(
        st.none() | st.lists(st.none() | st.floats(), max_size=2) | st.sampled_from(_LONG_LISTS),
        st.none() | st.binary(max_size=2) | st.sampled_from([LONG * b"x", LONG * b"xy", LONG * b"xy" + b"z"]),
        st.none() | st.decimals(-100, 100, places=3),
        st.none() | st.sampled_from(["", "\0", LONG * "é", LONG * "x", LONG * "x" + "y"]),
    ),
)
Orders = st.integers(-1, 2)


class Agreement(RuleBasedStateMachine):
    @initialize(
        which=st.integers(0, 1),
        chunk=st.sampled_from([3, 100]),
        full=st.sampled_from([4, 12]),
        size=st.sampled_from([2 * LONG, 1 << 30]),
        keeps=st.booleans(),
    )
    def begin(self, which: int, chunk: int, full: int, size: int, *, keeps: bool) -> None:
        self.directory = tempfile.mkdtemp()
        self.which, self.layout = which, LAYOUTS[which]
        self.memory = InMemoryUpsertState(self.layout, tombstones=keeps)
        path = Path(self.directory) / "upsert.duckdb"
        self.duckdb = DuckDBUpsertState(
            path, self.layout, tombstones=keeps, chunk_rows=chunk, segment_entries=full, segment_bytes=size
        )
        self.tokens = 0

    def both(self, call: Callable[[UpsertState], object]) -> None:
        """Makes the call on both: both say the same, or both refuse it with the same kind of error."""
        assert _outcome(call, self.memory) == _outcome(call, self.duckdb)

    def token(self, data: st.DataObject) -> str:
        self.tokens += data.draw(st.sampled_from([1, 1, 1, 0]))
        return f"t{self.tokens}"

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Makes one of all steps, mostly puts. Were they rules, hypothesis would leave some out for a whole run."""
        steps = [self.put] * 6 + [self.clear, self.consolidate, self.reset, self.close]
        data.draw(st.sampled_from(steps))(data)

    def calls(self, data: st.DataObject, count: int) -> list[tuple[bool, list[Update]]]:
        """Draws calls with updates of the same keys, each with whether their entries are asked for just before it."""
        keys = data.draw(st.lists(st.sampled_from(_KEYS[self.which]), max_size=6, unique=data.draw(st.booleans())))
        row = st.none() | _ROWS[self.which]
        call = st.tuples(*(st.tuples(st.just(key), Orders, Orders, row) for key in keys)).map(list)
        return [(data.draw(st.booleans()), data.draw(call)) for _ in range(count)]

    def put(self, data: st.DataObject) -> None:
        """Puts some keys twice, and perhaps others then: what was looked up before may cover some of them."""
        calls = self.calls(data, 2) + self.calls(data, data.draw(st.integers(0, 1)))
        token = self.token(data)

        def put(state: UpsertState) -> object:
            with state.batch(token) as new:
                return new, [_asked_and_put(state, *call) for call in calls], _whole(state)

        self.both(put)

    def clear(self, data: st.DataObject) -> None:
        before, (asks, after) = self.calls(data, 2)
        token = self.token(data)

        def clear(state: UpsertState) -> object:
            with state.batch(token) as new:
                first = _asked_and_put(state, *before)
                found = _found(state, after) if asks else None
                state.clear()
                return new, first, found, _asked_and_put(state, asks=False, call=after), _whole(state)

        self.both(clear)

    def consolidate(self, data: st.DataObject) -> None:
        completed = data.draw(st.booleans())
        line = st.tuples(st.sampled_from(_KEYS[self.which]), _ROWS[self.which])
        added = data.draw(st.lists(line, max_size=4))
        retracted = data.draw(st.lists(st.sampled_from(added), max_size=2)) if added else []
        lines = [*((*item, 1) for item in added), *((*item, -1) for item in retracted)]
        keys = keys_of([key for key, _, _ in lines], self.layout)
        rows = rows_of([row for _, row, _ in lines], self.layout)
        diffs = diffs_of(*(diff for *_, diff in lines))
        token = self.token(data)

        def consolidate(state: UpsertState) -> object:
            with state.batch(token) as new:
                return new, state.consolidate_chunk(keys, rows, diffs, completed=completed)

        self.both(consolidate)

    def reset(self, _: st.DataObject) -> None:
        self.both(lambda state: state.reset())

    def close(self, _: st.DataObject) -> None:
        self.both(lambda state: state.close())

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "memory"):
            self.both(lambda state: (state.token(), state.consolidating(), state.totals()))
            self.both(_all)

    def teardown(self) -> None:
        if hasattr(self, "duckdb"):
            self.duckdb.close()
            shutil.rmtree(self.directory)


def _all(state: UpsertState) -> object:
    """Returns what the state says of all possible keys; how many it reads within fewer bytes may differ by state."""
    keys = _KEYS[LAYOUTS.index(state.layout)]
    whole = state.multi_get(keys_of(keys, state.layout))
    for most_bytes in (1, 3 * LONG):
        found = state.multi_get(keys_of(keys, state.layout), most_bytes=most_bytes)
        count = len(found.entries)
        assert 1 <= count <= len(keys)
        assert count == 1 or found.stats.size <= most_bytes
        assert count == found.stats.gets
        assert found.entries == whole.entries.slice(0, count)
        assert _text(found.rows) == _text(whole.rows.slice(0, count))
    return _said(whole)


def _whole(state: UpsertState) -> object:
    return _said(state.multi_get(keys_of(_KEYS[LAYOUTS.index(state.layout)], state.layout)))


def _said(found: Found) -> object:
    """Returns entries as text, in which NaN equals itself and -0.0 does not equal 0.0."""
    return str(entries_of(found)), found.stats


def _text(rows: pa.Table) -> str:
    return repr([column.to_pylist() for column in rows.columns])


def _found(state: UpsertState, call: list[Update]) -> str:
    return str(entries(state, *(key for key, *_ in call)))


def _asked_and_put(state: UpsertState, asks: bool, call: list[Update]) -> object:
    return _found(state, call) if asks else None, state.multi_put(updates(*call, layout=state.layout))


def _outcome(call: Callable[[UpsertState], object], state: UpsertState) -> object:
    try:
        return call(state)
    except StateStoreError as error:
        return type(error)


TestTheStatesAgree = Agreement.TestCase
TestTheStatesAgree.settings = settings(
    max_examples=10,
    stateful_step_count=8,
    deadline=None,
    print_blob=True,
    # Shrinking would open thousands more files; what is printed reproduces the failure.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
