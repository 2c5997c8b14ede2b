"""A state directory of a table whose key has got other types since, or another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from backfill.epoch import Epoch
from backfill.errors import DefiniteError, SchemaChangedError, StateError
from backfill.progress import Progress
from backfill.upstream import Bookmark, TableSchema
from backfill.vnode import Key
from tests.simulator.upstream import TABLE
from tests.state_dir.folder import DONE, MIDDLE, OVER, ROWS_IN_THE_MIDDLE, Folder, Upstream, adopt


class Rekeyed(Upstream):
    """The same table when its key is `b, a`, and `a` is of another type."""

    key_columns = pa.schema([("b", pa.int64()), ("a", pa.int32())])

    def schema(self) -> TableSchema:
        columns = pa.schema([*self.key_columns, ("v", pa.string())])
        return TableSchema("t", columns, output=("a", "b", "v"), key=("b", "a"))

    def typed(self, keys: Sequence[Key]) -> pa.RecordBatch:
        assert not keys, "no position is left"
        return pa.RecordBatch.from_pylist([], schema=self.key_columns)

    def require_same_order(self, bookmark: Bookmark) -> None:
        raise SchemaChangedError(f"not the order of {dict(bookmark)['slot']}")

    def reordered(self, bookmark: Bookmark) -> Bookmark:
        return (*bookmark, ("order", "of now"))


class Reordered(Rekeyed):
    def schema(self) -> TableSchema:
        return TABLE


class Retyped(Rekeyed):
    key_columns = pa.schema([("a", pa.int64()), ("b", pa.int32())])

    def schema(self) -> TableSchema:
        return replace(super().schema(), key=("a", "b"))


@pytest.mark.parametrize("progress", [OVER, DONE], ids=["over", "just over"])
@pytest.mark.parametrize("now", [Rekeyed(), Retyped()], ids=["order and type", "type"])
def test_once_no_position_is_left_the_key_may_be_another(folder: Folder, progress: Progress, now: Upstream) -> None:
    barrier = folder.recorded(4, progress)
    record = folder.process(upstream=now)
    bookmark = adopt(record, barrier, order_matters=False)
    assert bookmark == (*barrier.bookmark, ("order", "of now"))
    for number in (4, 5):
        assert record.commit(replace(barrier, epoch=Epoch(number, f"p{number}", number, number)), at_once=True)
    with folder.open() as store:
        found, progress_now = store.identity(), store.progress()
        assert (store.epoch(), store.bounds().num_rows) == (5, 0)
    assert found is not None
    assert (found.key, found.properties) == (now.schema().key_schema, bookmark)
    assert progress_now["backfill_finished"].to_pylist() == [True, True, True]


@pytest.mark.parametrize(
    ("now", "kind", "reason"),
    [
        (Rekeyed(), StateError, r"the key of public.t is \(b, a\) and was \(a, b\) when"),
        (Retyped(), SchemaChangedError, r"is \(a int64, b int32\) and was \(a int64, b int64\) .* not all rows"),
        (Reordered(), SchemaChangedError, "not the order of slot_"),
    ],
    ids=["columns", "type", "order"],
)
def test_while_positions_are_left_another_key_is_refused(
    folder: Folder, now: Upstream, kind: type[DefiniteError], reason: str
) -> None:
    barrier = folder.recorded(4, MIDDLE)
    with pytest.raises(kind, match=reason):
        adopt(folder.process(upstream=now), barrier)
    assert folder.stored_rows() == ROWS_IN_THE_MIDDLE
