"""Whatever is done to them, the DuckDB store and the one in memory say the same."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backfill_state import (
    Barrier,
    DuckDBProgressStore,
    InMemoryProgressStore,
    ProgressStore,
    StateStoreError,
)
from tests.state_store.streams import Row, barrier, bounds_table, everything, key_of, stream

KEYS = (
    key_of(id=pa.int64()),
    key_of(VNODE=pa.string(), Row_Count=pa.binary(), vnode=pa.date32()),
)
_VALUES = (
    st.tuples(st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.text(max_size=5), st.binary(max_size=5), st.dates()),
)

Which = st.integers(0, 1)
Names = st.sampled_from(["s1", "s2"])
Epochs = st.integers(0, 6)


@st.composite
def positions(draw: st.DrawFn, which: int) -> list[Row]:
    """Draws vnodes, each once and in any order, with a key or none."""
    vnodes = draw(st.lists(st.integers(0, 5), unique=True, max_size=6))
    none = st.just((None,) * len(KEYS[which]))
    return [(vnode, *draw(st.one_of(_VALUES[which], none))) for vnode in vnodes]


@st.composite
def barriers(draw: st.DrawFn, which: int) -> Barrier:
    counts = st.one_of(st.none(), st.integers(0, 2**63 - 1))
    rows = [(*row, draw(st.booleans()), draw(counts)) for row in draw(positions(which))]
    return barrier(draw(Epochs), *rows, offset=draw(st.sampled_from(["", "a", "b"])), key=KEYS[which])


class Agreement(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.memory = InMemoryProgressStore()
        self.duckdb = DuckDBProgressStore(Path(self.directory) / "progress.duckdb")

    def both(self, call: Callable[[ProgressStore], None]) -> None:
        """Makes the call on both: both do it, or both refuse it with the same kind of error."""
        assert _outcome(call, self.memory) == _outcome(call, self.duckdb)

    @rule(name=Names, which=Which)
    def begin(self, name: str, which: int) -> None:
        self.both(lambda store: store.begin(stream(name, KEYS[which])))

    @rule(data=st.data(), which=Which)
    def set_bounds(self, data: st.DataObject, which: int) -> None:
        bounds = bounds_table(data.draw(positions(which)), KEYS[which])
        self.both(lambda store: store.set_bounds(bounds))

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        stored = self.memory.identity()
        fits = 0 if stored is None else KEYS.index(stored.key)
        moved = data.draw(barriers(data.draw(st.sampled_from([fits, fits, fits, 1 - fits]))))
        self.both(lambda store: store.commit(moved))

    @rule(data=st.data(), name=Names, which=Which)
    def rebuild(self, data: st.DataObject, name: str, which: int) -> None:
        bounds = bounds_table(data.draw(positions(which)), KEYS[which])
        moved = data.draw(barriers(which))
        self.both(lambda store: store.rebuild(stream(name, KEYS[which]), bounds, moved))

    @rule()
    def reset(self) -> None:
        self.both(lambda store: store.reset())

    @rule()
    def close(self) -> None:
        self.both(lambda store: store.close())

    @invariant()
    def agree(self) -> None:
        assert everything(self.memory) == everything(self.duckdb)

    def teardown(self) -> None:
        self.duckdb.close()
        shutil.rmtree(self.directory)


def _outcome(call: Callable[[ProgressStore], None], store: ProgressStore) -> type[StateStoreError] | None:
    try:
        call(store)
    except StateStoreError as error:
        return type(error)
    return None


TestTheStoresAgree = Agreement.TestCase
TestTheStoresAgree.settings = settings(
    max_examples=20,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
