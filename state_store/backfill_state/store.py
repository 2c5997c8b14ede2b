"""What a store keeps of a stream, and the laws every store obeys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from backfill_state.closing import Closable
from backfill_state.errors import StateLayoutError
from backfill_state.layout import progress_schema, require_key, require_schema, require_vnodes

_EPOCHS: Final = range(2**63)


@dataclass(frozen=True)
class StreamIdentity:
    """Which stream the state belongs to. Two identities are those of one stream exactly if they are equal.

    `key` has the key columns in key order, reduced to names and types: nullability and metadata are dropped.
    `properties` are whatever the upstream needs to find its place again, such as a slot's name; never a secret.
    """

    stream_id: str
    upstream: str
    system: str
    table: str
    table_id: str
    key: pa.Schema
    properties: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        require_key(self.key)
        object.__setattr__(self, "key", pa.schema([pa.field(item.name, item.type) for item in self.key]))
        if len(dict(self.properties)) < len(self.properties):
            raise StateLayoutError(f"a property is named once, but there are {[name for name, _ in self.properties]}")


@dataclass(frozen=True)
class Barrier:
    """The end of a micro-batch that the engine has committed.

    `offset` is the stream's own text of it, opaque here. `changed` is `| vnode int32 | <key> | backfill_finished bool
    | row_count int64 |` with one row for each vnode that stands elsewhere than the store says: since the stored
    barrier, not since the previous one. The key is null where a vnode has no position; row_count may be null.
    """

    epoch: int
    offset: str
    changed: pa.Table

    def __post_init__(self) -> None:
        if self.epoch not in _EPOCHS:
            raise StateLayoutError(f"an epoch is a number from 0 to 2^63 - 1, but this one is {self.epoch}")
        schema = self.changed.schema
        key = pa.schema(list(schema)[1:-2])
        require_key(key)
        require_schema(self.changed, progress_schema(key))
        require_vnodes(self.changed, len(key))
        if self.changed.column(len(key) + 1).null_count:
            raise StateLayoutError("backfill_finished is true or false, but it is null for a vnode")


class ProgressStore(Closable, Protocol):
    """The durable progress of at most one stream.

    Laws, of every store:

    1. What a call has stored is there after a crash once the call has returned. A call that raises a
       `StateConflictError` or a `StateLayoutError` has stored nothing; after any other failure it has stored all of
       its effect or none, and making it again is right in both cases.
    2. Progress is what the barriers say: for each vnode the row of the last barrier that named it, and no row for a
       vnode that none has named. Epoch, offset and progress are always those of one and the same barrier.
    3. The epoch never gets smaller, save by `rebuild` and `reset`. Epochs may be left out.
    4. Every verb may be repeated at once, with the same arguments, without effect.
    5. What is read has the user's names, the exact types, and ascending vnodes. Nobody else's reading sees anything
       between two states.

    One thread at a time. A store may be used again after `close`; leaving a `with` block closes it.
    """

    def identity(self) -> StreamIdentity | None:
        """The stream the state is of; None before `begin` and after `reset`."""
        ...

    def epoch(self) -> int | None:
        """The epoch of the stored barrier; None before the first."""
        ...

    def offset(self) -> str | None:
        """The offset of the stored barrier, as it was given; None before the first."""
        ...

    def progress(self) -> pa.Table:
        """`| vnode | <key> | backfill_finished | row_count |`; without a stream, no rows and no key columns."""
        ...

    def bounds(self) -> pa.Table:
        """`| vnode | <key> |`; no rows before `set_bounds`; without a stream, no key columns either."""
        ...

    def begin(self, identity: StreamIdentity) -> None:
        """Begins a stream. Refused if another one is stored, or if this one has reached a barrier.

        Beginning the stored stream anew, before its first barrier, keeps its bounds.
        """
        ...

    def set_bounds(self, bounds: pa.Table) -> None:
        """Says where the vnodes end. Until the first barrier the last call counts; from then on it is refused."""
        ...

    def commit(self, barrier: Barrier) -> None:
        """Moves the stream to a barrier, all of it or nothing.

        The stored epoch with the stored offset changes nothing, whatever else the barrier says. The stored epoch with
        another offset is refused, and a smaller epoch is a `BarrierBackwardsError` that names both.
        """
        ...

    def rebuild(self, identity: StreamIdentity, bounds: pa.Table, barrier: Barrier) -> None:
        """Replaces all that is stored, at once: for a checkpoint whose state was lost, or that is to be believed."""
        ...

    def reset(self) -> None:
        """Forgets the stream, if there is one."""
        ...
