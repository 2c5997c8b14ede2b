"""What every store decides alike: whether a call fits what is stored. Functions of values; each refuses by raising."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from backfill_state.errors import ANOTHER_CHECKPOINT, BarrierBackwardsError, StateConflictError
from backfill_state.layout import bounds_schema, differences, progress_schema, require_schema, require_vnodes
from backfill_state.store import Barrier, StreamIdentity


@dataclass(frozen=True)
class Stream:
    """A begun stream and the barrier it stands at; neither epoch nor offset before the first."""

    identity: StreamIdentity
    epoch: int | None = None
    offset: str | None = None


def begins(stored: Stream | None, given: StreamIdentity, where: str) -> bool:
    """Whether there is a stream to begin; False if exactly this one has begun."""
    if stored is None:
        return True
    if stored.identity != given:
        raise StateConflictError(
            where,
            f"the state belongs to another stream ({differences(stored.identity, given)}); give each stream its own "
            "state, or reset this one to start over",
        )
    if stored.epoch is not None:
        raise StateConflictError(
            where,
            f"stream {given.stream_id} of table {given.table} has already reached epoch {stored.epoch}; go on from "
            "its offset, or reset the state to start over",
        )
    return False


def require_bounds(stored: Stream | None, bounds: pa.Table, where: str) -> None:
    """Refuses bounds that do not fit the key, or that come after the first barrier."""
    stream = _begun(stored, where)
    require_fitting_bounds(stream.identity, bounds)
    if stream.epoch is not None:
        raise StateConflictError(
            where,
            f"the bounds are fixed after the first barrier, and the state is at epoch {stream.epoch}; rebuild it to "
            "change them",
        )


def moves(stored: Stream | None, barrier: Barrier, where: str) -> bool:
    """Whether the barrier is news; False if the stream stands there already."""
    stream = _begun(stored, where)
    require_fitting_barrier(stream.identity, barrier)
    if stream.epoch is None or barrier.epoch > stream.epoch:
        return True
    if barrier.epoch < stream.epoch:
        raise BarrierBackwardsError(where, stream.epoch, barrier.epoch)
    if barrier.offset != stream.offset:
        raise StateConflictError(
            where,
            f"epoch {barrier.epoch} is stored with another offset; two queries share this state, or another "
            f"checkpoint was restored. {ANOTHER_CHECKPOINT}",
        )
    return False


def require_fitting_bounds(identity: StreamIdentity, bounds: pa.Table) -> None:
    """Refuses bounds with other columns than the key's, or with a vnode twice."""
    require_schema(bounds, bounds_schema(identity.key))
    require_vnodes(bounds, len(identity.key))


def require_fitting_barrier(identity: StreamIdentity, barrier: Barrier) -> None:
    """Refuses a barrier with other key columns than the stream's; a barrier checks the rest itself."""
    require_schema(barrier.changed, progress_schema(identity.key))


def _begun(stored: Stream | None, where: str) -> Stream:
    if stored is None:
        raise StateConflictError(where, "no stream has begun here; begin one, or rebuild it from the checkpoint")
    return stored
