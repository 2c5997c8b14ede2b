"""Random values of the core."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from backfill.epoch import Epoch
from backfill.offset import Ahead, Barrier, InitialOffset, Offset
from backfill.plan import Split
from backfill.progress import Again, Completed, Finished, Frontier, InProgress, Progress
from backfill.staging.manifest import AsPlanned, GivenUp, Manifest, PlannedSplit, ReadLater
from backfill.vnode import Key, KeyRange

counts = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=8)


def keys(columns: int) -> st.SearchStrategy[Key]:
    return st.tuples(*[texts] * columns)


@st.composite
def frontiers(draw: st.DrawFn) -> Frontier:
    """Draws vnodes of all states. The core does not compare keys, so they are in no particular order."""
    columns = draw(st.integers(1, 3))
    bounds = draw(st.lists(keys(columns), max_size=6, unique=True))
    frontier = Frontier.at_start(tuple(bounds))
    states = st.one_of(
        st.none(),
        st.builds(Completed, counts),
        st.builds(InProgress, keys(columns), counts),
    )
    moved = {vnode.number: draw(states) for vnode in frontier.unfinished}
    return frontier.advanced({number: state for number, state in moved.items() if state is not None})


finished = st.builds(Finished, counts, counts)
progresses: st.SearchStrategy[Progress] = st.one_of(frontiers(), finished)
epochs = st.builds(Epoch, counts, texts, counts, counts)
ends = st.none() | keys(2)
ranges = st.builds(KeyRange, ends, ends)
aheads = st.builds(Ahead, ranges, texts)
bookmarks = st.dictionaries(texts, texts, max_size=3).map(lambda found: tuple(found.items()))


@st.composite
def agains(draw: st.DrawFn) -> Again:
    """Draws a part of the table that is read again, some of it twice."""
    progress = draw(progresses)
    if isinstance(progress, Frontier):
        within = KeyRange(draw(ends), draw(ends))
        bounds = tuple(draw(st.lists(keys(2), max_size=3, unique=True)))
        progress = Frontier.at_start(bounds, within)
        for _ in range(draw(st.integers(0, 2))):
            states = {vnode.number: draw(st.none() | st.builds(Completed, counts)) for vnode in progress.unfinished}
            moved = {number: state for number, state in states.items() if state is not None}
            progress = progress.advanced(moved).reopened(draw(st.lists(ranges, max_size=2)))
    return Again(draw(texts), progress)


def _barriers(bases: st.SearchStrategy[Barrier | None]) -> st.SearchStrategy[Barrier]:
    return st.builds(
        Barrier,
        texts,
        bookmarks,
        epochs,
        progresses,
        st.lists(aheads, max_size=2).map(tuple),
        bases,
        st.none() | agains(),
    )


barriers = _barriers(st.none() | _barriers(st.none()))
offsets: st.SearchStrategy[Offset] = st.just(InitialOffset()) | barriers

splits = st.builds(Split, st.lists(ranges, min_size=1, max_size=3).map(tuple), counts)
readings = st.just(AsPlanned()) | st.builds(ReadLater, texts) | st.just(GivenUp())
manifests = st.builds(Manifest, st.lists(st.builds(PlannedSplit, splits, counts, readings), max_size=3).map(tuple))

scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """Draws a JSON value with something else at one place, or with one thing more or less."""
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        name = draw(st.sampled_from(sorted(value)))
        rest = {other: inner for other, inner in value.items() if other != name}
        match draw(st.integers(0, 7)):
            case 0:
                return rest
            case 1:
                return {**rest, draw(texts): value[name]}
            case 2:
                return {**value, draw(texts): draw(json_values)}
            case _:
                return {**value, name: draw(damaged(value[name]))}
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        at = draw(st.integers(0, len(value) - 1))
        match draw(st.integers(0, 6)):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value[:at], value[at], *value[at:]]
            case _:
                return [*value[:at], draw(damaged(value[at])), *value[at + 1 :]]
    return draw(json_values)
