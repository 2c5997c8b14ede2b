"""How far each vnode goes in one batch, and who reads what. Pure: the table is asked through the caller.

`plan` is a generator in the manner of a sans-I/O protocol: it yields what it wants to have measured and is sent the
answers, so one algorithm serves every upstream and needs none to be tested.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from backfill.progress import Completed, CompletedRun, Finished, Frontier, InProgress, Progress, Vnode
from backfill.vnode import Key, KeyRange, merged

MIN_SPLIT_ROWS = 20_000
"""Below this a further reader costs more than it saves: a task takes some 36 ms to start."""

MAX_REQUESTS = 256
"""How many vnodes are measured together at the most."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How many rows, up to `limit`, does this range hold at the epoch, and where does that many end?"""

    range: KeyRange
    limit: int
    known_more: bool = False
    """Whether it is known from an earlier answer that the range holds more, so that only the end is asked for."""


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
    """Into how many equal shares `max_rows` is divided; if fewer vnodes are left that may be looked at, into one for
    each of them. A vnode takes one share at the most, so all readers have work.
    """

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
    queue = sorted(frontier.unfinished, key=_turn)[: limits.max_vnodes]
    share = max(1, -(-limits.max_rows // max(1, min(limits.lanes, len(queue)))))
    left = limits.max_rows
    moved: dict[int, InProgress | Completed] = {}
    expected = guess = max(1, min(share, limits.vnode_rows))
    while queue and left > 0:
        count = min(len(queue), MAX_REQUESTS, -(-left // expected))
        asked, queue = queue[:count], queue[count:]
        extents = yield tuple(Measure(vnode.remaining, min(share, left)) for vnode in asked)
        for vnode, measured in zip(asked, extents, strict=True):
            extent = measured
            if left <= 0:
                break
            if extent.row_count > left:
                (extent,) = yield (Measure(vnode.remaining, left, known_more=True),)
            moved[vnode.number] = _after(vnode, extent)
            left -= extent.row_count
        # Where vnodes hold fewer rows than was guessed, more of them are measured together, or there might be a round
        # for each. But some that are empty may be followed by others that are not.
        found = sum(extent.row_count for extent in extents) // count
        expected = max(1, min(expected, max(found, expected // 2, 0 if found else guess // 4)))
    return frontier.advanced(moved)


def _turn(vnode: Vnode) -> tuple[bool, bool, int]:
    return not isinstance(vnode.progress, InProgress), vnode.range.upto is not None, vnode.number


def _after(vnode: Vnode, extent: Extent) -> InProgress | Completed:
    rows = vnode.row_count + extent.row_count
    return Completed(rows) if extent.last is None else InProgress(extent.last, rows)


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one vnode that one batch emits; or of adjacent vnodes, where the batch emits all that they have."""

    range: KeyRange
    row_count: int


@dataclass(frozen=True, slots=True)
class Split:
    """What one reader reads: key ranges in the order of vnodes, and how many rows they hold at the epoch.

    That is key order, but for ranges that are taken again because they were lost, which stand at the end.
    """

    ranges: tuple[KeyRange, ...]
    row_count: int


def pieces(start: Progress | None, end: Progress) -> tuple[Piece, ...]:
    """The snapshot rows between two barriers: a piece for each vnode of `start` that has moved; and of vnodes that it
    does not have, for each run of completed ones and each that is in progress.

    In key order, but for vnodes that were added at the end.
    """
    if isinstance(start, Finished) or isinstance(end, Finished):
        return ()
    return (*_continued(start, end), *_added(start, end))


def _continued(start: Frontier | None, end: Frontier) -> Iterator[Piece]:
    """The pieces of vnodes that were there, and not completed, at the start."""
    stands = dict(end.per_vnode())
    for vnode in () if start is None else start.unfinished:
        match stands.get(vnode.number):
            case Completed(row_count=rows):
                yield Piece(vnode.remaining, rows - vnode.row_count)
            case InProgress(current_pos=pos, row_count=rows) as now if now != vnode.progress:
                yield Piece(KeyRange(vnode.remaining.after, pos), rows - vnode.row_count)


def _added(start: Frontier | None, end: Frontier) -> Iterator[Piece]:
    """The pieces of vnodes that were not there at the start; their numbers follow those of the vnodes that were."""
    there, reached = (0, None) if start is None else (start.vnode_count, start.slices[-1].range.upto)
    for item in end.slices:
        match item:
            case CompletedRun(first=first, range=whole, row_counts=rows) if first + len(rows) > there:
                # The first new vnode may begin where the last old one ends, and then has been folded with it.
                after = whole.after if first >= there else reached
                yield Piece(KeyRange(after, whole.upto), sum(rows[max(0, there - first) :]))
            case Vnode(number=number, range=whole, progress=InProgress(current_pos=pos, row_count=rows)):
                if number >= there:
                    yield Piece(KeyRange(whole.after, pos), rows)


def split(to_read: Sequence[Piece], *, count: int, min_rows: int) -> tuple[Split, ...]:
    """The pieces as at most `count` contiguous vnode ranges of about equal size, none empty.

    Fewer, where a reader would have less than `min_rows` rows to read: starting one costs more than that. Pieces
    without rows go along with others: read again at a later state, they may have some.
    """
    total = sum(piece.row_count for piece in to_read)
    if total == 0:
        return ()
    readers = max(1, min(count, total // max(1, min_rows)))
    shares: list[list[Piece]] = [[]]
    given = 0
    for piece in to_read:
        if piece.row_count and given * readers >= total * len(shares):
            shares.append([])
        shares[-1].append(piece)
        given += piece.row_count
    return tuple(_as_split(share) for share in shares)


def _as_split(share: Sequence[Piece]) -> Split:
    return Split(merged(piece.range for piece in share), sum(piece.row_count for piece in share))
