"""What the core asks of a database: the `Upstream` contract and its laws.

An adapter is done when the contract suite in `tests/contract` passes on it. An upstream is used by one thread of
one process at a time, except for `release`. Every method may raise a `DefiniteError` or, when its own retries are
used up, a `TransientError`.

postgres    PostgreSQL: its change log and exported snapshots
delta       Delta Lake: versions, and the change data feed
added       which columns a table has got
lag         how far a stream is behind
recent_lag  that, not asked for too often
noted       reading bookmarks and positions
findings    what is found before a stream is started
temporary   what goes wrong with the temporary folder, as our errors
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from backfill.epoch import Epoch
from backfill.plan import Extent, Measure
from backfill.upstream.added import Added
from backfill.upstream.lag import Lag
from backfill.vnode import WHOLE_TABLE, Coverage, Key, KeyRange


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns the stream carries and the key, by name; `name` is the table's, as `Identity` has it.

    `columns` are the selected columns followed by the key columns that were not selected; all nullable. `output`
    names the selected ones in the order asked for. `key` is in key order.
    """

    name: str
    columns: pa.Schema
    output: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def output_columns(self) -> pa.Schema:
        return pa.schema([self.columns.field(name) for name in self.output])

    @property
    def values(self) -> tuple[str, ...]:
        """The columns but for the key."""
        return tuple(name for name in self.columns.names if name not in self.key)

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.columns.field(name) for name in self.key])


Bookmark: TypeAlias = tuple[tuple[str, str], ...]
"""An adapter's own names and values, then the core's: options that a stream keeps.

In a fixed order. Adapters pass over names they do not know.
"""


@dataclass(frozen=True, slots=True)
class Pin:
    """A state that readers on other machines can read the table at, until it is released.

    `token` is what a reader needs; it means nothing after the release, nor in another run, unless the upstream keeps
    its states by itself.
    """

    epoch: Epoch
    token: str


@dataclass(frozen=True, slots=True)
class Step:
    """Where the next batch ends. `pin` is None where no snapshot rows can be read at that epoch."""

    epoch: Epoch
    pin: Pin | None


@dataclass(frozen=True, slots=True)
class TableSize:
    """About how large the table is; only ever used as a guess."""

    row_count: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Identity:
    """Which table of which system this is, under whatever name; equal texts mean the same one."""

    system: str
    table: str
    table_id: str


