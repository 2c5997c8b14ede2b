"""What a state store keeps of a stream, in its types: the identity, the vnodes' bounds and rows, the barrier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from backfill.errors import OffsetError, StateError
from backfill.offset import Barrier, InitialOffset, from_text, to_text
from backfill.progress import Completed, Frontier, InProgress, Progress, VnodeProgress
from backfill.state_dir.files import STATE_FILE
from backfill.upstream import Bookmark, Upstream
from backfill.vnode import Key
from backfill_state import Barrier as StoredBarrier
from backfill_state import ProgressStore, StreamIdentity


def identity(stream: str, bookmark: Bookmark, upstream: Upstream) -> StreamIdentity:
    """Which stream this is: its name, its table with the key, and its bookmark."""
    which = upstream.identity()
    return StreamIdentity(
        stream_id=stream,
        upstream=upstream.name,
        system=which.system,
        table=which.table,
        table_id=which.table_id,
        key=upstream.schema().key_schema,
        properties=bookmark,
    )


def barrier(store: ProgressStore) -> Barrier | None:
    """The barrier at which the stream stands; None before its first one. Raises StateError where it is unreadable."""
    text = store.offset()
    try:
        offset = None if text is None else from_text(text)
    except OffsetError as error:
        raise _unreadable(error.message) from error
    if isinstance(offset, InitialOffset):
        raise _unreadable("an offset that names no barrier")
    return offset


def _unreadable(why: str) -> StateError:
    return StateError(
        f"the state directory holds {why}. If it is damaged, delete {STATE_FILE} and its .wal there: the query "
        "rebuilds it from its checkpoint"
    )


def committed(barrier: Barrier, vnodes: pa.Table) -> StoredBarrier:
    """The barrier as the store keeps it, with the rows of the vnodes that have moved."""
    return StoredBarrier(barrier.epoch.number, to_text(replace(barrier, resumed_from=None)), vnodes)


def changed(before: Progress | None, now: Frontier) -> Mapping[int, VnodeProgress]:
    """The vnodes whose progress is another one than before."""
    known = dict(before.per_vnode()) if isinstance(before, Frontier) else {}
    return {number: progress for number, progress in now.per_vnode() if known.get(number) != progress}


def rows(vnodes: Mapping[int, VnodeProgress], upstream: Upstream) -> pa.Table:
    """`| vnode | <key> | backfill_finished | row_count |`; a vnode without a position has null keys."""
    numbers = sorted(vnodes)
    placed = [vnodes[number] for number in numbers]
    positions = [item.current_pos for item in placed if isinstance(item, InProgress)]
    keys = upstream.typed(positions)
    taken = iter(range(len(positions)))
    index = pa.array([next(taken) if isinstance(item, InProgress) else None for item in placed], pa.int32())
    result = _with_vnodes(pa.array(numbers, pa.int32()), keys.take(index) if placed else keys)
    completed = pa.array([isinstance(item, Completed) for item in placed], pa.bool_())
    counts = [item.row_count if isinstance(item, InProgress | Completed) else 0 for item in placed]
    result = result.append_column("backfill_finished", completed)
    return result.append_column("row_count", pa.array(counts, pa.int64()))


def finished(stored: pa.Table, vnodes: int) -> pa.Table:
    """Rows that say `backfill_finished`, for those of the first `vnodes` vnodes that the store does not know to be so.

    There are some where the store was lost or made anew, or could not be written when the backfill ended. How many rows
    these vnodes had is no longer known.
    """
    vnode, *_, done, _ = stored.columns  # Not by their names: a key column may have the same name.
    known = set(vnode.filter(done).to_pylist())
    numbers = [number for number in range(vnodes) if number not in known]
    types: list[Any] = stored.schema.types
    _, *key, _, count = (pa.nulls(len(numbers), kind) for kind in types)
    columns = [pa.array(numbers, pa.int32()), *key, pa.array([True] * len(numbers), pa.bool_()), count]
    return pa.Table.from_arrays(columns, schema=stored.schema)


def bounds(last_keys: Mapping[int, Key], upstream: Upstream) -> pa.Table:
    """`| vnode | <key> |`: where these vnodes end."""
    return _with_vnodes(pa.array(list(last_keys), pa.int32()), upstream.typed(list(last_keys.values())))


def _with_vnodes(numbers: pa.Int32Array, keys: pa.RecordBatch) -> pa.Table:
    names = ["vnode", *keys.schema.names]
    return pa.Table.from_arrays([numbers, *keys.columns], names=names)
