"""How far each vnode goes in one batch, and who reads what. Pure: the table is asked through the caller.

`plan` is a generator in the manner of a sans-I/O protocol: it yields what it wants to have measured and is sent the
answers, so one algorithm serves every upstream and needs none to be tested.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from backfill.progress import Completed, CompletedRun, Finished, Frontier, InProgress, Progress, Vnode
from backfill.vnode import Coverage, Key, KeyRange, merged

MIN_SPLIT_ROWS = 20_000
"""Below this a further reader costs more than it saves: a task takes some 36 ms to start."""

MAX_REQUESTS = 256
"""How many vnodes are measured at a time at the most."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How many rows, up to `limit`, does this range hold at the epoch, and where does that many end?"""

    range: KeyRange
    limit: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The answer: the first `row_count` rows of the range, in key order.

    `last` is the key of the last of them, or None where the range holds no further row: then they are all of it.
    """

    row_count: int
    last: Key | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one batch may read, and how it is spread."""

    max_rows: int
    lanes: int
    """How many vnodes should be under way at once, so that as many readers have work."""

    vnode_rows: int
    """About how many rows a vnode holds; only a guess at how many vnodes to measure together."""

    max_vnodes: int | None = None
    """How many vnodes may be looked at, where rows that are not read have to be looked at as well."""


def plan(frontier: Frontier, limits: Limits) -> Generator[tuple[Measure, ...], Sequence[Extent], Frontier]:
    """Where each vnode stands after the next batch; at most `limits.max_rows` rows further in all.

    Vnodes that are under way go first, then the last one, then the next ones by number. No vnode takes more than
    its lane's share of the budget, so that a table of few large vnodes still feeds all readers.

    The last vnode has no upper end: in a table that grows at its end it is nearly empty now, and left to the last it
    might grow faster than it is read. Once it is Completed, what is added comes with the changes.
    """
    share = max(1, -(-limits.max_rows // max(1, limits.lanes)))
    queue = sorted(frontier.unfinished, key=_turn)[: limits.max_vnodes]
    left = limits.max_rows
    moved: dict[int, InProgress | Completed] = {}
    while queue and left > 0:
        expected = max(1, min(share, limits.vnode_rows))
        count = min(len(queue), MAX_REQUESTS, -(-left // expected))
        asked, queue = queue[:count], queue[count:]
        extents = yield tuple(Measure(vnode.remaining, min(share, left)) for vnode in asked)
        for vnode, measured in zip(asked, extents, strict=True):
            extent = measured
            if left <= 0:
                break
            if extent.row_count > left:
                (extent,) = yield (Measure(vnode.remaining, left),)
            moved[vnode.number] = _after(vnode, extent)
            left -= extent.row_count
    return frontier.advanced(moved)


def _turn(vnode: Vnode) -> tuple[bool, bool, int]:
    return not isinstance(vnode.progress, InProgress), vnode.range.upto is not None, vnode.number


def _after(vnode: Vnode, extent: Extent) -> InProgress | Completed:
    rows = vnode.row_count + extent.row_count
    return Completed(rows) if extent.last is None else InProgress(extent.last, rows)


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one vnode that one batch emits."""

    range: KeyRange
    row_count: int


@dataclass(frozen=True, slots=True)
class Split:
    """What one reader reads: key ranges in the order of vnodes, and how many rows they hold at the epoch."""

    ranges: Coverage
    row_count: int


def pieces(start: Progress | None, end: Progress) -> tuple[Piece, ...]:
    """The snapshot rows between two barriers, vnode by vnode as far as `start` tells them apart.

    In key order, but for vnodes that were added at the end.
    """
    if isinstance(start, Finished):
        return ()
    if start is None:
        return _from_nothing(end)
    reached: dict[int, Vnode] = {}
    completed: dict[int, int] = {}
    if isinstance(end, Frontier):
        for item in end.slices:
            match item:
                case Vnode(number=number):
                    reached[number] = item
                case CompletedRun(first=first, row_counts=counts):
                    completed.update(enumerate(counts, start=first))
    result = []
    for vnode in start.unfinished:
        if vnode.number in completed:
            result.append(Piece(vnode.remaining, completed[vnode.number] - vnode.row_count))
            continue
        now = reached.get(vnode.number)
        if now is not None and isinstance(now.progress, InProgress) and now.progress != vnode.progress:
            span = KeyRange(vnode.remaining.after, now.progress.current_pos)
            result.append(Piece(span, now.row_count - vnode.row_count))
    return (*result, *_from_nothing(end, start))


def _from_nothing(end: Progress, start: Frontier | None = None) -> tuple[Piece, ...]:
    """All rows of the vnodes that are not in `start`; they come after those that are."""
    if isinstance(end, Finished):
        return ()
    first = start.vnode_count if start else 0
    result = []
    for item in end.slices:
        match item:
            case CompletedRun(first=number, range=whole, row_counts=rows) if start and number < first < number + len(
                rows
            ):
                # The first of them goes on where the last of `start` ends, and so has been folded with it.
                known = start.slices[-1].range.upto
                result.append(Piece(KeyRange(known, whole.upto), sum(rows[first - number :])))
            case CompletedRun(first=number) | Vnode(number=number) if number < first:
                pass
            case CompletedRun(range=whole, row_counts=counts):
                result.append(Piece(whole, sum(counts)))
            case Vnode(range=whole, progress=InProgress(current_pos=pos, row_count=rows)):
                result.append(Piece(KeyRange(whole.after, pos), rows))
            case Vnode():
                pass
    return tuple(result)


def split(parts: Sequence[Piece], *, count: int, min_rows: int) -> tuple[Split, ...]:
    """The pieces as at most `count` contiguous vnode ranges of about equal size, none empty.

    Fewer, where a reader would have less than `min_rows` rows to read: starting one costs more than that. Pieces
    without rows go along with others: read again at a later state, they may have some.
    """
    total = sum(piece.row_count for piece in parts)
    if total == 0:
        return ()
    readers = max(1, min(count, total // max(1, min_rows)))
    shares: list[list[Piece]] = [[]]
    given = 0
    for piece in parts:
        if piece.row_count and given * readers >= total * len(shares):
            shares.append([])
        shares[-1].append(piece)
        given += piece.row_count
    return tuple(_as_split(share) for share in shares)


def _as_split(parts: Sequence[Piece]) -> Split:
    return Split(merged(piece.range for piece in parts), sum(piece.row_count for piece in parts))