DELTA: Final = "delta"
"""The name of the Delta adapter, which needs no server, as a stream over such a table has recorded it."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
"""Positions that a person can name without knowing them: see `Upstream.span`."""


class SnapshotReader(Protocol):
    """Reads the table's rows on an executor, in the columns of `TableSchema.columns`; picklable, and opens nothing
    until it reads.

    A filter that was given to the upstream leaves out the rows for which it does not hold: `snapshotFilter` those of
    `read`, `filter` those of `scan`.
    """

    def read(self, token: str, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        """For a stream: exactly the rows with a key in `ranges` as of the pinned state, range after range, each in
        key order. The same again for the same arguments. Raises SnapshotGoneError where the state has been released
        and the upstream does not keep it by itself.
        """
        ...

    def scan(self, ranges: Sequence[KeyRange]) -> Iterator[pa.RecordBatch]:
        """For a batch read: the rows with a key in `ranges` as of the moment at which reading begins, in any order.

        One state for all the ranges of one call, and another one for the next call. Raises a TransientError where that
        state is lost in the middle.
        """
        ...


class ChangeReader(Protocol):
    """Reads the changes between two positions on an executor; picklable, opens nothing before `read`.

    Law: `read()` gives exactly the changes of the commits that the state at `upto` shows and the one at `after` does
    not, in commit order, in the layout of `backfill.changes`; the same rows again at each call, hours later as well,
    and nothing is acknowledged by it. Raises DataLossError where the upstream has forgotten some of them.
    """

    @property
    def after(self) -> str:
        """The position at which it begins, as `Upstream.span` takes it again."""
        ...

    @property
    def upto(self) -> str: ...

    def read(self) -> Iterator[pa.RecordBatch]: ...


class Upstream(Protocol):
    """A table and its change log.

    Positions are totally ordered by inclusion: each later position shows every commit that an earlier one shows.
    `attach` comes before every epoch (`snapshot_epoch`, `log_epoch`, `held_epoch`, `repin`) and before `added`,
    `has_gap_after`, `changes` and `acknowledge`. A stream that reads the table and follows no changes is not attached.
    """

    name: str
    """What kind of upstream this is, as it is recorded in state."""

    def close(self) -> None:
        """Lets go of everything, a pin too, except sessions that are kept for half a minute for whoever comes next.
        May be called again.
        """
        ...

    # -- the table -------------------------------------------------------------------------------------------------

    def schema(self) -> TableSchema:
        """The columns, refused by name where a type is not carried without loss."""
        ...

    def identity(self) -> Identity: ...

    def size(self) -> TableSize: ...

    def typed(self, keys: Sequence[Key]) -> pa.RecordBatch:
        """Keys as columns of their types, named as the key columns."""
        ...

    def covered(self, keys: pa.RecordBatch, coverage: Coverage) -> pa.Array[Any]:
        """For each of these keys (the columns of the key), whether it lies in `coverage` by the upstream's order."""
        ...

    def bounds(self, vnodes: int, within: KeyRange = WHOLE_TABLE) -> tuple[Key, ...]:
        """At most `vnodes - 1` distinct keys in ascending order that cut the table into about equal parts.

        If `within` is a range, they cut that part of the table, and are keys of it.
        """
        ...

    def range_of(self, first: Key | None, last: Key | None) -> KeyRange:
        """The range of the rows from `first` to `last` as they are now, both included; None is an open end.

        There need be no rows of these keys. The range may begin below `first`, where there are no rows now. Raises
        KeyTextError where one of the texts is not a value of its column.
        """
        ...

    # -- the place in the change log -------------------------------------------------------------------------------

    def bookmark(self, stream: str) -> Bookmark:
        """What the stream named `stream` needs to find its place in the change log again; names no secret.

        Makes nothing. Recorded before `attach`, so that what `attach` makes is never forgotten.
        """
        ...

    def attach(self, bookmark: Bookmark, after: Epoch | None, ahead: Collection[str] = ()) -> Bookmark:
        """Makes (where `after` is None) or finds the stream's place in the change log. Idempotent.

        `ahead` are positions of later states than that at `after`, of which the sink may have something already.

        Returns the bookmark to go on with: another one where the stream is to go on although changes were lost, because
        the old one would find the loss again; or where the old one does not note how the table, and what publishes it,
        are now. Attached to again, that one is returned as it is, unless something has changed.

        Raises DataLossError where changes after `after` are gone, or the log is not the one the bookmark names, or has
        not come as far as `ahead`.
        """
        ...

    def added(self) -> Added:
        """The columns that rows which were staged before the stream was attached may lack, as far as that is known."""
        ...

    def require_same_order(self, bookmark: Bookmark) -> None:
        """Raises SchemaChangedError where keys are known to be in another order than when the bookmark was made.

        Needs no `attach`; also for streams that read the table and follow no changes.
        """
        ...

    def require_same_key(self, bookmark: Bookmark) -> None:
        """Raises SchemaChangedError where the key is of other columns than when the bookmark was made, in whatever
        order and of whatever types. Needs no `attach` either.
        """
        ...

    def reordered(self, bookmark: Bookmark) -> Bookmark:
        """The bookmark of the same place, noting the order that keys have now: for a stream that no longer depends on
        the order that they had. Equal to `bookmark` where the order is the same.
        """
        ...

    def is_own(self, bookmark: Bookmark, stream: str) -> bool:
        """Whether what `attach` made is named after the stream. What the options named may be somebody else's."""
        ...

    def detach(self, bookmark: Bookmark) -> tuple[str, ...]:
        """Removes what `attach` made, if it is still there. Returns the name of each, for people.

        Raises a DefiniteError, and removes nothing, where it was made in another system than this one.
        """
        ...

    def acknowledge(self, epoch: Epoch) -> None:
        """The upstream may forget what lies before `epoch`: a batch that ends there has been committed."""
        ...

    # -- the states that batches end at ----------------------------------------------------------------------------

    def present(self) -> str:
        """The position of this moment: every commit that is visible now is shown by it."""
        ...

    def reached(self, epoch: Epoch, position: str) -> bool:
        """Whether the state at `epoch` shows everything that the state at `position` shows."""
        ...

    def has_gap_after(self, epoch: Epoch) -> bool:
        """Whether changes after `epoch` are lost that the stream is to go on without.

        Then an epoch after them has to come, whether anything has changed or not: else the next start, which may be
        told otherwise, would find them lost again.
        """
        ...

    def snapshot_epoch(self, after: Epoch | None, *, max_changes: int) -> Step:
        """The state at which a batch ends that reads rows of the table: the step has a pin.

        It has none where the log holds more than about `max_changes` changes since `after`, which are worked off first;
        nor as long as readers do not see all that `after` shows. In all other cases it is a new epoch, even where
        nothing has happened. A commit is never cut, so one large commit may exceed `max_changes`. Any earlier pin is
        released.
        """
        ...

    def log_epoch(self, after: Epoch | None, *, max_changes: int, until: str | None) -> Step:
        """The state at which a batch of changes alone ends, with about `max_changes` of them since `after` at the most.

        It is `after` itself where nothing concerning the table has happened since. Nothing is included that was
        committed after the moment of the position `until`. It may show commits that readers do not see yet. A commit is
        never cut. Any earlier pin is released.
        """
        ...

    def held_epoch(self, after: Epoch | None, *, max_changes: int) -> Step:
        """The state at which the next batch ends while somebody holds the snapshot: no rows are to be read there.

        A later `snapshot_epoch` may go on from it: readers see all that it shows. It has no pin, and `after` itself is
        returned where nothing concerning the table has happened since. If `after` is a `log_epoch`, this one is of that
        kind too. Any earlier pin is released.
        """
        ...

    # -- rows ------------------------------------------------------------------------------------------------------

    def repin(self, after: Epoch) -> Pin:
        """A pin for a chunk that has to be read again: at `after` itself where the upstream keeps its states, else at
        the present state, which is not before `after`. Any earlier pin is released.
        """
        ...

    def release(self, pin: Pin) -> None:
        """Lets go of this pin, if it is still held; may be called from another thread, and more than once."""
        ...

    def measure(self, pin: Pin, requests: Sequence[Measure]) -> tuple[Extent, ...]:
        """How far each request goes in the pinned state; exact. Rows that a filter leaves out do not count.

        Raises SnapshotGoneError where that state has been released, or was lost with its session.
        """
        ...

    def reader(self) -> SnapshotReader: ...

    def lookup(self, pin: Pin, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows with these keys (the columns of the key) in the pinned state, in no order and under no filter.

        In the columns of `TableSchema.columns`. Raises SnapshotGoneError where the state has been released.
        """
        ...

    # -- changes ---------------------------------------------------------------------------------------------------

    def changes(self, after: Epoch, upto: Epoch) -> Iterator[pa.RecordBatch]:
        """Exactly the changes of the commits that `upto` shows and `after` does not, in commit order.

        The layout is that of `backfill.changes`; a batch may have no rows. The same again for the same epochs until
        they are acknowledged.
        """
        ...

    def shown(self, position: str, changes: pa.RecordBatch) -> pa.Array[Any]:
        """For each of these changes, whether the state at `position` shows its commit."""
        ...

    def span(self, starting: str, ending: str) -> ChangeReader:
        """A reader of the changes after the position `starting` and up to `ending`. Needs no `attach`, makes nothing.

        A position is `EARLIEST` (the changes after it are the oldest ones there are), `LATEST` (everything that is
        visible now, fixed by this call), or the upstream's own text for one of its states, which has been reached.

        Raises OptionsError where a text is none of these, or `starting` lies after `ending`; DataLossError where
        changes after `starting` are gone.
        """
        ...

    # -- how far a stream is behind --------------------------------------------------------------------------------

    def lag(self, epoch: Epoch) -> Lag:
        """How far the present is from `epoch`, for people. That is where the last step led, or where the next begins.

        `attach` comes before.
        """
        ...

    def lag_of(self, bookmark: Bookmark, epoch: Epoch | None) -> Lag:
        """The lag of a stream that another process runs, and that stands at `epoch`, or at none yet; needs no `attach`.

        The epoch's timestamp is taken for the last moment up to which the stream is complete; a caller that knows a
        later one gives that. Raises DefiniteError where this upstream is of another system than the stream's, or no
        longer keeps its log: the figures would mean nothing.
        """
        ...
