"""Which transaction each pgoutput message belongs to.

Under protocol version 1 transactions come whole and one after the other, in commit order: BEGIN, changes,
COMMIT. Only the cut into record batches is arbitrary, so a batch may start and end inside one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backfill.arrow.arrays import Mask
from backfill.upstream.postgres.decoder.messages import BEGIN, COMMIT, STREAM_ABORT, Messages, Positions, require
from backfill.upstream.postgres.position import Lsn

Keep: TypeAlias = Callable[[NDArray[np.uint32], NDArray[np.uint64]], NDArray[np.bool_]]
"""From the xids and commit LSNs (BEGIN's final LSN) of transactions, whether the rows of each are wanted."""

_POSTGRES_EPOCH: Final = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970-01-01, both UTC


@dataclass(frozen=True)
class BeginMessages:
    """What BEGIN tells of each transaction, and whether its rows are kept; timestamps in µs since 1970."""

    xid: NDArray[np.uint32]
    commit_lsn: NDArray[np.uint64]
    timestamp: NDArray[np.int64]
    kept: Mask

    def __len__(self) -> int:
        return len(self.xid)

    def __getitem__(self, part: slice | Positions) -> BeginMessages:
        return BeginMessages(self.xid[part], self.commit_lsn[part], self.timestamp[part], self.kept[part])

    @staticmethod
    def join(parts: Sequence[BeginMessages]) -> BeginMessages:
        whole = [NO_BEGIN, *parts]
        return BeginMessages(
            np.concatenate([part.xid for part in whole]),
            np.concatenate([part.commit_lsn for part in whole]),
            np.concatenate([part.timestamp for part in whole]),
            np.concatenate([part.kept for part in whole]),
        )


NO_BEGIN: Final = BeginMessages(
    np.empty(0, np.uint32), np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.bool_)
)


@dataclass(frozen=True)
class Transactions:
    """Complete transactions in commit order.

    `end_lsn` is COMMIT's end LSN: the slot may be advanced to it once the transaction and all before it are
    no longer needed. `begun` holds the rest.
    """

    begun: BeginMessages
    end_lsn: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.end_lsn)

    @property
    def last_end_lsn(self) -> Lsn | None:
        return Lsn(int(self.end_lsn[-1])) if len(self) else None

    def leading(self, holds: Mask) -> Transactions:
        """The transactions before the first for which `holds` is false."""
        stop = len(self) if holds.all() else int(np.argmin(holds))
        return Transactions(self.begun[:stop], self.end_lsn[:stop])

    @staticmethod
    def join(parts: Sequence[Transactions]) -> Transactions:
        """The transactions of consecutive batches as one."""
        end_lsns = [np.empty(0, np.uint64), *(part.end_lsn for part in parts)]
        return Transactions(BeginMessages.join([part.begun for part in parts]), np.concatenate(end_lsns))


@dataclass(frozen=True)
class Membership:
    """The transactions a batch has a part of (`begun`); for each message its own one's index, and if it is `inside`."""

    begun: BeginMessages
    index: Positions
    inside: Mask
    complete: Transactions
    open: BeginMessages  # the one whose COMMIT is still to come, if any


def transactions_of(messages: Messages, open_before: BeginMessages, keep: Keep) -> Membership:
    """Follows BEGIN and COMMIT; `keep` is asked once about each transaction, in the batch of its BEGIN."""
    begins, commits = messages.kind == BEGIN, messages.kind == COMMIT
    count = np.cumsum(begins) + len(open_before)
    depth = count - np.cumsum(commits)
    require((depth == 0) | (depth == 1), "BEGIN and COMMIT do not alternate")
    require((depth == 0) | (messages.kind != STREAM_ABORT), "what was told of a transaction is taken back")

    begun = BeginMessages.join([open_before, _begun(messages, messages.start[begins], keep)])
    at = messages.start[commits]
    require(begun.commit_lsn[: len(at)] == messages.uint64(at + 2), "COMMIT and its BEGIN name different commit LSNs")
    complete = Transactions(begun[: len(at)], messages.uint64(at + 10))
    # COMMIT itself stands at depth 0; no row change does.
    return Membership(begun, count - 1, depth == 1, complete, begun[len(at) :])


def _begun(messages: Messages, at: Positions, keep: Keep) -> BeginMessages:
    if len(at) == 0:
        return NO_BEGIN
    commit_lsn = messages.uint64(at + 1)
    require(commit_lsn < 2**63, "a commit LSN is out of range")
    timestamp = messages.uint64(at + 9).view(np.int64) + _POSTGRES_EPOCH
    xid = messages.uint32(at + 17).astype(np.uint32)
    return BeginMessages(xid, commit_lsn, timestamp, keep(xid, commit_lsn))
