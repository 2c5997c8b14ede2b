"""How far the backfill is: the life of each vnode, and of all of them together.

    NotStarted --> InProgress(current_pos) --> Completed
         \\________________________________________^      (an empty vnode, or one read in a single batch)

"Completed" is a state of its own and not a position: an empty vnode completes without one, and a completed vnode
passes on every change, also for keys beyond the last row it read (RisingWave `BackfillProgressPerVnode`).

A `Frontier` is the progress of all vnodes at one barrier. Runs of completed vnodes are folded into one slice, so
that its size goes with the work that is left.

Rows that have been emitted may be taken once more: `Again` is a second frontier over a part of the table. It says
nothing of what has been emitted, and nothing of which changes are passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal, TypeAlias, get_args

from backfill.vnode import WHOLE_TABLE, Coverage, Key, KeyRange, merged, ranges_between


@dataclass(frozen=True, slots=True)
class NotStarted:
    """No row of the vnode has been emitted; no change to it is passed on."""


@dataclass(frozen=True, slots=True)
class InProgress:
    """The rows up to and including `current_pos` have been emitted, and changes to them are passed on."""

    current_pos: Key
    row_count: int


@dataclass(frozen=True, slots=True)
class Completed:
    """All rows have been emitted; every change is passed on."""

    row_count: int


VnodeProgress: TypeAlias = NotStarted | InProgress | Completed


@dataclass(frozen=True, slots=True)
class Vnode:
    """A vnode with rows left to read."""

    number: int
    range: KeyRange
    progress: NotStarted | InProgress

    @property
    def remaining(self) -> KeyRange:
        match self.progress:
            case NotStarted():
                return self.range
            case InProgress(current_pos=pos):
                return KeyRange(pos, self.range.upto)

    @property
    def row_count(self) -> int:
        match self.progress:
            case NotStarted():
                return 0
            case InProgress(row_count=rows):
                return rows


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """Adjacent vnodes that are all Completed; the bounds between them are no longer needed."""

    first: int
    range: KeyRange
    row_counts: tuple[int, ...]


Slice: TypeAlias = Vnode | CompletedRun


@dataclass(frozen=True, slots=True)
class Frontier:
    """The progress of every vnode, in key order, without gaps; at least one vnode is listed.

    In `Again` the vnodes are those of a part of the key space; ranges that a crash lost stand once more at the end.
    """

    slices: tuple[Slice, ...]

    @classmethod
    def at_start(cls, bounds: tuple[Key, ...], within: KeyRange = WHOLE_TABLE) -> Frontier:
        """All vnodes that these ascending bounds cut `within` into, none of them started."""
        ranges = ranges_between(bounds, within)
        return cls(tuple(Vnode(number, item, NotStarted()) for number, item in enumerate(ranges)))

    @property
    def unfinished(self) -> tuple[Vnode, ...]:
        return tuple(item for item in self.slices if isinstance(item, Vnode))

    @property
    def vnode_count(self) -> int:
        return sum(1 if isinstance(item, Vnode) else len(item.row_counts) for item in self.slices)

    @property
    def row_count(self) -> int:
        """How many snapshot rows have been emitted."""
        return sum(item.row_count if isinstance(item, Vnode) else sum(item.row_counts) for item in self.slices)

    @property
    def coverage(self) -> Coverage:
        """The keys whose rows have been emitted: exactly those whose changes are passed on."""
        return merged(self._covered())

    def _covered(self) -> Iterator[KeyRange]:
        for item in self.slices:
            match item:
                case CompletedRun(range=whole):
                    yield whole
                case Vnode(range=whole, progress=InProgress(current_pos=pos)):
                    yield KeyRange(whole.after, pos)
                case Vnode():
                    pass

    def known_bounds(self) -> Iterator[tuple[int, Key]]:
        """The vnodes whose upper end is still known, and that end; the last vnode has none."""
        for item in self.slices:
            if item.range.upto is not None:
                number = item.number if isinstance(item, Vnode) else item.first + len(item.row_counts) - 1
                yield number, item.range.upto

    def per_vnode(self) -> Iterator[tuple[int, VnodeProgress]]:
        """Every vnode's number and progress, ascending."""
        for item in self.slices:
            match item:
                case Vnode(number=number, progress=progress):
                    yield number, progress
                case CompletedRun(first=first, row_counts=counts):
                    for offset, rows in enumerate(counts):
                        yield first + offset, Completed(rows)

    def advanced(self, to: Mapping[int, InProgress | Completed]) -> Frontier:
        """This frontier with the named unfinished vnodes moved on, folded."""
        moved = (_moved(item, to.get(item.number)) if isinstance(item, Vnode) else item for item in self.slices)
        return Frontier(tuple(_folded(moved)))

    def reopened(self, lost: Iterable[KeyRange]) -> Frontier:
        """This frontier with further vnodes at its end, for ranges whose rows were counted but never read."""
        further = enumerate(lost, start=self.vnode_count)
        return Frontier((*self.slices, *(Vnode(number, item, NotStarted()) for number, item in further)))


def touch(one: Slice, two: Slice) -> bool:
    """Whether `two` begins where `one` ends."""
    return one.range.upto is not None and one.range.upto == two.range.after


def _folded(slices: Iterable[Slice]) -> Iterator[Slice]:
    """The same slices, with completed ones that touch joined into one; each run at once, as there may be 65,536."""
    runs: list[CompletedRun] = []
    for item in slices:
        if runs and not (isinstance(item, CompletedRun) and touch(runs[-1], item)):
            yield _joined(runs)
            runs = []
        if isinstance(item, CompletedRun):
            runs.append(item)
        else:
            yield item
    if runs:
        yield _joined(runs)


def _joined(runs: Sequence[CompletedRun]) -> CompletedRun:
    counts = tuple(count for run in runs for count in run.row_counts)
    return CompletedRun(runs[0].first, KeyRange(runs[0].range.after, runs[-1].range.upto), counts)


def _moved(vnode: Vnode, to: InProgress | Completed | None) -> Slice:
    match to:
        case None:
            return vnode
        case InProgress():
            return Vnode(vnode.number, vnode.range, to)
        case Completed(row_count=rows):
            return CompletedRun(vnode.number, vnode.range, (rows,))


@dataclass(frozen=True, slots=True)
class Finished:
    """The backfill is over: every change is passed on, and single vnodes no longer matter."""

    vnode_count: int
    row_count: int

    @property
    def unfinished(self) -> tuple[Vnode, ...]:
        return ()

    @property
    def coverage(self) -> Coverage:
        """Every key, whatever key was read last."""
        return (WHOLE_TABLE,)


Progress: TypeAlias = Frontier | Finished


@dataclass(frozen=True, slots=True)
class Again:
    """A part of the table whose rows are emitted once more, because a person asked for it; or the last such part.

    `request` names what was asked for, so that it is done once.
    """

    request: str
    progress: Progress

    @property
    def frontier(self) -> Frontier | None:
        """What is left to read of it; None where nothing is."""
        return self.progress if isinstance(self.progress, Frontier) and self.progress.unfinished else None


def settled(progress: Progress) -> Progress:
    """`Finished` in place of a frontier with nothing left; anything else unchanged.

    Done one barrier *after* the last vnode completed, so that the barrier at which it completed still has each vnode's
    row count for whoever records it.
    """
    if isinstance(progress, Frontier) and not progress.unfinished:
        return Finished(progress.vnode_count, progress.row_count)
    return progress


Phase: TypeAlias = Literal["starting", "snapshot", "changes", "again"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


def phase(progress: Progress, again: Again | None) -> Phase:
    """`snapshot` while rows are still to be read, then `changes`; `again` while some are taken once more.

    Before the first batch a stream is `starting`; then there is no progress to ask.
    """
    if progress.unfinished:
        return "snapshot"
    return "changes" if again is None or again.frontier is None else "again"


def figures(progress: Progress, again: Again | None) -> dict[str, int | str]:
    """The figures that people look at first, under the names by which they are shown everywhere."""
    found: dict[str, int | str] = {
        "phase": phase(progress, again),
        "snapshot_rows": progress.row_count,
        "vnodes": progress.vnode_count,
        "vnodes_completed": _completed(progress),
    }
    if again is not None:
        found["again_rows"] = again.progress.row_count
        found["again_vnodes"] = again.progress.vnode_count
        found["again_vnodes_completed"] = _completed(again.progress)
    left = rows_left(progress)
    return found if left is None else {**found, "snapshot_rows_left": left}


def _completed(progress: Progress) -> int:
    return progress.vnode_count - len(progress.unfinished)


def rows_left(progress: Progress) -> int | None:
    """About how many snapshot rows are still to be read, if all vnodes hold about equally many; None until one of them,
    but for the last, is completed.

    Small vnodes are the first to be completed. So a vnode under way that has given more rows than those hold counts
    with what it gave. The last vnode, which is nearly empty and is read first, says nothing of the others.
    """
    if isinstance(progress, Finished) or not progress.unfinished:
        return 0
    last = progress.vnode_count - 1
    others = [item for number, item in progress.per_vnode() if number != last]
    completed = [item.row_count for item in others if isinstance(item, Completed)]
    begun = [item.row_count for item in others if isinstance(item, InProgress)]
    if not completed:
        return None
    usual = fmean(completed)
    usual = fmean([*completed, *(rows for rows in begun if rows > usual)])
    not_started = len(others) - len(completed) - len(begun)
    return round(not_started * usual + sum(max(0, usual - rows) for rows in begun))
